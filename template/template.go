// Package template renders a Tinkerbell template (format 0.1) for a machine into the actions of a
// run.
//
// A template is YAML that contains expressions of Go's text/template. A missing key is an error. Templates can call only a fixed set of
// functions, which access nothing outside and cannot take long. After rendering, the document is checked again, because data could contain
// YAML. text/template cannot be stopped from outside. Therefore every pass of a loop, every call of a named template and every function
// call is a step that checks the deadline, and no value may become so large that one step takes long. See limits.go.
package template

import (
	"cmp"
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

// Time-outs that are used if the template sets none, or 0. So every action has a time-out greater than zero.
const (
	DefaultActionTimeout action.Seconds = 3600
	DefaultGlobalTimeout action.Seconds = 7200
)

// DefaultDisk is the path by which the run's disk is named if neither the template nor the machine names one.
const DefaultDisk = "/dev/sda"

// renderTime is how long rendering may take. The caller may set an earlier deadline.
const renderTime = 5 * time.Second

// A Template is a parsed template.
type Template struct {
	File   string // file name that was given to Parse, for error messages
	Name   string // name in the template; "" if it depends on data
	Source string
	// Keys are the top-level names of data that the template reads (device_1, Hardware …), sorted.
	Keys []string
	// Notes are remarks about variables that no action reads, images whose registries count as mirrors, and files without a digest.
	Notes inventory.Problems
}

// A Linted describes a template without problems, in the form in which the API shows it.
type Linted struct {
	Name  string             `json:"name"` // "" if the name depends on data
	Keys  []string           `json:"keys"` // top-level names of data that the template reads, sorted
	Notes inventory.Problems `json:"notes"`
}

// Lint parses a template, and returns as inventory.Problems why it cannot be stored. file is used only in error messages.
func Lint(file string, src []byte) (Linted, error) {
	t, err := Parse(file, src)
	if err != nil {
		return Linted{}, err
	}
	return Linted{Name: t.Name, Keys: append([]string{}, t.Keys...), Notes: append(inventory.Problems{}, t.Notes...)}, nil
}

// Parse parses a template, and checks everything that can be checked without data: syntax, keys, names, images, environments, time-outs and
// the order of actions. Problems are returned as inventory.Problems. file is used only in error messages.
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

		// Ignore other errors, because missing data may be the cause, as in {{ index .list 3 }}.
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
	problems = append(problems, c.problems...)
	return t, problems.Err()
}

var nameLine = regexp.MustCompile(`(?m)^name:[ \t]*["']?([A-Za-z0-9._-]+)["']?[ \t]*(#.*)?\r?$`)

// literalName returns the name of the template src, without rendering it. It returns "" if src has no name, or if the name depends on data.
func literalName(src string) string {
	if m := nameLine.FindStringSubmatch(src); m != nil {
		return m[1]
	}
	return ""
}

// Render renders the template src with the data d. Messages contain name, the template's name, in place of a file name. If there are
// problems in the template or in the data for it, the error is an inventory.Problems with lines of src.
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
	r.Name = cmp.Or(r.Name, name)
	if err := c.problems.Err(); err != nil {
		return Rendered{}, err
	}
	return r, nil
}

// sameShape returns an error if a value of the data has changed the structure of doc, for example by adding a task. To find out, it renders
// the template again with data in which harmless has replaced everything that YAML could interpret. Then it compares the two structures.
func sameShape(ctx context.Context, src string, d Data, out output, doc document) error {
	values, err := d.values()
	if err != nil {
		return err
	}
	if !harmless(values) {
		return nil // no value contains anything that YAML could interpret
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
			What: "cannot be rendered with placeholders in place of its data, so it is unknown whether the data changes the template's structure",
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

// usedKeys returns the top-level names of data that the template reads. The value is the line in which the name is read first.
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
