package importfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// A Change is a field that an import changes; "" is a field that is not set. A secret is
// shown as "(given)" or "(stored)".
type Change struct {
	Field string `json:"field"`
	Old   string `json:"old,omitempty"`
	New   string `json:"new,omitempty"`
}

const (
	secretGiven  = "(given)"
	secretStored = "(stored)"
)

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
	out := m.Machine
	if m.Own {
		return out
	}

	if out.DiskSelector == nil {
		out.DiskSelector = old.DiskSelector
	}
	if len(out.Disks) == 0 {
		out.Disks = old.Disks
	}
	if out.BMC == nil {
		out.BMC = old.BMC
	}
	if out.Template == "" {
		out.Template = old.Template
	}
	if out.Image == "" {
		out.Image = old.Image
	}
	if len(out.SSHKeys) == 0 {
		out.SSHKeys = old.SSHKeys
	}
	if len(out.KernelArgs) == 0 {
		out.KernelArgs = old.KernelArgs
	}
	out.BootFromDisk, out.ProtectedDisks = old.BootFromDisk, old.ProtectedDisks
	out.HasUserData = out.UserData.IsZero() && old.HasUserData
	out.HasVendorData = out.VendorData.IsZero() && old.HasVendorData

	notes := maps.Clone(old.Notes)
	if notes == nil {
		notes = map[string]string{}
	}
	maps.Copy(notes, out.Notes)
	if out.Notes = notes; len(notes) == 0 {
		out.Notes = nil
	}
	return out
}

// Differences returns the fields in which next differs from old, as the inventory shows
// them, sorted. A secret that is given is not compared: what is stored cannot be read.
func Differences(old, next inventory.Machine) ([]Change, error) {
	a, err := fields(old)
	if err != nil {
		return nil, err
	}
	b, err := fields(next)
	if err != nil {
		return nil, err
	}

	var out []Change
	for _, k := range slices.Sorted(maps.Keys(union(a, b))) {
		if a[k] != b[k] && (a[k] != secretStored || b[k] != secretGiven) {
			out = append(out, Change{k, a[k], b[k]})
		}
	}
	return out, nil
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
	return Change{field, strings.Join(a, ""), strings.Join(b, "")}
}

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// fields returns the values of a machine by path, without what storing it does not change.
func fields(m inventory.Machine) (map[string]string, error) {
	m = inventory.Canonical(m)
	m.Standing, m.Installation, m.Created, m.Updated = nil, nil, time.Time{}, time.Time{}
	out := map[string]string{}
	secret := func(field string, s inventory.Secret, stored bool) {
		switch {
		case !s.IsZero():
			out[field] = secretGiven
		case stored:
			out[field] = secretStored
		}
	}
	secret("userData", m.UserData, m.HasUserData)
	secret("vendorData", m.VendorData, m.HasVendorData)
	m.UserData, m.VendorData, m.HasUserData, m.HasVendorData = inventory.Secret{}, inventory.Secret{}, false, false
	if m.BMC != nil {
		b := *m.BMC
		secret("bmc.password", b.Password, b.HasPassword)
		b.Password, b.HasPassword = inventory.Secret{}, false
		m.BMC = &b
	}

	raw, err := json.Marshal(m)
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

// flatten adds the scalars of v by path. A list of scalars is one value.
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
				words = append(words, fmt.Sprint(x))
			}
		}
		if len(words) > 0 {
			out[path] = strings.Join(words, ", ")
		}
	default:
		out[path] = fmt.Sprint(v)
	}
}
