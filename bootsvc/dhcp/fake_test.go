package dhcp

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

var (
	testNow  = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	testSelf = netip.MustParseAddr("10.10.20.2")
	gateway  = netip.MustParseAddr("10.10.20.1")
)

const (
	testMAC  = "52:54:00:20:01:01"
	testAddr = "10.10.20.11"
)

// fakeDecider knows one machine, node1, which is armed if it has a loader.
type fakeDecider struct {
	loader string
	// wait, if set, is called for each unknown MAC.
	wait func(mac string)
}

func (d *fakeDecider) FindClient(_ context.Context, r Request) (Client, error) {
	if r.MAC != testMAC {
		if d.wait != nil {
			d.wait(r.MAC)
		}
		return Client{}, nil
	}
	return Client{
		Owner: inventory.Owner{Machine: "node1"}, Address: true, Armed: d.loader != "", Loader: d.loader,
		Interface: inventory.Interface{MAC: testMAC, Address: netip.MustParseAddr(testAddr), Netmask: "255.255.255.0", Gateway: gateway},
	}, nil
}

func (d *fakeDecider) Discover(context.Context, Request) (Client, bool) { return Client{}, false }

func (d *fakeDecider) Decline(Request) {}

func (d *fakeDecider) BootFile(_ context.Context, c Client, _ Request) string { return c.Loader }

func (d *fakeDecider) Reasons(context.Context, Request) []string { return nil }

func (d *fakeDecider) InReservedNetwork(a netip.Addr) bool {
	return netip.MustParsePrefix("10.10.20.0/24").Contains(a)
}

// fakeJournal keeps all records in memory.
type fakeJournal struct {
	mu     sync.Mutex
	relays []netip.Addr // one for each PutRelay
	err    error
	// stall, if set, is called while a relay is being recorded.
	stall func(ctx context.Context, giaddr netip.Addr) error
}

func (f *fakeJournal) AppendEvents(context.Context, []inventory.Event) error { return nil }

func (f *fakeJournal) PutSeen(context.Context, []inventory.Seen) error { return nil }

func (f *fakeJournal) PutSyslog(context.Context, []inventory.SyslogLine) error { return nil }

func (f *fakeJournal) PutRelay(ctx context.Context, giaddr netip.Addr, _ time.Time) error {
	if f.stall != nil {
		if err := f.stall(ctx, giaddr); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.relays = append(f.relays, giaddr)
	return nil
}

// newServer returns a server over d.
func newServer(t *testing.T, d *fakeDecider, edit func(*Config)) (*Server, *fakeJournal) {
	t.Helper()
	log, j := slog.New(slog.DiscardHandler), &fakeJournal{}
	now := func() time.Time { return testNow }
	cfg := Config{
		Address: testSelf, Base: func() string { return "http://10.10.20.2" }, Decider: d, Guests: d, Journal: j, History: wire.NewHistory(),
		Limits:     neighbours.NewLimits(func(netip.Addr) bool { return false }),
		SightRival: func(inventory.Rival) {}, Deliver: func(*dhcpv4.DHCPv4) {}, LogServer: func() bool { return false },
		Probe: func(netip.Addr, string) (string, bool) { return "", false },
		Guard: guard.New(log), Log: log, Now: now,
	}
	if edit != nil {
		edit(&cfg)
	}
	cfg.Recorder = wire.NewRecorder(j, cfg.Guard, cfg.Log, cfg.Now)
	return New(cfg), j
}

// relayOnly makes a server answer only what a listed relay sends.
func relayOnly(c *Config) {
	c.RelayAt, c.Relays = c.Address, wire.Relays{netip.PrefixFrom(gateway, 32)}
}

// packet returns a request like a real client's.
func packet(t testing.TB, kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	mac, err := net.ParseMAC(testMAC)
	if err != nil {
		t.Fatal(err)
	}
	p, err := dhcpv4.New(append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind), dhcpv4.WithHwAddr(mac), dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4}),
	}, mods...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
