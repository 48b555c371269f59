package template

import (
	"fmt"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// checker checks a rendered template and collects its problems.
type checker struct {
	out  output
	doc  document
	data *Data // nil: there are no data, so only check what does not depend on data
	// unknown reports whether a text contains a placeholder for data; such a text cannot be checked. nil = no text contains one.
	unknown  func(string) bool
	problems inventory.Problems
}

func (c *checker) add(path, remedy, format string, args ...any) {
	c.problems = append(c.problems, inventory.Problem{
		File: c.out.file, Line: c.out.line(path), Field: path, What: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

func (c *checker) open(s string) bool { return c.unknown != nil && c.unknown(s) }

// actionsPage is the page that documents the variables of every native action.
const actionsPage = "docs/templates.md"

// planner makes the actions of a run, and checks them for the run's machine.
type planner struct {
	check    *checker
	data     *Data
	wrapped  map[string]string // see unwrap
	why      Explanation
	warnings []string
	fetches  []Fetch
	// containers are the references to images of containers, each once.
	containers []action.ContainerReference
}

// linter checks the actions without a machine, as far as the unrendered template shows them.
type linter struct {
	check   *checker
	wrapped map[string]string // see unwrap
}

// A place is the position of an action in the unrendered template.
type place struct {
	source     strictyaml.Document
	task, step string
	// conditions: the template contains conditions. So a variable that is missing here may be set when the template is rendered with other
	// data.
	conditions bool
}

// isLiteral reports whether the unrendered template sets the variable called name to exactly this value, without an expression.
func (p place) isLiteral(name, value string) bool {
	for _, path := range []string{p.step, p.task} {
		if path += ".environment." + name; p.source.Has(path) {
			return p.source.Text(path) == value
		}
	}
	return false
}
