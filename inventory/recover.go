package inventory

import (
	"fmt"
	"slices"
)

// RecoverOrder returns the machines of a recovery in groups, which are installed one after the other. The machines are those in names or,
// if selector is given, those in service that have all its labels. Machines that are in no group of order form the last group, in the order
// of names, or sorted by name if selector chose them. The error contains all problems.
func RecoverOrder(all []Machine, names []string, selector map[string]string, order [][]string) ([][]string, error) {
	var ps Problems
	known, chosen := map[string]bool{}, map[string]bool{}
	for _, m := range all {
		known[m.Name] = true
		if len(selector) > 0 && m.Standing == nil && carries(m, selector) { // a machine out of service is not chosen by a selector
			chosen[m.Name] = true
		}
	}

	switch {
	case len(names) > 0 && len(selector) > 0:
		ps.Add("selector", "give only one of them", "both machines and a selector are given")
	case len(names) == 0 && len(selector) == 0:
		ps.Add("machines", "name machines, or give a selector of labels", "no machine is named")
	case len(names) == 0 && len(chosen) == 0:
		ps.Add("selector", "list labels with: ingot machine list", "no machine in service carries these labels")
	}

	for n, name := range names {
		field := fmt.Sprintf("machines[%d]", n)
		switch {
		case !known[name]:
			ps.Add(field, "list machines with: ingot machine list", "there is no machine %q", name)
		case chosen[name] && len(selector) == 0:
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

// carries reports whether m has every label of selector.
func carries(m Machine, selector map[string]string) bool {
	for k, v := range selector {
		if have, ok := m.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}
