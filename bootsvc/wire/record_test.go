package wire

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

func TestRecorderKeepsWhatCannotBeWritten(t *testing.T) {
	r, j := recording()
	j.err = errors.New("disk full")
	e := inventory.Event{Machine: "node1", Kind: inventory.EventDHCP}
	r.Event(e)
	r.Unknown("02:00:00:00:00:01", "eth0", "", "")
	r.Flush(t.Context())
	r.Event(e)
	r.Unknown("02:00:00:00:00:01", "eth0", "", "")
	j.err = nil
	r.Flush(t.Context())
	if len(j.events) != 1 || j.events[0].Count != 2 || len(j.seen) != 1 || j.seen[0].Count != 2 {
		t.Errorf("%+v %+v", j.events, j.seen)
	}
	for n := range 2 * maxPendingEvents {
		e.Boot = n
		r.Event(e)
	}
	if n := r.Dropped().Events; n != maxPendingEvents {
		t.Errorf("%d dropped", n)
	}
}

// Events of one instant are written in the order in which they were recorded, also after a write that
// failed.
func TestRecorderKeepsTheOrder(t *testing.T) {
	r, j := recording()
	event := inventory.Event{Machine: "node1", Kind: inventory.EventDHCP}
	j.err = errors.New("disk full")
	for n := range 100 {
		if n == 50 {
			r.Flush(t.Context())
			j.err = nil
		}
		event.Boot = n
		r.Event(event)
	}
	r.Flush(t.Context())
	if len(j.events) != 100 {
		t.Fatalf("%d events", len(j.events))
	}
	for n, e := range j.events {
		if e.Boot != n {
			t.Fatalf("event %d is of boot %d", n, e.Boot)
		}
	}
}

// TestS48AFloodOfRelaysLeavesInterfacesTheirPlace: MACs from forged relays do not displace
// those that were seen on an interface.
func TestS48AFloodOfRelaysLeavesInterfacesTheirPlace(t *testing.T) {
	r, j := recording()
	for n := range 4 * maxSeenRelayed {
		r.Unknown(
			fmt.Sprintf("02:00:00:02:%02x:%02x", n>>8, n&255),
			fmt.Sprintf("10.%d.%d.1", n>>8, n&255),
			fmt.Sprintf("10.%d.%d.1", n>>8, n&255),
			"",
		)
	}
	r.Unknown("02:00:00:00:01:00", "eth0", "", "PXEClient")
	r.Flush(t.Context())
	if !slices.ContainsFunc(j.seen, func(x inventory.Seen) bool { return x.MAC == "02:00:00:00:01:00" }) {
		t.Error("an honest machine is not seen any more")
	}
	if len(j.seen) > maxSeenRelayed+1 {
		t.Errorf("%d rows", len(j.seen))
	}
}

// If a port has too many unknown MACs, the newest ones are written, each time.
func TestS48NewestUnknownMACsWin(t *testing.T) {
	r, j := recording()
	for range 3 {
		for n := range 4 * maxSeenPerPort {
			r.Unknown(fmt.Sprintf("02:00:00:00:%02x:%02x", n>>8, n&255), "eth0", "", "")
		}
		r.Unknown("02:00:00:00:ff:ff", "eth0", "", "PXEClient")
		r.Flush(t.Context())
		if !slices.ContainsFunc(j.seen, func(x inventory.Seen) bool { return x.MAC == "02:00:00:00:ff:ff" }) {
			t.Error("the newest MAC is not seen")
		}
		if len(j.seen) > maxSeenPerPort {
			t.Errorf("%d rows", len(j.seen))
		}
		j.seen = nil
	}
	if r.Dropped().Seen == 0 {
		t.Error("dropped MACs are not counted")
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

// TestTransfers: the event of a file that was sent says how long that took.
func TestTransfers(t *testing.T) {
	r, j := recording()
	r.Transfer(inventory.Event{Machine: "node1", Kind: inventory.EventKernel}, someTime.Add(-1500*time.Millisecond))
	r.Flush(t.Context())
	if len(j.events) != 1 || string(j.events[0].Detail) != `{"seconds":1.5}` {
		t.Errorf("%+v", j.events)
	}
}
