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
	// unknown reports whether a text contains a placeholder for data, so that it cannot be checked; nil = no text does.
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

// planner makes the actions of a run, and checks what depends on the machine.
type planner struct {
	check    *checker
	data     *Data
	wrapped  map[string]string // see unwrap
	why      Explanation
	warnings []string
}

// linter checks the actions as far as the unrendered template shows them, without a machine.
type linter struct {
	check   *checker
	wrapped map[string]string // see unwrap
	// unplannable becomes Template.Unplannable.
	unplannable inventory.Problems
}

// A place is an action in the unrendered template.
type place struct {
	source     strictyaml.Document
	task, step string
	// conditions means that the template contains conditions, so that a variable may be missing only in this rendering.
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
