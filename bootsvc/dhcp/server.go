// Package dhcp is the DHCP server. It assigns addresses and names boot files. On a network with another DHCP server, it
// only names boot files. A Decider decides what each client may boot.
package dhcp

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// Decider decides what DHCP clients get. The packet being answered waits for each call.
type Decider interface {
	// FindClient returns the client that has sent r, or the zero Client if that client is unknown. It returns an error
	// only if the inventory cannot be read.
	FindClient(ctx context.Context, r Request) (Client, error)
	// BootFile returns the boot file for the client c, or "". It records the request r as an event.
	BootFile(ctx context.Context, c Client, r Request) string
	// Reasons explains what was decided for r. It returns nil if the inventory cannot be read.
	Reasons(ctx context.Context, r Request) []string
	// InReservedNetwork reports whether the address a is in the network of a reservation.
	InReservedNetwork(a netip.Addr) bool
}

// Guests are the unknown clients that are in discovery.
type Guests interface {
	// Discover returns the guest that has sent r. If the client is not a guest yet, Discover may make it one. It
	// returns false if the client is not a guest on the network from which r came.
	Discover(ctx context.Context, r Request) (Client, bool)
	// Decline is called when a guest has declined the address that it got.
	Decline(r Request)
}

// Journal records that a relay is used. For one relay, it is called at most once every few seconds. The packets of the
// relay wait for the call.
type Journal interface {
	PutRelay(ctx context.Context, giaddr netip.Addr, at time.Time) error
}

// Config is the configuration of a Server. It also contains the parts of the program that the Server calls.
type Config struct {
	// Modes maps each interface on which DHCP is answered to its mode.
	Modes map[string]inventory.DHCPMode
	// RelayAt, if valid, is the address on which this server answers relays, and nothing else. Modes is then ignored.
	RelayAt netip.Addr
	// Address is the address at which machines reach this server. Base returns the URL of this server's HTTP handler.
	Address netip.Addr
	Base    func() string
	// Relays and LinkLocal have the same meaning as in bootsvc.Config.
	Relays    wire.Relays
	LinkLocal bool

	Decider  Decider
	Guests   Guests
	Journal  Journal
	Recorder *wire.Recorder
	History  *wire.History
	Limits   *neighbours.Limits
	// SightRival is called when a machine has chosen another server instead of this one. Deliver is called with each
	// reply of another server that arrives here.
	SightRival func(inventory.Rival)
	Deliver    func(*dhcpv4.DHCPv4)
	// Probe returns the MAC of a host that answers ARP for the address a and is not client. ok is false if there is no
	// such host.
	Probe func(a netip.Addr, client string) (mac string, ok bool)
	// LogServer reports whether machines can send syslog to Address.
	LogServer func() bool

	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

// Server answers DHCP requests.
type Server struct {
	Counters Counters

	cfg     Config
	compose composer
	relays  relays
	leases  leases
}

// Counters count packets since the start of the server. bootsvc.Stats explains them.
type Counters struct {
	Received, Answered, Dropped, Malformed, Unknown, Direct, Unresolved, Unsent atomic.Int64
}

// New returns a server. Listen binds its ports, and Serve answers their packets.
func New(cfg Config) *Server {
	return &Server{
		cfg:     cfg,
		compose: composer{address: cfg.Address, linkLocal: cfg.LinkLocal, logServer: cfg.LogServer},
		relays:  relays{journal: cfg.Journal, now: cfg.Now},
		leases:  leases{probe: cfg.Probe, guard: cfg.Guard, log: cfg.Log, now: cfg.Now},
	}
}

// Leases returns the leases of reservations since the start of the server.
func (s *Server) Leases() []inventory.DHCPLease { return s.leases.all() }

// Conflict returns the lease of a machine if another host was recently found to use the machine's address a. until is
// when Ingot offers this address again.
func (s *Server) Conflict(mac string, a netip.Addr) (x inventory.DHCPLease, until time.Time, ok bool) {
	x, ok = s.leases.conflict(mac, a)
	return x, x.At.Add(conflictPause), ok
}
