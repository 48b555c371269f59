package agent

import (
	"testing"

	"github.com/ingotmetal/ingot/action"
)

// The agent carries out every native action, and no other one.
func TestEveryNativeActionIsImplemented(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, name := range action.Natives() {
		known[name] = true
		if performers[name] == nil && !action.Leaves(name) {
			t.Errorf("%s: this agent does not carry it out", name)
		}
	}
	for name := range performers {
		if !known[name] {
			t.Errorf("%s: package action does not list it", name)
		}
	}
}
