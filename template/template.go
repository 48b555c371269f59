// Package template turns a Tinkerbell template (format 0.1) and a machine into
// the actions of a run.
//
// A template is YAML with Go's text/template in it. It is rendered strictly (a
// missing key is an error), with a fixed set of functions that neither reach
// outside nor take long, and what comes out is checked again, because data
// could carry YAML of its own into the document. A template in process cannot
// be killed from outside; it is therefore bounded from inside: every pass of a
// loop, every call of a named template and every function counts as a step
// that looks at the deadline, and no value may grow beyond a size at which a
// single step would take long. See limits.go.
package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template/parse"
	"time"
	"unicode/utf8"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Time-outs of templates that name none, or 0: an action never runs unbounded,
// and never for no time at all.
const (
	DefaultActionTimeout action.Seconds = 3600
	DefaultGlobalTimeout action.Seconds = 7200
)

// DefaultDisk is the path that stands for the bound disk when neither the
// template nor the machine names one.
const DefaultDisk = "/dev/sda"

// renderTime is how long rendering may take when the caller allows more.
const renderTime = 5 * time.Second

// A Template is one that was read and could be rendered.
type Template struct {
	File   string // as it was given to Parse, for messages
	Name   string // as the document names itself; "" where data decides
	Source string
	// Keys are the names of data that the template uses at its top level
	// (device_1, Hardware …), sorted.
	Keys []string
	// Notes are about variables that are set and not read.
	Notes inventory.Problems
}

// Data is what a template is rendered with.
type Data struct {
	Machine inventory.Machine
	// Image is what image actions without an IMG_URL write, and .image; nil =
	// the machine has none.
	Image *inventory.Image
	// ImageURL is where the agent fetches Image.
	ImageURL string
	// ImagesURL is where images are fetched, without a slash at its end.
	ImagesURL string
	// HardwareMap is added to the data by its keys, as Tinkerbell's is.
	HardwareMap map[string]string
}

// Rendered is a template filled in for a machine.
type Rendered struct {
	Name          string
	Actions       []action.Action
	GlobalTimeout action.Seconds
	// DiskAlias is the path by which the actions name the disk of the run. It
	// is no identity: the agent maps it, and its partitions, onto the disk
	// that was bound.
	DiskAlias string
	// Installer is what the machine boots after the actions, nil for none, and
	// Documents what it or the installed system reads.
	Installer *inventory.Installer `json:",omitempty"`
	Documents []inventory.Document `json:",omitempty"`
	// Explanation says where all of this comes from.
	Explanation Explanation `json:"-"`
}

// Parse reads a template and reports as inventory.Problems everything wrong
// with it that can be told without data: syntax, keys, names, images,
// environments, time-outs, the order of actions. file stands in the messages alone.
func Parse(file string, src []byte) (*Template, error) {
	t := &Template{File: file, Source: string(src)}
	g := newGuard(context.Background())
	parsed, err := prepare(file, t.Source, g)
	if err != nil {
		return nil, err
	}

	trees := treesOf(parsed)
	keys := usedKeys(t.Source, trees)
	t.Keys = slices.Sorted(maps.Keys(keys))
	var problems inventory.Problems
	if line, ok := keys["references"]; ok {
		problems = append(problems, inventory.Problem{
			File: file, Line: line, Field: "references",
			What: "references are not supported", Remedy: "give the value by the hardware map",
		})
	}

	ctx, cancel := context.WithTimeout(context.Background(), renderTime)
	defer cancel()
	values, isPlaceholder := placeholders(keys)
	out, err := execute(ctx, file, t.Source, values)
	if err != nil {
		var p inventory.Problems
		if errors.Is(err, errLimit) && errors.As(err, &p) {
			problems = append(problems, p...)
		}

		// Anything else may be for want of data: {{ index .list 3 }}.
		t.Name = literalName(t.Source)
		return t, problems.Err()
	}

	doc, err := out.document()
	if err != nil {
		var p inventory.Problems
		if !errors.As(err, &p) {
			return nil, err
		}
		problems = append(problems, p...)
		return t, problems.Err()
	}
	if !isPlaceholder(doc.Name) {
		t.Name = doc.Name
	}

	c := checker{out: out, doc: doc, unknown: isPlaceholder}
	c.structure()
	t.Notes = c.environments(t.Source, trees)
	problems = append(problems, c.problems...)
	return t, problems.Err()
}

