package inventory

import (
	"reflect"
	"slices"
	"strings"
)

// A fieldRule says how a field of Machine is merged and compared. A field without a rule is isValue: it is compared, and if a document
// leaves it out, its stored value stays.
type fieldRule int

const (
	isValue   fieldRule = iota
	isKey               // identifies the object; never merged
	isState             // the store sets it; no document changes it
	isSecret            // a secret; only the store can compare its text, see SecretFields
	isStored            // says whether a secret is stored
	isVersion           // the version that the document was made from; never merged
	byField             // each of its fields is merged
	byMAC               // a list; each element is merged with the stored element of the same MAC
	byEntry             // a map whose entries are merged
)

// fieldRules are the rules of all fields that are not isValue, by path. A path consists of JSON names; a field without a JSON
// name has its Go name.
var fieldRules = map[string]fieldRule{
	"name": isKey, "standing": isState, "Installation": isState, "created": isState, "updated": isState,
	"version":  isVersion,
	"userData": isSecret, "hasUserData": isStored, "vendorData": isSecret, "hasVendorData": isStored,
	"bmc": byField, "bmc.driver": isKey, "bmc.host": isKey,
	"bmc.password": isSecret, "bmc.hasPassword": isStored, "bmc.Machine": isState, "bmc.Broadcast": isState,
	"interfaces": byMAC, "interfaces[].mac": isKey, "labels": byEntry, "notes": byEntry,
}

// ServerFields returns the paths of the fields that the server sets, and no client.
func ServerFields() (out []string) {
	for path, rule := range fieldRules {
		if slices.Contains([]fieldRule{isState, isStored, isVersion}, rule) {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

// ruleOf returns the rule of the field at path, such as interfaces[0].mac.
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

// eachField calls f for each field of the struct v. path is the path of v; f gets the path of the field.
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

// DocumentOf returns a copy of m that has only the fields that a document may set. It leaves out the secrets, the Has fields of the
// secrets, and the fields that the store sets.
func DocumentOf(m Machine) Machine {
	m.ownBMC()
	drop := func(path string, field reflect.Value) {
		if slices.Contains([]fieldRule{isState, isSecret, isStored, isVersion}, ruleOf(path)) {
			field.SetZero()
		}
	}
	eachField(reflect.ValueOf(&m).Elem(), "", drop)
	if m.BMC != nil {
		eachField(reflect.ValueOf(m.BMC).Elem(), "bmc", drop)
	}
	return m
}

// ownBMC replaces m.BMC by a copy, so that changes to m.BMC do not change the BMC of the caller.
func (m *Machine) ownBMC() {
	if m.BMC != nil {
		b := *m.BMC
		m.BMC = &b
	}
}

// A SecretField is a secret of a machine.
type SecretField struct {
	Name   string  // path in a document, such as bmc.password
	Value  *Secret // the secret that was given; zero = none
	Stored *bool   // whether a secret is stored
}

// SecretFields returns the secrets of m. Their pointers point into m, so that the caller can change m. SecretFields first replaces m.BMC by
// a copy.
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

// HasSecrets reports whether m contains the text of a secret. Such a text still has to be stored.
func (m Machine) HasSecrets() bool {
	return slices.ContainsFunc(m.SecretFields(), func(f SecretField) bool { return !f.Value.IsZero() })
}

// WithoutSecrets returns m without the texts of its secrets. For each removed text, the Has field is set.
func (m Machine) WithoutSecrets() Machine {
	for _, f := range m.SecretFields() {
		*f.Stored, *f.Value = *f.Stored || !f.Value.IsZero(), Secret{}
	}
	return m
}
