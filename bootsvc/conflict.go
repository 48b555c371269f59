package bootsvc

import (
	"net"
	"net/netip"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// conflictPause is how long an address is not offered after another host was found there.
	conflictPause = 5 * time.Minute
	// probeAgain limits how often a DECLINE, which can be forged, causes a probe.
	probeAgain = 30 * time.Second
	// kernelWait is how long the kernel is given to resolve an address.
	kernelWait = time.Second
)

// probeDeclined checks whether another host has the address of a lease that its machine has
// declined (RFC 2131 §4.3.3). A DECLINE can be forged: only a host that answers makes a conflict.
// Through a relay nothing can be checked.
func (s *Server) probeDeclined(x inventory.DHCPLease) {
	if !s.leases.mayProbe(x.MAC, x.At) {
		return
	}
	go func() {
		defer s.guard.Recover("a probe of a declined address")
		other, found := s.probe(x.Address, x.MAC)
		if !found || !s.leases.setConflict(x, other) {
			return
		}
		s.log.Error("the reserved address is used by another host: not offered for 5 minutes",
			"machine", x.Machine, "mac", x.MAC, "address", x.Address.String(), "other", other)
	}()
}

// mayProbe reports whether a DECLINE of a MAC may cause a probe at now.
func (l *leases) mayProbe(mac string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.probed == nil {
		l.probed = map[string]time.Time{}
	}
	last, known := l.probed[mac]
	if known && now.Sub(last) < probeAgain || !known && len(l.probed) >= maxLeases {
		return false
	}
	l.probed[mac] = now
	return true
}

// setConflict stores that another host has the address of a declined lease, unless the machine has
// taken or released that address since, or has another one.
func (l *leases) setConflict(declined inventory.DHCPLease, other string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	x, ok := l.byMAC[declined.MAC]
	if !ok || x.Machine != declined.Machine || x.Address != declined.Address ||
		x.State != inventory.LeaseDeclined && x.State != inventory.LeaseOffered {
		return false
	}
	declined.State, declined.Other = inventory.LeaseConflict, other
	l.byMAC[declined.MAC] = lease{declined, x.where}
	return true
}

// probeByKernel returns the MAC that the kernel knows for an address. It sends one datagram, so that
// the kernel asks by ARP, unless it has an entry already.
func (s *Server) probeByKernel(a netip.Addr) (mac string, ok bool) {
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9))) // discard (RFC 863)
	if err != nil {
		return "", false
	}
	defer c.Close()
	if _, err := c.Write([]byte{0}); err != nil {
		return "", false
	}
	time.Sleep(kernelWait)
	return s.neighbour(a)
}

// conflict returns the lease of a machine whose address was found at another host a short time ago.
func (s *Server) conflict(mac string, a netip.Addr) (x inventory.DHCPLease, ok bool) {
	x, ok = s.leases.get(mac)
	return x, ok && x.State == inventory.LeaseConflict && x.Address == a && s.now().Sub(x.At) < conflictPause
}