var nameLine = regexp.MustCompile(`(?m)^name:[ \t]*["']?([A-Za-z0-9._-]+)["']?[ \t]*(#.*)?\r?$`)

// literalName returns the name that stands in src, which cannot be rendered
// without data; "" when there is none, or it is made of data itself.
func literalName(src string) string {
	if m := nameLine.FindStringSubmatch(src); m != nil {
		return m[1]
	}
	return ""
}

// Render fills template src in with d. name is the template's name; it stands
// in the messages in place of a file. What is wrong with the template, or with
// the data for this template, is an inventory.Problems with lines of src.
func Render(ctx context.Context, name, src string, d Data) (Rendered, error) {
	ctx, cancel := context.WithTimeout(ctx, renderTime)
	defer cancel()
	values, err := d.values()
	if err != nil {
		return Rendered{}, err
	}

	out, err := execute(ctx, name, src, values)
	if err != nil {
		return Rendered{}, err
	}

	doc, err := out.document()
	if err != nil {
		return Rendered{}, err
	}
	if err := sameShape(ctx, src, d, out, doc); err != nil {
		return Rendered{}, err
	}

	c := checker{out: out, doc: doc, data: &d}
	c.structure()
	r := c.actions()
	if r.Name == "" {
		r.Name = name
	}
	if err := c.problems.Err(); err != nil {
		return Rendered{}, err
	}
	return r, nil
}

// sameShape renders the template once more with data out of which everything
// was taken that could be read as YAML. A value that brought tasks, actions or
// keys of its own into the document is found by the difference.
func sameShape(ctx context.Context, src string, d Data, out output, doc document) error {
	values, err := d.values()
	if err != nil {
		return err
	}
	if !harmless(values) {
		return nil // no value holds anything that YAML could misread
	}

	const remedy = "encode the value: {{ .key | toJson }} or {{ .key | quote }}"
	plain, err := execute(ctx, out.file, src, values)
	var again document
	if err == nil {
		again, err = plain.document()
	}

	if err != nil {
		return inventory.Problems{{
			File: out.file, Remedy: remedy,
			What: "cannot be rendered with its data replaced by harmless text, so that what the data do to its structure cannot be told",
		}}
	}

	a, b := doc.shape(), again.shape()
	if slices.Equal(a, b) {
		return nil
	}

	same := 0
	for same < min(len(a), len(b)) && a[same] == b[same] {
		same++
	}
	path := slices.Concat(a[same:], b[same:])[0].path
	return inventory.Problems{{
		File: out.file, Line: out.line(path), Field: path,
		What: "a value of the data changes the structure of the template", Remedy: remedy,
	}}
}

// usedKeys returns the names that the template takes from its data at the top
// level, and the line of the first use of each.
func usedKeys(src string, trees []*parse.Tree) map[string]int {
	keys, at := map[string]int{}, newLines(src)
	note := func(n parse.Node, names []string) {
		if len(names) == 0 {
			return
		}
		if _, seen := keys[names[0]]; !seen {
			keys[names[0]] = at.of(n)
		}
	}

	for _, t := range trees {
		walkNodes(t.Root, func(n parse.Node) {
			switch n := n.(type) {
			case *parse.FieldNode:
				note(n, n.Ident)
			case *parse.VariableNode:
				if n.Ident[0] == "$" {
					note(n, n.Ident[1:])
				}
			}
		})
	}

	return keys
}

func checkSource(file, src string) error {
	switch {
	case len(src) > maxSource:
		return inventory.Problems{{File: file, What: fmt.Sprintf("is larger than %d KiB", maxSource>>10)}}
	case !utf8.ValidString(src):
		return inventory.Problems{{File: file, What: "is not UTF-8 text"}}
	case strings.TrimSpace(src) == "":
		return inventory.Problems{{File: file, What: "is empty"}}
	}
	return nil
}

// document reads the rendered text.
func (o output) document() (document, error) {
	var doc document
	err := strictyaml.Decode(o.file, []byte(o.text), &doc)
	var p inventory.Problems

	if errors.As(err, &p) {
		for i := range p {
			p[i].Line = o.sourceLine(p[i].Line)
		}
		return doc, p
	}
	return doc, err
}

// line returns the line of the source from which the field at path came.
func (o output) line(path string) int {
	at := strictyaml.Locate(o.file, []byte(o.text), inventory.Problems{{Field: path}})
	return o.sourceLine(at[0].Line)
}
