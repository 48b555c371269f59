package template

import (
	"fmt"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// checker collects the problems of a document.
type checker struct {
	out  output
	doc  document
	data *Data // nil: check only what needs no data
	// unknown reports whether a text contains a placeholder, so that its value cannot be checked.
	unknown  func(string) bool
	problems inventory.Problems
}

func (c *checker) add(path, remedy, format string, args ...any) {
	c.problems = append(c.problems, inventory.Problem{
		File: c.out.file, Line: c.out.line(path), Field: path, What: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

func (c *checker) open(s string) bool { return c.unknown != nil && c.unknown(s) }

// actionsPage documents the environment of every native action.
const actionsPage = "docs/templates.md"

// planner creates the actions of a run, and checks what depends on its machine.
type planner struct {
	check    *checker
	data     *Data
	wrapped  map[string]string // see unwrap
	why      Explanation
	warnings []string
}

// linter checks what the unrendered template shows of the actions, without a machine.
type linter struct {
	check   *checker
	wrapped map[string]string // see unwrap
	// unplannable are problems with which a template may be stored: see Template.
	unplannable inventory.Problems
}

// A place is an action in the unrendered template.
type place struct {
	source     strictyaml.Document
	task, step string
	// conditions means that the template has conditions, so a missing variable may exist for some
	// machines.
	conditions bool
}

// isLiteral reports whether the unrendered template sets the variable to this value.
func (p place) isLiteral(name, value string) bool {
	for _, path := range []string{p.step, p.task} {
		if path += ".environment." + name; p.source.Has(path) {
			return p.source.Text(path) == value
		}
	}
	return false
}
