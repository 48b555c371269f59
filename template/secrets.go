package template

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// refs are the references to secrets. Rendering a template replaces .nonce and the like by these references. The plan contains them;
// Resolve replaces them when the action is assigned to the agent. Anywhere in YAML, a reference is plain text.
var refs = []string{
	inventory.RefPhoneHomeURL, inventory.RefMetadataURL, inventory.RefNonce, inventory.RefUserData,
	inventory.RefVendorData, inventory.RefDocumentsURL, inventory.RefWebhookURL, inventory.RefBootURL,
}

// Resolve returns a copy of a in which every reference to a secret is replaced by the result of lookup: in the environment, the command
// and the handlers. It calls lookup once for each reference, which is one of the Ref constants of package inventory. An error of
// lookup is wrapped with the reference, never with a value.
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

	a.Environment = maps.Clone(a.Environment)
	for k, v := range a.Environment {
		a.Environment[k] = replace(v)
	}
	for _, words := range []*[]string{&a.Command, &a.OnTimeout, &a.OnFailure} {
		*words = slices.Clone(*words)
		for i, v := range *words {
			(*words)[i] = replace(v)
		}
	}
	if failed != nil {
		return action.Action{}, failed
	}
	return a, nil
}

// Refers reports whether a contains the reference ref.
func Refers(a action.Action, ref string) bool {
	found := false
	_, err := Resolve(a, func(r string) (string, error) {
		found = found || r == ref
		return "", nil
	})
	return err == nil && found
}
