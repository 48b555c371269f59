package template

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/ingotmetal/ingot/action"
)

// Secret references. A template's .nonce and so on render to these markers;
// they stay in the plan, and Resolve replaces them when the action is assigned
// to the agent. They are plain words to YAML wherever they stand.
const (
	RefPhoneHomeURL = "ingot@@phone-home-url@@" // where the installed system reports, nonce included
	RefMetadataURL  = "ingot@@metadata-url@@"   // NoCloud seed of the machine, with / at its end
	RefNonce        = "ingot@@nonce@@"          // what the installed system proves itself with
	RefUserData     = "ingot@@user-data@@"      // the machine's user-data
	RefVendorData   = "ingot@@vendor-data@@"    // the machine's vendor-data
)

var refs = []string{RefPhoneHomeURL, RefMetadataURL, RefNonce, RefUserData, RefVendorData}

var marker = regexp.MustCompile(`ingot@@[a-z][a-z-]*@@`)

// Resolve returns a with every secret reference in its environment and its
// command replaced by what lookup says; lookup is given the whole marker (one
// of the Ref constants), each once. a itself stays as it is. The error of
// lookup comes back wrapped, with the reference and never with its value.
func Resolve(a action.Action, lookup func(ref string) (string, error)) (action.Action, error) {
	known := map[string]string{}
	var failed error
	replace := func(s string) string {
		return marker.ReplaceAllStringFunc(s, func(ref string) string {
			if v, ok := known[ref]; ok {
				return v
			}
			if failed != nil {
				return ref
			}
			if !slices.Contains(refs, ref) {
				failed = fmt.Errorf("resolving %q of action %q: no such reference", ref, a.Name)
				return ref
			}
			v, err := lookup(ref)
			if err != nil {
				failed = fmt.Errorf("resolving %q of action %q: %w", ref, a.Name, err)
				return ref
			}
			known[ref] = v
			return v
		})
	}
	a.Environment = maps.Clone(a.Environment)
	for k, v := range a.Environment {
		a.Environment[k] = replace(v)
	}
	a.Command = slices.Clone(a.Command)
	for i, v := range a.Command {
		a.Command[i] = replace(v)
	}
	if failed != nil {
		return action.Action{}, failed
	}
	return a, nil
}

// Refers tells whether a carries the secret reference ref.
func Refers(a action.Action, ref string) bool {
	found := false
	_, err := Resolve(a, func(r string) (string, error) {
		found = found || r == ref
		return "", nil
	})
	return err == nil && found
}
