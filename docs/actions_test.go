package docs_test

import (
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
)

// TestActionsAreDocumented holds actions.md against what a template may name.
func TestActionsAreDocumented(t *testing.T) {
	table, _, _ := strings.Cut(read(t, "actions.md"), "## ")
	for _, name := range action.Names() {
		if !strings.Contains(table, "`"+name+"`") {
			t.Errorf("actions.md does not name %s", name)
		}
	}
}
