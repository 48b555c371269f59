// Package dhcp answers DHCP: it gives the addresses, or only the boot files next to another server. What a client may boot,
// its Decider decides.
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

// Decider decides what the clients of DHCP get. A packet waits for it.
type Decider interface {
	// FindClient returns the client of a request, or the zero Client for an unknown one. An error means that the
	// inventory failed.
	FindClient(ctx context.Context, r Request) (Client, error)
	// BootFile returns the boot file for a client, or "", and records the request for it.
	BootFile(ctx context.Context, c Client, r Request) string
	// Reasons explains the decision for a request.
	Reasons(ctx context.Context, r Request) []string
	// InReservedNetwork reports whether an address is in the network of a reservation.
	InReservedNetwork(a netip.Addr) bool
}

// Guests are the unknown clients that are being discovered.
type Guests interface {
	// Discover returns a guest where the request came from. It may admit a new one.
	Discover(ctx context.Context, r Request) (Client, bool)
	// Decline notes that a guest has declined its address.
	Decline(r Request)
}

// Journal records that a relay is used. It is called at most every few seconds for each relay, and the relay's packets wait for
// it.
type Journal interface {
	PutRelay(ctx context.Context, giaddr netip.Addr, at time.Time) error
}

// Config says what to serve and where, and what else takes part.
type Config struct {
	// Modes are the modes of the interfaces on which DHCP is answered.
	Modes map[string]inventory.DHCPMode
	// RelayAt, if valid, is the address on which relays alone are answered. It replaces Modes.
	RelayAt netip.Addr
	// Address is this server's address as the machines see it. Base returns the URL of its HTTP handler.
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
	// SightRival takes a server that a machine has chosen instead of this one, and Deliver a reply of another server.
	SightRival func(inventory.Rival)
	Deliver    func(*dhcpv4.DHCPv4)
	// Probe returns the MAC of a host other than client that answers at an address.
	Probe func(a netip.Addr, client string) (mac string, ok bool)
	// LogServer reports whether machines can send syslog to Address.
	LogServer func() bool

	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

// Server answers DHCP.
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

// New returns a server, which answers what Serve reads.
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

// Conflict returns the lease of a machine whose address was found at another host a short time ago. The address is not
// offered until until.
func (s *Server) Conflict(mac string, a netip.Addr) (x inventory.DHCPLease, until time.Time, ok bool) {
	x, ok = s.leases.conflict(mac, a)
	return x, x.At.Add(conflictPause), ok
}
