package importfile

import (
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// A Change is a field whose value an import changes.
type Change inventory.Change

// String returns "FIELD: OLD → NEW".
func (c Change) String() string {
	show := func(s string) string {
		if s == "" {
			return "–"
		}
		return clip(s)
	}
	return fmt.Sprintf("%s: %s → %s", c.Field, show(c.Old), show(c.New))
}

// TextChange returns the lines of old and of next from the first line that differs to the last one.
func TextChange(field, old, next string) Change {
	a, b := strings.SplitAfter(old, "\n"), strings.SplitAfter(next, "\n")
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return Change{Field: field, Old: strings.Join(a, ""), New: strings.Join(b, "")}
}
