package bootsvc

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	// rivalFirst and rivalEvery are when a running server looks for other DHCP servers.
	rivalFirst, rivalEvery = time.Minute, 15 * time.Minute
	// rivalFor is how long a server that was not seen again is remembered.
	rivalFor = time.Hour
	// maxRivals is how many are remembered. With rivalFor it limits the alarms, because any host can forge
	// other servers (security S33, S48).
	maxRivals = 8
)

// rivals are the other DHCP servers that were seen on networks in mode reservation.
type rivals struct {
	sighted chan inventory.Rival // chosen by machines; packets do not wait
	mu      sync.Mutex
	known   []inventory.Rival
}

// add remembers x. It reports whether x is new; of too many, x is not remembered.
func (r *rivals) add(x inventory.Rival) (isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = slices.DeleteFunc(r.known, func(old inventory.Rival) bool { return x.Last.Sub(old.Last) >= rivalFor })
	for n, old := range r.known {
		if old.Server == x.Server {
			x.First, x.Machine = old.First, cmp.Or(x.Machine, old.Machine)
			r.known[n] = x
			return false
		}
	}
	if len(r.known) >= maxRivals {
		return false
	}
	r.known = append(r.known, x)
	return true
}

// Rivals returns the other DHCP servers that were seen in the last hour, the oldest first.
func (s *Server) Rivals() []inventory.Rival {
	s.rivals.mu.Lock()
	defer s.rivals.mu.Unlock()
	out := slices.Clone(s.rivals.known)
	return slices.DeleteFunc(out, func(x inventory.Rival) bool { return s.now().Sub(x.Last) >= rivalFor })
}

// sightRival notes that a machine with a reservation has chosen another server (RFC 2131 §4.3.2). It may also have
// chosen this one, through a relay which stands in for it (RFC 5107); that relay's copy of the message is answered.
func (s *Server) sightRival(e *exchange) {
	server := wire.Addr4(e.packet.Options.Get(dhcpv4.OptionServerIdentifier))
	if !server.IsValid() || s.relayed.has(server) {
		return
	}
	x := inventory.Rival{Server: server, Where: e.where(), Machine: e.machine.Name}
	select {
	case s.rivals.sighted <- x:
	default: // too many at once: the machine's next REQUEST names that server again
	}
}

// watchRivals raises an alarm for each other DHCP server: one that a machine chooses, and one that answers a
// DISCOVER, until ctx ends. It asks on interfaces in mode reservation: in the other modes there is one.
func (s *Server) watchRivals(ctx context.Context) error {
	timer := time.NewTimer(rivalFirst)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case x := <-s.rivals.sighted:
			s.raiseRival(ctx, x)
		case <-timer.C:
			for _, name := range s.cfg.Interfaces {
				if s.cfg.mode(name) == inventory.DHCPReservation {
					s.probeRivals(ctx, name)
				}
			}
			timer.Reset(rivalEvery)
		}
	}
}

// probeRivals asks for DHCP on an interface like an unknown client.
func (s *Server) probeRivals(ctx context.Context, iface string) {
	defer s.guard.Recover("a probe for other DHCP servers")
	found := answered{self: s.cfg.Address}
	if err := s.discover(ctx, iface, &found); err != nil && ctx.Err() == nil {
		s.log.Info("looking for other DHCP servers", "interface", iface, "error", err)
		return
	}
	for _, server := range found.others {
		s.raiseRival(ctx, inventory.Rival{Server: server, Where: iface})
	}
	for _, server := range found.twins {
		s.raiseRival(ctx, inventory.Rival{Server: server, Where: iface, Ingot: true})
	}
}

// raiseRival remembers a server and, if it is new, writes a log record and an event.
func (s *Server) raiseRival(ctx context.Context, x inventory.Rival) {
	defer s.guard.Recover("another DHCP server")
	if x.Server == s.cfg.Address || x.Server == (netip.Addr{}) {
		return
	}
	x.First, x.Last = s.now(), s.now()
	if !s.rivals.add(x) {
		return
	}
	text := x.String() + ": machines may get its address and no boot file; stop it, exclude the machines there, or set netboot.dhcp"
	s.log.Error("a second DHCP server", "server", x.Server.String(), "where", x.Where, "machine", x.Machine, "ingot", x.Ingot)
	err := s.journal.AppendEvents(ctx, []inventory.Event{{
		Machine: x.Machine, Kind: inventory.EventOperator, Key: rand.Text(), By: "ingot", At: x.First, Message: text,
	}})
	if err != nil {
		s.log.Warn("recording a second DHCP server", "error", err)
	}
}
