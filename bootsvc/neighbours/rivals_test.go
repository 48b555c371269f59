package neighbours

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// keptEvents keeps all events in memory.
type keptEvents []inventory.Event

func (k *keptEvents) AppendEvents(_ context.Context, e []inventory.Event) error {
	*k = append(*k, e...)
	return nil
}

// S33: a machine that chooses another server is an alarm, once. A forger causes few.
func TestS33RivalsAreRaisedOnce(t *testing.T) {
	log, now := slog.New(slog.DiscardHandler), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var events keptEvents
	r := NewRivals(NewChecker(netip.MustParseAddr("10.10.20.2"), guard.New(log)), nil, &events, log, func() time.Time { return now })
	sight := func(server ...byte) {
		r.Sight(inventory.Rival{Server: netip.AddrFrom4([4]byte(server)), Where: "eth1", Machine: "node1"})
		for len(r.sighted) > 0 {
			r.raise(t.Context(), <-r.sighted)
		}
	}
	sight(10, 10, 20, 2)
	if got := r.Recent(); len(got) != 0 {
		t.Errorf("this server is its own rival: %v", got)
	}
	sight(10, 10, 20, 66)
	now = now.Add(time.Minute)
	sight(10, 10, 20, 66)
	got := r.Recent()
	if len(got) != 1 || got[0].Server.String() != "10.10.20.66" || got[0].Machine != "node1" || got[0].Where != "eth1" ||
		got[0].Last.Sub(got[0].First) != time.Minute {
		t.Errorf("%+v", got)
	}
	if len(events) != 1 || events[0].Kind != inventory.EventOperator || events[0].Machine != "node1" ||
		!strings.Contains(events[0].Message, "another DHCP server at 10.10.20.66 was chosen by machine node1 (eth1)") {
		t.Errorf("events %+v", events)
	}

	for n := range 200 {
		sight(10, 99, byte(n), 1)
	}
	if len(r.Recent()) != maxRivals || len(events) != maxRivals {
		t.Errorf("%d are remembered, %d events", len(r.Recent()), len(events))
	}
	now = now.Add(rivalFor)
	if len(r.Recent()) != 0 {
		t.Error("a server that was not seen again is remembered")
	}
	sight(10, 10, 20, 66)
	if len(events) != maxRivals+1 {
		t.Errorf("%d events after it came back", len(events))
	}

	for range 10 * maxRivals { // sight does not wait for the alarms
		r.Sight(inventory.Rival{Server: netip.MustParseAddr("10.10.20.77")})
	}
}
