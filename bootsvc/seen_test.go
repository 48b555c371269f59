package bootsvc

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/inventory"
)

// Why reports a reservation in a subnet where DHCP is not answered.
func TestWhyNamesASubnetThatIsNotServed(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	reasons := func(edit func(*Config)) string {
		s, _ := newServer(t, f, edit)
		e, err := s.Why(t.Context(), testMAC)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(e.Reasons, "\n")
	}
	const want = "no interface of this server is in 10.10.20.0/24"
	if got := reasons(nil); !strings.Contains(got, want) {
		t.Error(got)
	}
	relays := func(p string) func(c *Config) {
		return func(c *Config) { c.Relays = []netip.Prefix{netip.MustParsePrefix(p)} }
	}
	if got := reasons(relays("10.10.20.1/32")); strings.Contains(got, want) {
		t.Error(got)
	}
	if got := reasons(relays("10.10.30.1/32")); !strings.Contains(got, want) || !strings.Contains(got, "nor is any relay of netboot.relays") {
		t.Error(got)
	}
}
