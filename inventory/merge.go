package inventory

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Merge returns the new version of a machine, completed from the stored version: it copies each field that the new version leaves out, and
// each field that only the store sets. A field is left out if it is empty and the document does not state it. Merge calls says with the
// path of an empty field, such as interfaces[0].gateway; the result is true if the document states the field. If says is nil, every empty
// field is left out.
//
// Interfaces with the same MAC are merged, BMCs with the same driver and host field by field, labels and notes by name. Any other list or
// object is one value.
func Merge(stored, given Machine, says func(field string) bool) Machine {
	if says == nil {
		says = func(string) bool { return false }
	}
	given.ownBMC()
	given.Interfaces = slices.Clone(given.Interfaces)
	g := merging{says}
	g.fields("", reflect.ValueOf(stored), reflect.ValueOf(&given).Elem())

	before := stored.SecretFields()
	for _, f := range given.SecretFields() {
		n := slices.IndexFunc(before, func(x SecretField) bool { return x.Name == f.Name })
		same := f.Name != "bmc.password" || sameController(stored.BMC, given.BMC)
		if f.Value.IsZero() && n >= 0 && same && !says(f.Name) {
			*f.Stored = *before[n].Stored
		}
	}
	return given
}

func sameController(a, b *BMC) bool {
	return a != nil && b != nil && a.Driver == b.Driver && a.Host == b.Host
}

type merging struct{ says func(field string) bool }

// fields merges each field of the struct stored into the same field of given.
func (g merging) fields(path string, stored, given reflect.Value) {
	before := map[string]reflect.Value{}
	eachField(stored, path, func(path string, f reflect.Value) { before[path] = f })
	eachField(given, path, func(path string, f reflect.Value) { g.value(path, before[path], f) })
}

// value merges the stored value of the field at path into the given value.
func (g merging) value(path string, stored, given reflect.Value) {
	rule := ruleOf(path)
	switch left := isEmpty(given) && !g.says(path); {
	case rule == isKey, rule == isSecret, rule == isStored, rule == isVersion:
	case rule == byEntry && !isEmpty(stored) && !g.says(path):
		all := maps.Clone(stored.Interface().(map[string]string))
		maps.DeleteFunc(all, func(k, _ string) bool { return g.says(path + "." + k) })
		maps.Copy(all, given.Interface().(map[string]string))
		given.Set(reflect.ValueOf(all))
	case rule == isState, left:
		given.Set(stored)
	case rule == byField && !isEmpty(stored):
		if a, b := stored.Interface().(*BMC), given.Interface().(*BMC); sameController(a, b) {
			g.fields(path, stored.Elem(), given.Elem())
		}
	case rule == byMAC:
		g.interfaces(path, stored, given)
	}
}

// interfaces merges each interface of given with the stored interface that has the same MAC.
func (g merging) interfaces(path string, stored, given reflect.Value) {
	list := stored.Interface().([]Interface)
	for n := range given.Len() {
		x := given.Index(n)
		mac := x.Interface().(Interface).MAC
		if at := slices.IndexFunc(list, func(i Interface) bool { return i.MAC == mac }); at >= 0 {
			g.fields(fmt.Sprintf("%s[%d]", path, n), stored.Index(at), x)
		}
	}
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// A Change is a field in which two objects differ, with both values. The value "" means that the field is not set. For a secret, the value
// is SecretGiven or SecretStored.
type Change struct {
	Field    string `json:"field"`
	Old      string `json:"old,omitempty"`
	New      string `json:"new,omitempty"`
	Conflict bool   `json:"conflict,omitempty"` // the old value is not the one that was applied last, see Application
}

// Values that a Change shows in place of a secret.
const (
	SecretGiven  = "(given)"
	SecretStored = "(stored)"
)

// Differences returns the fields in which the canonical forms of next and old differ, sorted by path. Fields that the store sets are not
// compared. If next gives a secret, the secret counts as different, because a stored secret cannot be read.
func Differences(old, next Machine) ([]Change, error) {
	a, err := valuesOf(old)
	if err != nil {
		return nil, err
	}
	b, err := valuesOf(next)
	if err != nil {
		return nil, err
	}

	return Changes(a, b), nil
}

// Changes returns the paths at which the values of old and next differ, sorted.
func Changes(old, next map[string]string) (out []Change) {
	names := maps.Clone(old)
	maps.Copy(names, next)
	for _, k := range slices.Sorted(maps.Keys(names)) {
		if old[k] != next[k] {
			out = append(out, Change{Field: k, Old: old[k], New: next[k]})
		}
	}
	return out
}

// valuesOf returns the values of a machine by path.
func valuesOf(m Machine) (map[string]string, error) {
	m = Canonical(m)
	m.BMC = cmp.Or(m.BMC, &BMC{Driver: DriverManual}) // no BMC means the same
	out := map[string]string{}
	for _, f := range m.SecretFields() {
		switch {
		case !f.Value.IsZero():
			out[f.Name] = SecretGiven
		case *f.Stored:
			out[f.Name] = SecretStored
		}
	}

	raw, err := json.Marshal(DocumentOf(m))
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	flatten(v, "", out)
	return out, nil
}

// emptyEntry is what valuesOf returns for an entry of labels or notes without a value, because "" is an entry that does not exist.
const emptyEntry = `""`

// flatten adds each scalar in v to out, by its path. A list of scalars counts as one scalar.
func flatten(v any, path string, out map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			flatten(x, strings.TrimPrefix(path+"."+k, "."), out)
		}
	case []any:
		var words []string
		for n, x := range v {
			switch x.(type) {
			case map[string]any, []any:
				flatten(x, fmt.Sprintf("%s[%d]", path, n), out)
			default:
				word := fmt.Sprint(x)
				if strings.Contains(word, ", ") || strings.HasPrefix(word, `"`) {
					word = strconv.Quote(word) // lists with different elements are different texts
				}
				words = append(words, word)
			}
		}
		if len(words) > 0 {
			out[path] = strings.Join(words, ", ")
		}
	case nil:
	case string:
		out[path] = v
		if first, _, _ := strings.Cut(path, "."); v == "" && fieldRules[first] == byEntry {
			out[path] = emptyEntry
		}
	default:
		out[path] = fmt.Sprint(v)
	}
}
