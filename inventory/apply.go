package inventory

import (
	"fmt"
	"strings"
)

// An Application is what documents describe, to be stored together. The documents of a set are applied under the same name of the set,
// again and again. The store remembers what was applied last. A stored value that is not the one that was applied last is not overwritten:
// it is a conflict. A field that an earlier document had and this one has not is removed; a field that no document of the set ever had
// stays.
type Application struct {
	Set       string // name of the set; "" is the set without a name
	Machines  []Machine
	Templates []Template
	Force     bool // overwrite conflicting values, and take objects over from other sets
	Prune     bool // delete the objects of the set that are in none of these documents
	DryRun    bool // store nothing; conflicts are only reported in the result
}

// Kinds of objects that an Application contains.
const (
	KindMachine  = "machine"
	KindTemplate = "template"
)

// What applying did with an object or, after a dry run, would do.
const (
	ResultAdded     = "added"
	ResultChanged   = "changed"
	ResultUnchanged = "unchanged"
	ResultDeleted   = "deleted"
	ResultKept      = "kept" // not deleted, for the reason in Why
)

// An Applied is the result of an Application for one object.
type Applied struct {
	Kind    string   `json:"kind"` // machine or template
	Name    string   `json:"name"`
	Result  string   `json:"result"`
	Changes []Change `json:"changes,omitempty"`
	Why     string   `json:"why,omitempty"`
	// Foreign is the other set to which the object belongs. That is a conflict.
	Foreign *string `json:"foreign,omitempty"`
}

// Conflicts returns a problem for each value of a that is in conflict.
func (a Applied) Conflicts() (ps Problems) {
	const remedy = "correct the document, or overwrite it with --force-conflicts"
	object := fmt.Sprintf("%s %q", a.Kind, a.Name)
	if a.Foreign != nil {
		ps.Add(a.Name, "apply it with --set, or take it over with --force-conflicts", "%s belongs to the set %q", object, *a.Foreign)
	}
	for _, c := range a.Changes {
		switch {
		case c.Conflict && c.Old == "":
			ps.Add(a.Name+": "+c.Field, remedy, "%s: another client has removed %s", object, c.Field)
		case c.Conflict:
			ps.Add(a.Name+": "+c.Field, remedy, "%s: another client has set %s to %s", object, c.Field, shown(c.Old))
		}
	}
	return ps
}

// shown returns a value for a message of one line.
func shown(value string) string {
	const limit = 60
	line, _, more := strings.Cut(value, "\n")
	if r := []rune(line); len(r) > limit {
		line, more = string(r[:limit]), true
	}
	switch {
	case value == SecretStored:
		return "another secret"
	case more:
		return fmt.Sprintf("%q…", line)
	}
	return fmt.Sprintf("%q", line)
}

// LastApplied is what was applied last to an object: for each field that the document had, a digest of its value.
type LastApplied map[string]string

// States reports whether the document that was applied last had the field at path, or a field inside it. It is an argument of Merge, which
// asks for the entries of labels and notes one by one.
func (l LastApplied) States(path string) bool {
	if _, ok := l[path]; ok || ruleOf(path) == byEntry {
		return ok
	}
	for p := range l {
		if rest, ok := strings.CutPrefix(p, path); ok && (rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// AppliedValues returns the values that the document m has, by path. Secrets are left out.
func AppliedValues(m Machine) (map[string]string, error) {
	values, err := valuesOf(m)
	if err != nil {
		return nil, err
	}
	for _, f := range m.SecretFields() {
		delete(values, f.Name)
	}
	if m.BMC == nil {
		delete(values, "bmc.driver") // valuesOf adds it
	}
	return values, nil
}
