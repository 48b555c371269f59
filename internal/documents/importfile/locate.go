package importfile

import (
	"regexp"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Places returns where each object was written, by kind and name, such as "machine node-1".
func (x Import) Places() map[string]Place {
	out := map[string]Place{}
	for _, t := range x.Templates {
		out[inventory.KindTemplate+" "+t.Name] = t.Place
	}
	for _, m := range x.Machines {
		out[inventory.KindMachine+" "+m.Name] = m.Place
	}
	return out
}

// machineInProblem matches the text of a problem that names its machine.
var machineInProblem = regexp.MustCompile(`^machine "([^"]+)": `)

// Locate adds file and line to problems that were found when the objects were stored, and returns them. The field of such a problem
// begins with the name of its object, unless there is only one.
func (x Import) Locate(ps inventory.Problems) inventory.Problems {
	places, machines := x.Places(), map[string]int{}
	for n, m := range x.Machines {
		machines[m.Name] = n
	}
	for n, p := range ps {
		of, field, _ := strings.Cut(p.Field, ": ")
		if m := machineInProblem.FindStringSubmatch(p.What); m != nil {
			of, field = m[1], strings.TrimPrefix(p.Field, m[1]+": ")
		}
		at, known := machines[of]
		if !known && len(x.Machines) == 1 && len(x.Templates) == 0 {
			known, field = true, p.Field
		}
		switch place, ok := places[inventory.KindTemplate+" "+of]; {
		case known:
			m := x.Machines[at]
			ps[n].File, ps[n].Line, ps[n].Field = m.File, m.LineOf(inventory.PathByIndex(m.Machine, field)), field
		case ok:
			ps[n].File, ps[n].Line, ps[n].Field = place.File, place.Line, field
		}
	}
	return ps
}
