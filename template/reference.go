package template

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// A Datum is one value that templates can read.
type Datum struct {
	Go, JSON string // expressions; JSON is "" at the top level of the data
	Type     string
	Text     string
	Example  any // value in ExampleData; that of Go if the two differ
}

// ExampleData returns the data for the examples in docs/templates.md.
func ExampleData() Data {
	m := inventory.Machine{
		Name: "node-1", Labels: map[string]string{"rack": "a1"}, SSHKeys: []string{"ssh-ed25519 AAAA… me"},
		Disks: []inventory.DeclaredDisk{{Device: "/dev/nvme0n1"}},
		Interfaces: []inventory.Interface{{
			MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("10.0.0.11"), Netmask: "255.255.255.0",
			Gateway: netip.MustParseAddr("10.0.0.1"), Hostname: "node-1", Domain: "example.com", UEFI: true, VLAN: 20,
			Nameservers: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, TimeServers: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			LeaseTime: inventory.Lease(24 * time.Hour),
		}},
	}
	return Data{
		Machine: m, Image: &inventory.Image{Name: "debian-12", SHA256: strings.Repeat("0a", 32), Format: "zst"},
		ImageURL: "http://10.0.0.2/images/debian-12", ImagesURL: "http://10.0.0.2/images",
	}
}

// DataReference returns everything that templates can read, except the hardware map.
func DataReference() []Datum {
	d := ExampleData()
	m, nic := d.Machine, d.Machine.Interfaces[0]
	out := []Datum{{Go: ".device_1", Text: "MAC address of the first interface for netboot; .device_2 of the second …", Example: nic.MAC}}
	out = append(out, describe(".", "", top, d)...)
	out = append(out, describe(".image.", "", imageFields, d)...)

	const instance, instanceJSON = ".Hardware.Metadata.Instance.", ".hardware.spec.metadata.instance."
	out = append(out, describe(instance, instanceJSON, instanceFields, m)...)
	out = append(out,
		Datum{Go: ".Hardware.Hostname", JSON: ".hardware.hostname", Text: "the same host name", Example: hostname(m)},
		Datum{Go: ".Hardware.Labels.rack", JSON: ".hardware.labels.rack", Text: "a label of the machine", Example: m.Labels["rack"]},
	)
	out = append(out, describe(".Hardware.", ".hardware.spec.", hardwareFields, view{m, true})...)

	const dhcp, dhcpJSON = "(index .Hardware.Interfaces 0).DHCP.", "(index .hardware.interfaces 0).dhcp."
	out = append(out, describe(dhcp, dhcpJSON, dhcpFields, nic)...)
	out = append(out, describe(dhcp+"IP.", dhcpJSON+"ip.", ipFields, nic)...)
	for i := range out {
		out[i].Type = typeName(out[i].Example)
	}
	return out
}

// describe returns the rows that have a value, and not those that only contain other rows.
func describe[T any](inGo, inJSON string, rows []field[T], from T) (out []Datum) {
	for _, f := range rows {
		if f.text == "" {
			continue
		}
		d := Datum{Go: inGo + f.goName, Text: f.text, Example: f.value(from)}
		if inJSON != "" {
			d.JSON = inJSON + f.jsonName
		}
		out = append(out, d)
	}
	return out
}

func typeName(v any) string {
	switch reflect.ValueOf(v).Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "number"
	case reflect.Slice:
		return "list"
	}
	return "text"
}

// A FunctionExample is a function of templates with an example call and its result.
type FunctionExample struct {
	Group, Name, Call string
	Result            string
}

// FunctionReference returns an example of every function that templates can call.
func FunctionReference(ctx context.Context) ([]FunctionExample, error) {
	var out []FunctionExample
	for _, g := range functionGroups {
		for _, call := range g.examples {
			name, _, _ := strings.Cut(call, " ")
			x := FunctionExample{Group: g.title, Name: name, Call: call}
			result, err := execute(ctx, name, "{{ "+call+" }}", nil)
			var failed inventory.Problems
			switch {
			case name == "fail" && errors.As(err, &failed):
				x.Result = "an error: " + failed[0].What
			case err != nil:
				return nil, fmt.Errorf("calling %s: %w", call, err)
			default:
				x.Result = result.text
			}
			out = append(out, x)
		}
	}
	return out, nil
}

// MustFunctions returns the functions that fail where the variant without must returns an empty
// value.
func MustFunctions() (names []string) {
	for name := range functions(newGuard(context.Background())) {
		if strings.HasPrefix(name, "must") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
