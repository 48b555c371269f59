package inventory

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// filled returns a machine in which every field of every part is set.
func filled(t *testing.T) Machine {
	t.Helper()
	var m Machine
	fill(t, "Machine", reflect.ValueOf(&m).Elem())
	return m
}

func fill(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	switch v.Interface().(type) {
	case Secret:
		v.Set(reflect.ValueOf(NewSecret("x")))
		return
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("10.0.0.1")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("10.0.0.0/24")))
		return
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for n := range v.NumField() {
			require.True(t, v.Type().Field(n).IsExported(), "%s.%s is not exported", path, v.Type().Field(n).Name)
			fill(t, path+"."+v.Type().Field(n).Name, v.Field(n))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, path, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, path+"[]", v.Index(0))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"x": "x"}))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64:
		v.SetUint(1)
	default:
		t.Fatalf("%s has a type that is neither compared nor merged: %s", path, v.Type())
	}
}

// eachPart calls f for each field below v, with its path and whether Merge looks at it on its own.
func eachPart(v reflect.Value, path string, alone bool, f func(path string, alone bool, field reflect.Value)) {
	eachField(v, path, func(path string, field reflect.Value) {
		f(path, alone, field)
		rule := ruleOf(path)
		inner := reflect.Indirect(field)
		if inner.Kind() == reflect.Slice && inner.Len() > 0 {
			inner, path = inner.Index(0), path+"[0]"
		}
		if rule != isState && inner.Kind() == reflect.Struct && inner.NumField() > 0 && inner.Type().Field(0).IsExported() {
			eachPart(inner, path, alone && (rule == byField || rule == byMAC), f)
		}
	})
}

// TestEveryFieldOfAMachineHasARule: a new field is compared and merged, or has its own rule; one that
// is neither fails here. So does a rule without its field.
func TestEveryFieldOfAMachineHasARule(t *testing.T) {
	rules := maps.Clone(fieldRules)
	m := filled(t)
	n := 0
	eachPart(reflect.ValueOf(&m).Elem(), "", true, func(path string, alone bool, _ reflect.Value) {
		n++
		rule := ruleOf(path)
		delete(rules, strings.ReplaceAll(path, "[0]", "[]"))
		full, without := filled(t), filled(t)
		eachPart(reflect.ValueOf(&without).Elem(), "", true, func(p string, _ bool, f reflect.Value) {
			if p == path {
				f.SetZero()
			}
		})

		changes, err := Differences(full, without)
		require.NoError(t, err)
		shown := strings.NewReplacer(".SystemLink", "", ".DiskID", "").Replace(path) // JSON has their fields in the outer object
		named := slices.ContainsFunc(changes, func(c Change) bool { return strings.HasPrefix(c.Field, shown) })
		switch rule {
		case isState, isVersion:
			require.Empty(t, changes, path)
		case isStored: // it is shown as its secret
		default:
			require.True(t, named, "%s is not compared: %v", path, changes)
		}
		if !alone {
			return
		}

		merged := Merge(full, without, nil)
		stated := Merge(full, without, func(field string) bool { return field == path })
		of := func(m Machine) (out any) {
			eachPart(reflect.ValueOf(&m).Elem(), "", true, func(p string, _ bool, f reflect.Value) {
				if p == path {
					out = f.Interface()
				}
			})
			return out
		}
		switch rule {
		case isKey, isVersion:
		case isState:
			require.Equal(t, of(full), of(stated), path)
		case isSecret:
			require.Zero(t, of(merged), "%s: a secret is never copied", path)
		case isStored: // see TestMerge
		default:
			require.Equal(t, of(full), of(merged), "%s is lost, though the document does not name it", path)
			require.Zero(t, of(stated), "%s: the document states that it is empty", path)
		}
	})
	require.Empty(t, rules, "rules without a field")
	for name, rule := range fieldRules {
		listed := slices.ContainsFunc(m.SecretFields(), func(f SecretField) bool { return f.Name == name })
		require.Equal(t, rule == isSecret, listed, "%s in SecretFields", name)
	}
	require.Greater(t, n, 80)
}

func TestMerge(t *testing.T) {
	mac := func(n int) string { return fmt.Sprintf("02:00:00:00:00:%02d", n) }
	stored := Machine{
		Name: "n", HasUserData: true, Notes: map[string]string{"a": "1", "b": "1"},
		Interfaces: []Interface{{MAC: mac(1), Loader: "snp.efi", VLAN: 5}, {MAC: mac(2), Domain: "example.com"}},
		BMC:        &BMC{Driver: DriverRedfish, Host: "10.0.0.9", User: "a", Fingerprint: "f", HasPassword: true, BootPath: []string{PathMedia}},
	}
	given := Machine{
		Name: "n", Notes: map[string]string{"b": "2"}, Interfaces: []Interface{{MAC: mac(2)}, {MAC: mac(1), VLAN: 6}},
		BMC: &BMC{Driver: DriverRedfish, Host: "10.0.0.9", User: "b"},
	}
	got := Merge(stored, given, nil)
	require.Equal(t, []Interface{{MAC: mac(2), Domain: "example.com"}, {MAC: mac(1), Loader: "snp.efi", VLAN: 6}}, got.Interfaces)
	require.Equal(t, map[string]string{"a": "1", "b": "2"}, got.Notes)
	require.Equal(t, "b f true", fmt.Sprint(got.BMC.User, " ", got.BMC.Fingerprint, " ", got.BMC.HasPassword))
	require.True(t, got.HasUserData)
	require.Empty(t, given.BMC.Fingerprint, "the document is not changed")
	require.Empty(t, given.Interfaces[0].Domain)

	given.BMC.Host = "10.0.0.8"
	got = Merge(stored, given, nil)
	require.Equal(t, *given.BMC, *got.BMC, "nothing of another BMC, and not its password")
}
