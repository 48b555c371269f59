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
	// arpWait is how long the kernel is given to resolve an address.
	arpWait = time.Second
)

// probeDeclined checks whether another host has the address of a lease that its machine has
// declined (RFC 2131 §4.3.3). A DECLINE can be forged: only a host that answers makes a conflict.
// Through a relay nothing can be checked.
func (s *Server) probeDeclined(x inventory.DHCPLease) {
	if before, ok := s.leases.get(x.MAC); ok && (before.State == inventory.LeaseDeclined || before.State == inventory.LeaseConflict) &&
		x.At.Sub(before.At) < probeAgain {
		return
	}
	go func() {
		defer s.guard.Recover("a probe of a declined address")
		other, found := s.probe(x.Address)
		if !found || other == x.MAC {
			return
		}
		x.State, x.Other = inventory.LeaseConflict, other
		s.leases.put(x)
		s.log.Error("the reserved address is used by another host: not offered for 5 minutes",
			"machine", x.Machine, "mac", x.MAC, "address", x.Address.String(), "other", other)
	}()
}

// probeARP returns the MAC of the host that answers at an address of a network of this host. It
// sends one datagram, so that the kernel asks by ARP.
func probeARP(a netip.Addr) (mac string, ok bool) {
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9))) // discard (RFC 863)
	if err != nil {
		return "", false
	}
	defer c.Close()
	if _, err := c.Write([]byte{0}); err != nil {
		return "", false
	}
	time.Sleep(arpWait)
	return neighbourMAC(a)
}

// inConflict reports whether the address of a machine was found at another host a short time ago.
func (s *Server) inConflict(mac string, a netip.Addr) bool {
	x, ok := s.leases.get(mac)
	return ok && x.State == inventory.LeaseConflict && x.Address == a && s.now().Sub(x.At) < conflictPause
}
