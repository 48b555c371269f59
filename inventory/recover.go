package inventory

import (
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/internal/selector"
)

// RecoverOrder returns the machines of a recovery in groups, which are installed one after the other. The machines are those in names or,
// if names is empty, those in service that s selects. Machines that are in no group of order form the last group, in the order of names, or
// sorted by name if s selected them. An empty s selects none. The error contains all problems.
func RecoverOrder(all []Machine, names []string, s selector.Selector, order [][]string) ([][]string, error) {
	var ps Problems
	known, chosen := map[string]bool{}, map[string]bool{}
	for _, m := range all {
		known[m.Name] = true
		if len(s) > 0 && m.Standing == nil && s.Matches(m.Labels) { // a machine out of service is not chosen by a selector
			chosen[m.Name] = true
		}
	}

	switch {
	case len(names) > 0 && len(s) > 0:
		ps.Add("selector", "give only one of them", "both machines and a selector are given")
	case len(names) == 0 && len(s) == 0:
		ps.Add("machines", "name machines, or give a selector of labels", "no machine is named")
	case len(names) == 0 && len(chosen) == 0:
		ps.Add("selector", "list labels with: ingot machine list --output wide", "%q selects no machine in service", s)
	}

	for n, name := range names {
		field := fmt.Sprintf("machines[%d]", n)
		switch {
		case !known[name]:
			ps.Add(field, "list machines with: ingot machine list", "there is no machine %q", name)
		case chosen[name] && len(s) == 0:
			ps.Add(field, "name it once", "machine %q is named twice", name)
		}

		chosen[name] = true
	}

	var groups [][]string
	placed := map[string]bool{}
	for g, group := range order {
		for n, name := range group {
			field := fmt.Sprintf("order[%d][%d]", g, n)
			switch {
			case !chosen[name]:
				ps.Add(field, "take it out, or add it to the machines", "machine %q is not among those to recover", name)
			case placed[name]:
				ps.Add(field, "name it once", "machine %q is in the order already", name)
			}

			placed[name] = true
		}
		if len(group) > 0 {
			groups = append(groups, slices.Clone(group))
		}
	}

	var rest []string
	for name := range chosen {
		if !placed[name] {
			rest = append(rest, name)
		}
	}

	slices.Sort(rest)
	if len(names) > 0 {
		// Keep the order of names.
		slices.SortStableFunc(rest, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) })
	}
	if len(rest) > 0 {
		groups = append(groups, rest)
	}
	return groups, ps.Err()
}
