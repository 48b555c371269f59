package template

import (
	"fmt"
	"maps"
	"strings"

	"github.com/ingotmetal/ingot/action"
)

// unwrap replaces each waitdaemon by the action that it starts, or by the action that does the same as the command of its container. A
// waitdaemon stays if its environment is wrong, which its check reports, or not known without data. unwrap returns the images of the
// replaced waitdaemons, by the path of the action.
func (c *checker) unwrap() map[string]string {
	wrapped := map[string]string{}
	for i, t := range c.doc.Tasks {
		for j := range t.Actions {
			s := &t.Actions[j]
			native, _ := action.Native(s.Image)
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

// explainWrapped adds to why.Rule that the action at path replaces a waitdaemon, if it does.
func (p *planner) explainWrapped(path string, why *ActionExplanation) {
	if outer := p.wrapped[path]; outer != "" {
		why.Rule = strings.Join([]string{outer + " starts it", why.Rule}, "; ")
	}
}
