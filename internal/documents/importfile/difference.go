package importfile

import (
	"fmt"
	"slices"
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

// Merge returns the machine that is stored in place of old. For Ingot's own form this is m. Other formats lack some
// fields of a machine; these fields keep their values in old.
func (m Machine) Merge(old inventory.Machine) inventory.Machine {
	if m.Own {
		return m.Machine
	}
	return inventory.Merge(old, m.Machine, m.says)
}

// wordless holds the fields of interfaces and BMCs for which only Ingot's own form has a word.
var wordless = []string{"loader", "fingerprint", "bootPath", "mac", "command", "consumerURL"}

// saysAlways reports whether a document of Tinkerbell sets a field of inventory.Machine even if the document leaves the field
// empty. This applies to labels, and to the fields of interfaces and BMCs except the password and the fields in wordless.
func saysAlways(field string) bool {
	first, _, _ := strings.Cut(field, "[")
	first, _, within := strings.Cut(first, ".")
	last := field[strings.LastIndexByte(field, '.')+1:]
	switch first {
	case "labels":
		return true
	case "interfaces", "bmc":
		return (within || strings.Contains(field, "].")) && !slices.Contains(wordless, last) && field != "bmc.password"
	}
	return false
}

// Differences returns the fields in which next differs from old, sorted, with the values as the inventory shows
// them. It leaves out a secret that both machines have, because the stored secret cannot be read for a comparison.
func Differences(old, next inventory.Machine) ([]Change, error) {
	all, err := inventory.Differences(old, next)
	var out []Change
	for _, c := range all {
		if c.Old != inventory.SecretStored || c.New != inventory.SecretGiven {
			out = append(out, Change(c))
		}
	}
	return out, err
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
