package bootsvc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// lookupTime is how long a packet of UDP waits for the inventory.
const lookupTime = 2 * time.Second

// dhcpConfig returns the configuration of s's DHCP server.
func (s *Server) dhcpConfig() dhcp.Config {
	cfg := dhcp.Config{
		Modes: map[string]inventory.DHCPMode{}, Address: s.cfg.Address, Base: s.Base, Relays: s.cfg.Relays, LinkLocal: s.cfg.LinkLocal,
		Decider: dhcpClients{s}, Journal: s.journal, Recorder: s.rec, History: s.History, Limits: s.limits,
		SightRival: s.Rivals.Sight, Deliver: s.checker.Deliver, LogServer: s.syslog.IsNamed,
		Probe: func(a netip.Addr, besides string) (string, bool) { return s.probe(a, besides) },
		Guard: s.guard, Log: s.log, Now: s.now,
	}
	if s.cfg.RelayOnly {
		cfg.RelayAt = s.cfg.bind()
	}
	for _, name := range s.cfg.Interfaces {
		cfg.Modes[name] = s.cfg.mode(name)
	}
	return cfg
}

// Leases returns the leases of reservations since the start of the server, and those of discovery that have not
// ended, by address.
func (s *Server) Leases() []inventory.DHCPLease {
	out := s.dhcp.Leases()
	for name, g := range s.guests {
		out = append(out, g.leases(name, s.now())...)
	}
	slices.SortFunc(out, func(a, b inventory.DHCPLease) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.MAC, b.MAC))
	})
	return out
}

// dhcpClients decides for package dhcp what clients get.
type dhcpClients struct{ s *Server }

var _ dhcp.Decider = dhcpClients{}

// FindClient implements dhcp.Decider. An unknown client is left to Discover.
func (c dhcpClients) FindClient(ctx context.Context, r dhcp.Request) (dhcp.Client, error) {
	m, g, err := c.s.findMachine(ctx, Request{MAC: r.MAC})
	if err != nil {
		return dhcp.Client{}, err
	}
	return c.s.decide(m, g, Request{MAC: r.MAC, Class: r.Class, Arch: r.Arch, Brief: true}).client(), nil
}

// client returns what DHCP needs of d.
func (d Decision) client() dhcp.Client {
	return dhcp.Client{
		Owner: d.holder(), Boot: d.Boot, Interface: d.Interface, Address: d.Address, Armed: d.Armed(), Guest: d.Verdict == Discover,
		Script: d.Script, Loader: d.Loader, Event: diskEvent(d),
	}
}

// Discover implements dhcp.Decider. Only a guest of the interface or relay that the packet came through is answered: an
// address of another network is of no use, and discovery may be off here.
func (c dhcpClients) Discover(ctx context.Context, r dhcp.Request) (dhcp.Client, bool) {
	name, g := c.s.guestsOf(r)
	if g == nil {
		return dhcp.Client{}, false
	}
	ask := Request{MAC: r.MAC, Class: r.Class, Arch: r.Arch, Brief: true}
	d, ok := c.s.decideGuestOf(name, g, ask)
	if ok && c.s.isReserved(ctx, d.Interface.Address) { // since the guest got it
		g.evict(r.MAC)
		ok = false
	}
	if !ok && c.s.admitGuest(ctx, r, name, g) {
		d, ok = c.s.decideGuestOf(name, g, ask)
	}
	if !ok {
		return dhcp.Client{}, false
	}
	g.renew(r.MAC, c.s.now())
	return d.client(), true
}

// DeclineGuest implements dhcp.Decider.
func (c dhcpClients) DeclineGuest(r dhcp.Request) {
	if _, g := c.s.guestsOf(r); g != nil {
		g.declined(r.MAC, c.s.now())
	}
}

// BootFile implements dhcp.Decider.
func (c dhcpClients) BootFile(ctx context.Context, x dhcp.Client, r dhcp.Request) string {
	log := func() *slog.Logger { return c.s.log.With(x.Owner.LogKeys(x.Boot)...) }
	file, why := c.s.bootFile(x, r.Class)
	if why != "" {
		log().Error("no boot file for an armed machine", "reason", why)
	}
	kind, message := x.Event, string(r.Class)
	switch {
	case r.Class == wire.ClassNone:
		kind, message = inventory.EventOS, ""
	case x.Armed && file != "":
		kind, message = inventory.EventDHCP, message+", "+archName(r.Arch)+": "+file
	case x.Armed:
		log().Warn("an armed machine asks for a boot file and gets none", "reasons", c.Reasons(ctx, r))
		return ""
	}
	c.s.rec.Event(newEvent(x.Owner, x.Boot, kind, message))
	return file
}

// bootFile returns the file name or URL that DHCP hands out to a client, or "". If it has a
// loader that cannot be served, why explains it: DHCP must not hand out a name that
// does not resolve.
func (s *Server) bootFile(x dhcp.Client, class wire.Class) (file, why string) {
	switch {
	case x.Interface.DisableDHCP:
		return "", ""
	case x.Script:
		return s.Base() + "/ipxe/script/" + x.Interface.MAC + "/" + scriptName, ""
	case x.Loader == "":
		return "", ""
	case s.cfg.LoaderDir == "":
		return "", fmt.Sprintf("loader %s is not served: netboot.loaders is not set", x.Loader)
	}
	if why := s.unserved(x.Loader); why != "" {
		return "", why
	}
	if class == wire.ClassHTTP {
		return s.loaderURL(x.Interface.MAC, x.Loader), ""
	}
	return x.Loader, ""
}

// loaderURL returns the URL of a loader for the client with a MAC.
func (s *Server) loaderURL(mac, name string) string {
	return s.Base() + loaderPath + strings.ReplaceAll(mac, ":", "-") + "/" + name
}

// Reasons implements dhcp.Decider.
func (c dhcpClients) Reasons(ctx context.Context, r dhcp.Request) []string {
	_, _, d, err := c.s.lookup(ctx, Request{MAC: r.MAC, Class: r.Class, Arch: r.Arch})
	if err != nil {
		return nil // it worked a moment ago
	}
	return d.Reasons
}

// InReservedNetwork implements dhcp.Decider.
func (c dhcpClients) InReservedNetwork(a netip.Addr) bool { return c.s.machines.InReservedNetwork(a) }
