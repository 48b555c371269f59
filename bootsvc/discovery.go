package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// guestLease is how long a discovered machine keeps its address without asking again.
	guestLease = 10 * time.Minute
	// maxNewGuests is how many unknown MACs get an address on an interface in a minute (security S7).
	maxNewGuests = 30
)

// guests are the addresses of unknown machines on one interface, from the range of
// Config.Discovery. They are kept in memory: after a restart a machine asks again.
type guests struct {
	inventory.Range
	mu       sync.Mutex
	byMAC    map[string]guest
	byAddr   map[netip.Addr]string
	minute   time.Time // when admitted was reset
	admitted int
}

type guest struct {
	address netip.Addr
	until   time.Time
}

func newGuests(r inventory.Range) *guests {
	return &guests{Range: r, byMAC: map[string]guest{}, byAddr: map[netip.Addr]string{}}
}

// find returns the guest with that MAC or, if mac is "", with that address.
func (g *guests) find(mac string, a netip.Addr, now time.Time) (string, guest, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if mac == "" {
		mac = g.byAddr[a]
	}
	x, ok := g.byMAC[mac]
	return mac, x, ok && now.Before(x.until)
}

// admit gives an address to a MAC, or renews it. taken reports whether an address belongs to a
// machine of the inventory. ok is false if no address is left, or too many are new.
func (g *guests) admit(mac string, now time.Time, taken func(netip.Addr) bool) (ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x, known := g.byMAC[mac]; known && !taken(x.address) {
		x.until = now.Add(guestLease)
		g.byMAC[mac] = x
		return true
	}
	if now.Sub(g.minute) >= time.Minute || now.Before(g.minute) {
		g.minute, g.admitted = now, 0
	}
	if g.admitted >= maxNewGuests {
		return false
	}
	for a := g.From; a.Compare(g.To) <= 0; a = a.Next() {
		if other, used := g.byAddr[a]; used {
			if now.Before(g.byMAC[other].until) {
				continue
			}
			delete(g.byMAC, other)
		}
		if taken(a) {
			continue
		}
		g.admitted++
		g.byMAC[mac], g.byAddr[a] = guest{a, now.Add(guestLease)}, mac
		return true
	}
	return false
}

// admitGuest gives an unknown machine that boots from the network an address for its discovery.
// A client without a boot class (a telephone, a system on a disk) gets none.
func (s *Server) admitGuest(ctx context.Context, e *exchange) bool {
	g := s.guests[e.in.name]
	if g == nil || e.relay.IsValid() || e.request.Class == ClassNone || e.packet.MessageType() != dhcpv4.MessageTypeDiscover {
		return false
	}
	ok := g.admit(e.request.MAC, s.now(), func(a netip.Addr) bool {
		_, _, err := s.machines.MachineByAddress(ctx, a)
		return !errors.Is(err, inventory.ErrNotFound) // also if the inventory cannot be read
	})
	if !ok {
		e.log().Warn("an unknown machine gets no address for its discovery: none is left, or too many are new", "range", g.String())
	}
	return ok
}

// decideGuest decides for a client that is not in the inventory: a guest boots the agent, which
// reports the hardware and does nothing else.
func (s *Server) decideGuest(r Request, unknown Decision) Decision {
	for name, g := range s.guests {
		mac, x, ok := g.find(r.MAC, r.Address, s.now())
		if !ok {
			continue
		}
		d := Decision{Verdict: Discover, Address: true, Interface: inventory.Interface{
			MAC: mac, Address: x.address, LeaseTime: inventory.Lease(guestLease),
		}}
		for _, p := range s.prefixes(name) {
			if p.Contains(x.address) {
				d.Interface.Netmask = net.IP(net.CIDRMask(p.Bits(), 32)).String()
			}
		}
		// The owner is only part of the token in the URLs of this machine's boot files.
		d.Owner = inventory.Owner{Machine: mac, Run: "discovery"}
		d.because("no machine of the inventory has this MAC: discovery is on, it boots the agent, which only reports the hardware")
		d.chooseBootFile(r)
		return d
	}
	return unknown
}

// Guest reports whether a MAC is that of an unknown machine which has this address for its
// discovery.
func (s *Server) Guest(mac string, a netip.Addr) bool {
	for _, g := range s.guests {
		if _, x, ok := g.find(mac, netip.Addr{}, s.now()); ok && x.address == a {
			return true
		}
	}
	return false
}

// discoveryScript returns the script that boots the agent to report its hardware.
func (s *Server) discoveryScript(d Decision, autoexec bool) string {
	line := fmt.Sprintf("initrd=initramfs rdinit=/init ingot.server=%s ingot.pin=%s ingot.mac=%s ingot.discover=1 "+
		"console=tty0 console=ttyS0,115200 panic=30", s.cfg.AgentURL, s.cfg.AgentPin, d.Interface.MAC)
	base := s.bootURL(d)
	return s.netbootScript(d, "Ingot discovers this machine",
		fmt.Sprintf("kernel %svmlinuz %s || goto again\ninitrd --name initramfs %sinitramfs || goto again\n", base, line, base), autoexec)
}

// checkDiscovery checks Discovery.
func (c *Config) checkDiscovery(p *inventory.Problems) {
	for name, r := range c.Discovery {
		field := "discovery." + name
		if c.mode(name) != inventory.DHCPReservation {
			p.Add(field, "leave it out", "in mode %s another server gives the addresses", c.mode(name))
		}
		if err := r.Check(); err != nil {
			p.Add(field, "write for example 10.0.20.200-10.0.20.230", "%v", err)
		}
	}
}
