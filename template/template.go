// Package template renders a Tinkerbell template (format 0.1) for a machine into the actions of a
// run.
//
// A template is YAML that contains expressions of Go's text/template. A missing key is an error. Templates can call only a fixed set of
// functions, which access nothing outside and cannot take long. After rendering, the document is checked again, because data could
// contain YAML. A rendering cannot be stopped from outside, so it limits itself: every loop pass, every call of a named template and
// every function call is a step that checks the deadline, and no value may become so large that one step takes long. See limits.go.
package template

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"text/template/parse"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Time-outs that are used if the template gives none or 0. Every action thus has a time-out greater than zero.
const (
	DefaultActionTimeout action.Seconds = 3600
	DefaultGlobalTimeout action.Seconds = 7200
)

// DefaultDisk is the path of the bound disk if neither the template nor the machine names one.
const DefaultDisk = "/dev/sda"

// renderTime is the time limit of a rendering if the caller's deadline is later.
const renderTime = 5 * time.Second

// A Template is a parsed template.
type Template struct {
	File   string // file name given to Parse, for messages
	Name   string // name in the document; "" if it depends on data
	Source string
	// Keys are the top-level names of data that the template uses (device_1, Hardware …), sorted.
	Keys []string
	// Notes are remarks about variables that no action reads, and about images from registries that count as mirrors.
	Notes inventory.Problems
	// Unplannable are problems with which every run would fail in the phase plan. A template with such problems may be stored,
	// because adding something to the server, such as an image, can solve them.
	Unplannable inventory.Problems
}

// Parse parses a template. It reports as inventory.Problems everything that can be checked without
// data: syntax, keys, names, images, environments, time-outs and the order of actions. file is used
// only in messages.
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
			What: "references are not supported", Remedy: "give the value in the hardware map",
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

		// Errors that are not limits are ignored, because missing data may be the cause: {{ index .list 3 }}.
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
	l := linter{check: &c, wrapped: c.unwrap()}
	c.checkStructure()
	t.Notes = l.checkEnvironments(t.Source, trees)
	t.Unplannable = l.unplannable
	problems = append(problems, c.problems...)
	return t, problems.Err()
}

var nameLine = regexp.MustCompile(`(?m)^name:[ \t]*["']?([A-Za-z0-9._-]+)["']?[ \t]*(#.*)?\r?$`)

// literalName returns the name of the template src without rendering it; "" if src has no name or the name depends on data.
func literalName(src string) string {
	if m := nameLine.FindStringSubmatch(src); m != nil {
		return m[1]
	}
	return ""
}

// Render renders the template src with the data d. name is the template's name, which messages contain in place of a file name. Problems
// of the template, or of the data for it, are an inventory.Problems with lines of src.
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
	p := planner{check: &c, data: &d, wrapped: c.unwrap()}
	c.checkStructure()
	r := p.makeActions()
	if r.Name == "" {
		r.Name = name
	}
	if err := c.problems.Err(); err != nil {
		return Rendered{}, err
	}
	return r, nil
}

// sameShape returns an error if a value of the data has changed the structure of doc, for example by adding a task. To find out, it renders
// the template again with data in which harmless has replaced everything that YAML could interpret, and compares the structures.
func sameShape(ctx context.Context, src string, d Data, out output, doc document) error {
	values, err := d.values()
	if err != nil {
		return err
	}
	if !harmless(values) {
		return nil // no value contains anything that YAML could misread
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
			What: "cannot be rendered with placeholders for its data, so the effect of the data on the template's structure cannot be checked",
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

// usedKeys returns the top-level names of data that the template uses. The values are the lines of the first uses.
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
