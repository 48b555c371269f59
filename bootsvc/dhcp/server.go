// Package dhcp is the DHCP server. It assigns addresses or, next to another DHCP server, names only boot files. A
// Decider decides what each client may boot.
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

// Decider decides what the clients of DHCP get. A packet waits for each call.
type Decider interface {
	// FindClient returns the client of a request, or the zero Client if it is unknown. It returns an error only if the
	// inventory cannot be read.
	FindClient(ctx context.Context, r Request) (Client, error)
	// BootFile returns the boot file for a client, or "". It records the request as an event.
	BootFile(ctx context.Context, c Client, r Request) string
	// Reasons explains the decision for a request; nil if the inventory cannot be read.
	Reasons(ctx context.Context, r Request) []string
	// InReservedNetwork reports whether an address is in the network of a reservation.
	InReservedNetwork(a netip.Addr) bool
}

// Guests are the unknown clients that are being discovered.
type Guests interface {
	// Discover returns the guest that sent the request, and may admit it as a new one. It returns false if the client is
	// not a guest on the network that the request came from.
	Discover(ctx context.Context, r Request) (Client, bool)
	// Decline is called when a guest has declined its address.
	Decline(r Request)
}

// Journal records that a relay is used. It is called at most every few seconds per relay. The relay's packets wait for
// the call.
type Journal interface {
	PutRelay(ctx context.Context, giaddr netip.Addr, at time.Time) error
}

// Config is the configuration of a Server, and the parts of the program that it calls.
type Config struct {
	// Modes maps the interfaces on which DHCP is answered to their modes.
	Modes map[string]inventory.DHCPMode
	// RelayAt, if valid, is the address on which only relays are answered. Modes is then ignored.
	RelayAt netip.Addr
	// Address is the address at which machines reach this server. Base returns the URL of its HTTP handler.
	Address netip.Addr
	Base    func() string
	// Relays and LinkLocal are as in bootsvc.Config.
	Relays    wire.Relays
	LinkLocal bool

	Decider  Decider
	Guests   Guests
	Journal  Journal
	Recorder *wire.Recorder
	History  *wire.History
	Limits   *neighbours.Limits
	// SightRival is called with a server that a machine has chosen instead of this one. Deliver is called with each reply
	// of a server that arrives here.
	SightRival func(inventory.Rival)
	Deliver    func(*dhcpv4.DHCPv4)
	// Probe returns the MAC of a host other than client that answers ARP for a; ok is false if there is none.
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

// Counters count packets since the start of the server, see bootsvc.Stats.
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

// Conflict returns the lease of a machine if another host was recently found to use its address a. The address is not
// offered before the time until.
func (s *Server) Conflict(mac string, a netip.Addr) (x inventory.DHCPLease, until time.Time, ok bool) {
	x, ok = s.leases.conflict(mac, a)
	return x, x.At.Add(conflictPause), ok
}
