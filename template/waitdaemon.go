package template

import (
	"fmt"
	"maps"
	"strings"

	"github.com/ingotmetal/ingot/action"
)

// unwrap replaces each waitdaemon in the document by the action that it would start. If it would run a command in a container, unwrap
// replaces it by an action that does the same. It keeps a waitdaemon whose environment is wrong, which other checks report, or depends on
// data. unwrap returns the images of the replaced waitdaemons, by the path of the action.
func (c *checker) unwrap() map[string]string {
	wrapped := map[string]string{}
	for i, t := range c.doc.Tasks {
		for j := range t.Actions {
			s := &t.Actions[j]
			native, _ := s.native()
			env := environmentOf(t, *s).values
			inner := env[action.InnerImageVariable]
			if native != action.WaitDaemon || c.open(inner) {
				continue
			}
			if action.Check(native, env) != nil {
				leaving, ok := action.LeavingCommand(s.Command)
				rest := maps.Clone(env)
				rest[action.InnerImageVariable] = leaving
				if !ok || inner == "" || action.Check(native, rest) != nil {
					continue
				}
				inner, s.Command = leaving, nil
			}

			wrapped[fmt.Sprintf("tasks[%d].actions[%d]", i, j)] = s.Image
			s.Image, s.Environment = inner, maps.Clone(s.Environment)
			for _, v := range action.Describe(native).Variables {
				delete(s.Environment, v.Name)
			}
		}
	}
	return wrapped
}

// explainWrapped adds a remark to why.Rule if the action at path has replaced a waitdaemon.
func (p *planner) explainWrapped(path string, why *ActionExplanation) {
	if outer := p.wrapped[path]; outer != "" {
		why.Rule = strings.Join([]string{outer + " starts it", why.Rule}, "; ")
	}
}
