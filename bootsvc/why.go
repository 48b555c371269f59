package bootsvc

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// Why explains what a machine would be answered now. If wire.ParseMAC rejects mac, Why returns inventory.ErrInvalid.
// An unknown MAC is not an error.
func (s *Server) Why(ctx context.Context, mac string) (inventory.Explanation, error) {
	canonical, ok := wire.ParseMAC(mac)
	if !ok {
		return inventory.Explanation{}, fmt.Errorf("invalid MAC address %q: %w", mac, inventory.ErrInvalid)
	}
	m, g, d, err := s.decider.lookup(ctx, Request{MAC: canonical, Class: wire.ClassNone, Arch: wire.ArchUnknown})
	if err != nil {
		return inventory.Explanation{}, fmt.Errorf("looking up %q: %w", canonical, err)
	}
	e := inventory.Explanation{MAC: canonical, Machine: d.Machine, Verdict: string(d.Verdict), Reasons: d.Reasons}
	e.Exchanges = s.History.Of(canonical)
	leases := s.Leases()
	if n := slices.IndexFunc(leases, func(x inventory.DHCPLease) bool { return x.MAC == canonical }); n >= 0 {
		e.Lease = &leases[n]
	}
	if d.Address {
		e.Address = d.Interface.Address.String()
	}
	if d.Owner.Run != "" {
		e.Run, e.Epoch, e.Boot, e.Spent, e.Until = g.Run, g.Epoch, g.Boot, g.Spent, g.NetbootUntil
	}
	if d.Verdict == Unknown {
		return e, nil
	}
	if d.ServesLoader() {
		e.Reasons = e.Reasons[:len(e.Reasons)-1] // drop "does not ask for a boot file": that is true only for this look-up
	}
	if d.Verdict == Installer {
		e.Reasons = append(e.Reasons, s.scripts.installers.reasons(ctx, d)...)
	}
	mode := s.network.modeOf(d.Interface)
	conflict, until, inConflict := s.dhcp.Conflict(canonical, d.Interface.Address)
	inConflict = inConflict && d.Address && mode == inventory.DHCPReservation
	switch {
	case mode == inventory.DHCPProxy:
		e.Address = ""
		e.Reasons = append(e.Reasons, "DHCP is in mode proxy: another server gives the address, and Ingot gives the boot file")
	case mode == inventory.DHCPOff:
		e.Address = ""
		e.Reasons = append(e.Reasons, "DHCP is off: another server gives the address and always names the loader; "+
			"the files that Ingot serves decide what boots")
	case inConflict:
		e.Address = ""
		e.Reasons = append(e.Reasons, fmt.Sprintf("but address %s is in conflict: host %s uses it. Ingot does not offer the address "+
			"until %s; change that host's address, or the machine's (ingot machine push --replace, after its run)",
			conflict.Address, conflict.Other, until.UTC().Format(time.RFC3339)))
	case d.Address:
		e.Reasons = append(e.Reasons, s.relayReasons(d.Interface)...)
		n := s.servedNetworks()
		if subnet, unserved := n.Unserved(d.Interface); unserved {
			e.Reasons = append(e.Reasons, "but "+n.Reason(subnet))
		}
	}
	for _, c := range []struct {
		name  string
		class wire.Class
		arch  int
	}{
		{"BIOS PXE", wire.ClassPXE, wire.ArchBIOS},
		{"UEFI PXE", wire.ClassPXE, wire.ArchUEFIEBC},
		{"UEFI HTTP", wire.ClassHTTP, wire.ArchHTTP},
		{"iPXE", wire.ClassIPXE, wire.ArchUnknown},
	} {
		d := s.decider.decideAny(m, g, Request{MAC: canonical, Class: c.class, Arch: c.arch})
		file, why := s.clients().bootFile(d.client(), c.class)
		switch {
		case inConflict:
			file, why = "", "the machine's address is in conflict"
		case why == "":
			why = d.Reasons[len(d.Reasons)-1]
		}
		e.Answers = append(e.Answers, inventory.ClientAnswer{Client: c.name, BootFile: file, Reason: why})
	}
	return e, nil
}

// relayReasons returns a reason that lists the relays that may ask for the reservation of i. It returns nil if there
// are no such relays, or if every relay may ask.
func (s *Server) relayReasons(i inventory.Interface) []string {
	if len(s.cfg.Relays) == 0 {
		return nil
	}
	subnet := i.Subnet()
	var ours []string
	for _, r := range s.cfg.Relays {
		switch {
		case !r.Overlaps(subnet) && !r.Contains(i.Gateway):
		case r.IsSingleIP():
			ours = append(ours, r.Addr().String())
		default:
			ours = append(ours, r.String())
		}
	}
	switch relays := strings.Join(ours, ", "); {
	case len(ours) > 0 && s.cfg.RelayOnly:
		return []string{"DHCP is answered only through a relay: " + relays}
	case len(ours) > 0:
		return []string{"DHCP is also answered through a relay: " + relays}
	}
	return nil
}

// servedNetworks returns the networks in which DHCP is answered.
func (s *Server) servedNetworks() inventory.Network {
	return inventory.Network{
		Subnets: Subnets(s.cfg.Interfaces), Relays: s.cfg.Relays, On: len(s.cfg.Interfaces) > 0 || s.cfg.RelayOnly,
	}
}

// Subnets returns the IPv4 subnets of the named interfaces. It skips interfaces that do not exist.
func Subnets(interfaces []string) []netip.Prefix {
	var out []netip.Prefix
	for _, name := range interfaces {
		out = append(out, interfacePrefixes(name)...)
	}
	return out
}
