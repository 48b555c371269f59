package bootsvc

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/inventory"
)

// If a port has too many unknown MACs, the newest ones are written, each time.
func TestS48NewestUnknownMACsWin(t *testing.T) {
	s, j := newServer(t, &fakeMachines{}, nil)
	for range 3 {
		for n := range 4 * maxSeenPerPort {
			s.rec.unknown(fmt.Sprintf("02:00:00:00:%02x:%02x", n>>8, n&255), "eth0", "", "")
		}
		s.rec.unknown("02:00:00:00:ff:ff", "eth0", "", "PXEClient")
		s.rec.flush(t.Context())
		if !slices.ContainsFunc(j.seen, func(x inventory.Seen) bool { return x.MAC == "02:00:00:00:ff:ff" }) {
			t.Error("the newest MAC is not seen")
		}
		if len(j.seen) > maxSeenPerPort {
			t.Errorf("%d rows", len(j.seen))
		}
		j.seen = nil
	}
	if s.Stats().SeenDropped == 0 {
		t.Error("dropped MACs are not counted")
	}
}

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
	if got := reasons(relays("10.10.30.1/32")); !strings.Contains(got, want) || !strings.Contains(got, "none of netboot.relays") {
		t.Error(got)
	}
}

// TestS48PendingEventsAreBounded: packets between two writes are merged, and of different ones only so many are kept.
func TestS48PendingEventsAreBounded(t *testing.T) {
	var p pendingEvents
	for range 3 {
		p.add(inventory.Event{Machine: "m1", Kind: inventory.EventDHCP, Count: 1})
	}
	if len(p.list) != 1 || p.list[0].Count != 3 {
		t.Errorf("equal events are %d rows: %+v", len(p.list), p.list)
	}
	for boot := range 2 * maxPendingEvents {
		p.add(inventory.Event{Machine: "m2", Boot: boot, Kind: inventory.EventDHCP, Count: 1})
	}
	if len(p.list) != maxPendingEvents {
		t.Errorf("%d events wait", len(p.list))
	}
}
