package template

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// refs are the references to secrets. In a rendered template and in the plan, a reference takes the place of a secret such as .nonce.
// Resolve replaces it when the action is assigned to the agent. YAML reads a reference as plain text, wherever it is.
var refs = slices.Sorted(maps.Keys(secretTexts))

// Resolve returns a copy of the action a, in which the results of lookup replace all references to secrets: in the environment, in the
// command and in the handlers. It calls lookup once for each reference, which is one of the Ref constants of package inventory. If lookup
// fails, the error contains the reference, but no value.
func Resolve(a action.Action, lookup func(ref string) (string, error)) (action.Action, error) {
	known := map[string]string{}
	var failed error
	replace := func(s string) string {
		v, err := inventory.Resolve(s, func(ref string) (string, error) {
			if v, ok := known[ref]; ok {
				return v, nil
			}
			if !slices.Contains(refs, ref) {
				return "", errors.New("no such reference")
			}

			v, err := lookup(ref)
			if err == nil {
				known[ref] = v
			}
			return v, err
		})
		if err != nil && failed == nil {
			failed = fmt.Errorf("action %q: %w", a.Name, err)
		}
		return v
	}

	if a = a.Rewrite(replace); failed != nil {
		return action.Action{}, failed
	}
	return a, nil
}

// Refers reports whether the action a contains the reference ref.
func Refers(a action.Action, ref string) bool {
	found := false
	_, err := Resolve(a, func(r string) (string, error) {
		found = found || r == ref
		return "", nil
	})
	return err == nil && found
}
