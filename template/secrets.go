package template

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// refs are the secret references. A template's .nonce and the like are rendered to these markers.
// The markers stay in the plan; Resolve replaces them when the action is assigned to the agent. To
// YAML, they are plain words everywhere.
var refs = []string{
	inventory.RefPhoneHomeURL, inventory.RefMetadataURL, inventory.RefNonce, inventory.RefUserData,
	inventory.RefVendorData, inventory.RefDocumentsURL, inventory.RefWebhookURL, inventory.RefBootURL,
}

// Resolve returns a copy of a in which lookup has replaced every secret reference in the
// environment, the command and the handlers. It calls lookup once per reference with the whole marker, one of the
// Ref constants. An error of lookup is wrapped with the reference, never with its value.
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

// Refers reports whether a contains the secret reference ref.
func Refers(a action.Action, ref string) bool {
	found := false
	_, err := Resolve(a, func(r string) (string, error) {
		found = found || r == ref
		return "", nil
	})
	return err == nil && found
}
