package inventory

import (
	"reflect"
	"slices"
	"strings"
)

// A fieldRule is how a field of Machine is merged and compared. A field without one is a
// value: it is compared, and one that a document leaves out stays as it is stored.
type fieldRule int

const (
	isValue  fieldRule = iota
	isKey              // identifies the object; never merged
	isState            // the store sets it; no document changes it
	isSecret           // compared in the store alone; see SecretFields
	isStored           // says that a secret is stored
	byField            // each of its fields is merged
	byMAC              // a list whose elements are merged with those of the same MAC
	byEntry            // a map whose entries are merged
)

// fieldRules are the exceptions, by path: names as in JSON, or as in Go where JSON has none.
var fieldRules = map[string]fieldRule{
	"name": isKey, "standing": isState, "Installation": isState, "created": isState, "updated": isState,
	"userData": isSecret, "hasUserData": isStored, "vendorData": isSecret, "hasVendorData": isStored,
	"bmc": byField, "bmc.driver": isKey, "bmc.host": isKey,
	"bmc.password": isSecret, "bmc.hasPassword": isStored, "bmc.Machine": isState, "bmc.Broadcast": isState,
	"interfaces": byMAC, "interfaces[].mac": isKey, "notes": byEntry,
}

// ruleOf returns the rule of a field by its path, such as interfaces[0].mac.
func ruleOf(path string) fieldRule {
	var b strings.Builder
	for part := range strings.SplitSeq(path, "[") {
		if _, rest, cut := strings.Cut(part, "]"); cut {
			part = "[]" + rest
		}
		b.WriteString(part)
	}
	return fieldRules[b.String()]
}

// eachField calls f for the fields of a struct, with their paths.
func eachField(v reflect.Value, path string, f func(path string, field reflect.Value)) {
	for n := range v.NumField() {
		t := v.Type().Field(n)
		name, _, _ := strings.Cut(t.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			name = t.Name
		}
		f(strings.TrimPrefix(path+"."+name, "."), v.Field(n))
	}
}

// DocumentOf returns m as a document has it: without secrets and without what the store sets.
func DocumentOf(m Machine) Machine {
	m.ownBMC()
	drop := func(path string, field reflect.Value) {
		if slices.Contains([]fieldRule{isState, isSecret, isStored}, ruleOf(path)) {
			field.SetZero()
		}
	}
	eachField(reflect.ValueOf(&m).Elem(), "", drop)
	if m.BMC != nil {
		eachField(reflect.ValueOf(m.BMC).Elem(), "bmc", drop)
	}
	return m
}

// ownBMC gives m a copy of its BMC, which may be changed.
func (m *Machine) ownBMC() {
	if m.BMC != nil {
		b := *m.BMC
		m.BMC = &b
	}
}

// A SecretField is a secret of a machine.
type SecretField struct {
	Name   string  // as in a document, such as bmc.password
	Value  *Secret // what was given
	Stored *bool   // one is stored
}

// SecretFields returns the secrets of m, by which they can be changed. m gets a copy of its BMC.
func (m *Machine) SecretFields() []SecretField {
	m.ownBMC()
	out := []SecretField{
		{"userData", &m.UserData, &m.HasUserData},
		{"vendorData", &m.VendorData, &m.HasVendorData},
	}
	if m.BMC != nil {
		out = append(out, SecretField{"bmc.password", &m.BMC.Password, &m.BMC.HasPassword})
	}
	return out
}

// HasSecrets reports whether m comes with secrets that are to be stored.
func (m Machine) HasSecrets() bool {
	return slices.ContainsFunc(m.SecretFields(), func(f SecretField) bool { return !f.Value.IsZero() })
}

// WithoutSecrets returns m with a note that a secret is stored in place of each secret.
func (m Machine) WithoutSecrets() Machine {
	for _, f := range m.SecretFields() {
		*f.Stored, *f.Value = *f.Stored || !f.Value.IsZero(), Secret{}
	}
	return m
}
