package importfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// A Change is a field that an import changes.
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

// Merge returns m as it is to be stored over old, the stored machine. A format that is not
// Ingot's own has no word for some fields; what is stored in those stays.
func (m Machine) Merge(old inventory.Machine) inventory.Machine {
	if m.Own {
		return m.Machine
	}
	return inventory.Merge(old, m.Machine, m.says)
}

// wordless are the fields for which no format but Ingot's own has a word.
var wordless = []string{"loader", "fingerprint", "bootPath", "mac", "command", "consumerURL"}

// saysAlways reports whether a document of Tinkerbell says what a field of a machine is, even if it
// leaves the field empty: labels, and what it has words for in interfaces and BMCs.
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

// Differences returns the fields in which next differs from old, as the inventory shows
// them, sorted. A secret that is given is not compared: what is stored cannot be read.
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

// TextChange returns the lines in which a text differs: those between its first and its last
// difference.
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
