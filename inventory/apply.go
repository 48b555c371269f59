package inventory

import (
	"fmt"
	"maps"
	"strconv"
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
	Create    bool // an object that is stored with other values is a conflict
	// Replace holds the kinds of objects that become what the documents say, also where another client has set the values: what a document
	// leaves out is removed. An object of another set stays in it. A machine with a Version replaces that version only.
	Replace []string
	Prune   bool // delete the objects of the set that are in none of these documents
	// PruneOnly, if not nil, holds the objects that Prune may delete, each as KIND/NAME: those that an operator was asked about.
	PruneOnly []string
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

// states reports whether the document that was applied last had the field at path, or a field inside it. An entry of labels or notes is one
// field, though its name may contain dots.
func (l LastApplied) states(path string) bool {
	_, ok := l[path]
	first, _, _ := strings.Cut(path, ".")
	if ok || fieldRules[first] == byEntry {
		return ok
	}
	for p := range l {
		if rest, ok := strings.CutPrefix(p, path); ok && (rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// Merge returns the new version of a machine, completed from the stored version: it copies each field that is missing both from the new
// document and from the document that was applied last.
func (l LastApplied) Merge(stored, given Machine) Machine {
	return Merge(stored, given, func(path string) bool { return l.states(pathByMAC(given, path)) })
}

// ValuesByMAC returns the values of m by path, as Differences shows them. In a path, the MAC of an interface replaces its index.
func ValuesByMAC(m Machine) (map[string]string, error) {
	m = Canonical(m)
	values, err := valuesOf(m)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(values))
	for path, value := range values {
		out[pathByMAC(m, path)] = value
	}
	return out, nil
}

// StatedValues returns those of the values of m that a document can state: all but its secrets, and the driver of a machine without a BMC.
func StatedValues(m Machine, values map[string]string) map[string]string {
	out := maps.Clone(values)
	for _, f := range m.SecretFields() {
		delete(out, f.Name)
	}
	if out["bmc.driver"] == DriverManual {
		delete(out, "bmc.driver") // the same as no BMC, see valuesOf
	}
	return out
}

// pathByMAC returns the path of a field of m. If it is a field of an interface, other than its MAC, the path has the MAC in place of the
// index: another client may change the order of the interfaces.
func pathByMAC(m Machine, path string) string {
	rest, ok := strings.CutPrefix(path, "interfaces[")
	index, field, inside := strings.Cut(rest, "].")
	at, err := strconv.Atoi(index)
	if !ok || !inside || field == "mac" || err != nil || at >= len(m.Interfaces) {
		return path
	}
	return "interfaces[" + m.Interfaces[at].MAC + "]." + field
}

// PathByIndex returns the path of a field of m with the index of an interface in place of its MAC, see ValuesByMAC.
func PathByIndex(m Machine, path string) string {
	for n, i := range Canonical(m).Interfaces {
		if field, ok := strings.CutPrefix(path, "interfaces["+i.MAC+"]."); ok {
			return fmt.Sprintf("interfaces[%d].%s", n, field)
		}
	}
	return path
}
