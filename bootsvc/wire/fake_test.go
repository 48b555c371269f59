package wire

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	clientMAC     = "52:54:00:20:01:01"
	clientAddress = "10.10.20.11"
)

var someTime = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// keptRows keeps all records in memory.
type keptRows struct {
	mu     sync.Mutex
	events []inventory.Event
	seen   []inventory.Seen
	syslog []inventory.SyslogLine
	err    error
}

func (k *keptRows) AppendEvents(_ context.Context, e []inventory.Event) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.events = append(k.events, e...)
	}
	return k.err
}

func (k *keptRows) PutSeen(_ context.Context, s []inventory.Seen) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.seen = append(k.seen, s...)
	}
	return k.err
}

func (k *keptRows) PutSyslog(_ context.Context, lines []inventory.SyslogLine) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.syslog = append(k.syslog, lines...)
	}
	return k.err
}

// recording returns a recorder and what it writes.
func recording() (*Recorder, *keptRows) {
	k, log := &keptRows{}, slog.New(slog.DiscardHandler)
	return NewRecorder(k, guard.New(log), log, func() time.Time { return someTime }), k
}

// onlyClient finds one machine, by its address.
func onlyClient(_ context.Context, a netip.Addr) string {
	if a == netip.MustParseAddr(clientAddress) {
		return "node1"
	}
	return ""
}

// discover returns a DISCOVER of UEFI firmware.
func discover(t testing.TB, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	mac, err := net.ParseMAC(clientMAC)
	if err != nil {
		t.Fatal(err)
	}
	p, err := dhcpv4.NewDiscovery(mac, append([]dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:002001")),
		dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, 7}),
	}, mods...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
