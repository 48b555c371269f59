package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/inventory"
)

// checkPorts tries to bind every socket that ingot serve would bind, except the sockets of the provisioning
// network, for which there are separate checks. While the server runs, checkPorts binds nothing.
func checkPorts(_ context.Context, d *host) (out []Finding) {
	if d.running {
		return []Finding{ok("not checked, because a server answers at %s", d.cfg.Listen)}
	}

	sockets, _ := hostnet.Sockets(d.cfg)
	for _, s := range sockets {
		name := fmt.Sprintf("%s %s (%s)", s.Network, s.Addr, s.Key)
		switch err := s.Try(); {
		case err == nil:
		case errors.Is(err, syscall.EADDRINUSE):
			out = append(out, fail("%s is in use by another program", name).remedy(
				"ss -l"+s.Network[:1]+"np shows the program; stop it, or change "+s.Key))
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			out = append(out, fail("%s cannot be opened without a capability", name).remedy(setcap(d.cfg.Netboot)))
		default:
			out = append(out, fail("%s: %v", name, err).remedy("correct "+s.Key+" in the configuration"))
		}
	}
	if len(out) == 0 {
		out = append(out, ok("all %d are free", len(sockets)))
	}

	return out
}

func checkNetboot(_ context.Context, d *host) []Finding {
	if d.cfg.Netboot.On() {
		return nil
	}
	return []Finding{warn("no interface is configured: DHCP is off")}
}

// checkAddress sets netboot.interfaces to the interface with netboot.address, if only the address is configured. It
// fails if no interface has that address.
func checkAddress(_ context.Context, d *host) []Finding {
	n, err := d.cfg.Netboot.Resolve()
	d.cfg.Netboot = n
	if err != nil {
		return []Finding{fail("%v", err)}
	}
	return nil
}

// capability is a Linux capability: its name and its number.
type capability struct {
	name string
	bit  int
}

// capabilities returns the capabilities that the server needs if it does not run as root.
func capabilities(n config.Netboot) []capability {
	all := []capability{{"cap_net_bind_service", unix.CAP_NET_BIND_SERVICE}, {"cap_net_raw", unix.CAP_NET_RAW}}
	if n.RelayOnly {
		return all[:1]
	}
	return all
}

// setcap returns the command that gives this program the capabilities.
func setcap(n config.Netboot) string {
	var names []string
	for _, c := range capabilities(n) {
		names = append(names, c.name)
	}
	return "setcap " + strings.Join(names, ",") + "+ep " + programPath()
}

func programPath() string {
	if p, err := os.Executable(); err == nil {
		return p
	}
	return "ingot"
}

func checkCapabilities(_ context.Context, d *host) []Finding {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return []Finding{warn("reading /proc/self/status: %v", err)}
	}

	_, rest, _ := strings.Cut(string(b), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	have, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return []Finding{warn("reading /proc/self/status: %v", err)}
	}

	var missing []string
	for _, c := range capabilities(d.cfg.Netboot) {
		if have&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return []Finding{fail("missing: %s", strings.Join(missing, ", ")).remedy(setcap(d.cfg.Netboot) + ", or run as root")}
	}
	if d.cfg.Netboot.RelayOnly {
		return []Finding{ok("ports below 1024 can be opened; relay_only needs nothing else")}
	}

	return []Finding{ok("raw sockets and ports below 1024 can be opened")}
}

func checkInterfaces(_ context.Context, d *host) (out []Finding) {
	all := hostnet.Interfaces()
	for _, name := range d.cfg.Netboot.Interfaces {
		i := slices.IndexFunc(all, func(x hostnet.Interface) bool { return x.Name == name })
		switch {
		case i < 0:
			out = append(out, fail("%s does not exist", name))
		case !all[i].Up:
			out = append(out, fail("%s is down", name).remedy("ip link set "+name+" up"))
		case len(all[i].Addresses) == 0:
			out = append(out, fail("%s has no IPv4 address", name).remedy("ip address add ADDRESS/BITS dev "+name))
		default:
			out = append(out, ok("%s is up with %s", name, strings.Join(all[i].Addresses, ", ")))
		}
	}

	return out
}

// checkDiscoveryRanges checks that each range of addresses for unknown machines is in the subnet of its interface.
func checkDiscoveryRanges(_ context.Context, d *host) (out []Finding) {
	return rangeFindings(d.cfg.Netboot.Discovery.Ranges, hostnet.Interfaces(), hostnet.Gateways(d.routes))
}

func rangeFindings(ranges map[string]inventory.Range, all []hostnet.Interface, gateways []netip.Addr) (out []Finding) {
	for _, name := range slices.Sorted(maps.Keys(ranges)) {
		r := ranges[name]
		i := slices.IndexFunc(all, func(x hostnet.Interface) bool { return x.Name == name && len(x.Addresses) > 0 })
		if i >= 0 && !slices.ContainsFunc(all[i].Addresses, func(a string) bool {
			p, err := netip.ParsePrefix(a)
			return err == nil && p.Contains(r.From) && p.Contains(r.To)
		}) {
			out = append(out, fail("range %s is not in a subnet of %s (%s): unknown machines would get no address",
				r, name, strings.Join(all[i].Addresses, ", ")))
		}
		for _, g := range gateways {
			if r.Contains(g) {
				out = append(out, fail("range %s of %s contains %s: an unknown machine could get this address of the server's gateway",
					r, name, g))
			}
		}
	}
	return out
}

// checkForeignDHCP looks for other DHCP servers on each interface in netboot.interfaces that is up and has an address.
func checkForeignDHCP(ctx context.Context, d *host) (out []Finding) {
	for _, i := range hostnet.Interfaces() {
		if !i.Up || len(i.Addresses) == 0 || !slices.Contains(d.cfg.Netboot.Interfaces, i.Name) {
			continue
		}
		probe := neighbours.ProbeDHCP
		if d.cfg.Netboot.DHCP[i.Name] == inventory.DHCPOff {
			probe = neighbours.ProbeSnippet
		}
		found, err := probe(ctx, i.Name)
		if err != nil {
			out = append(out, warn("%v", err))
			continue // the probe failed, so there may be more servers than it has found
		}
		for _, f := range found {
			d.offers = append(d.offers, foreignOffer{i.Name, f})
		}
		out = append(out, checkServers(i.Name, d.cfg.Netboot, found)...)
	}

	return out
}

// checkServers checks the DHCP servers that were found on an interface.
func checkServers(name string, n config.Netboot, found []neighbours.ForeignServer) (out []Finding) {
	mode := n.DHCP[name]
	if mode != inventory.DHCPProxy && mode != inventory.DHCPOff {
		for _, f := range found {
			out = append(out, warn("%s", ForeignDHCPText(name, f)).remedy(
				"exclude Ingot's machines on "+f.Server.String()+", or turn off DHCP there"))
		}
		if len(found) == 0 {
			out = append(out, ok("no other DHCP server answers on %s", name))
		}
		return out
	}

	addresses := 0
	for _, f := range found {
		if !f.Proxy {
			addresses++
		}
		switch {
		case f.Proxy:
			out = append(out, warn("%s", ForeignDHCPText(name, f)).remedy("turn off PXE on "+f.Server.String()))
		case mode == inventory.DHCPOff:
			out = append(out, checkSnippet(name, n, f))
		case f.BootFile != "":
			out = append(out, warn("%s assigns addresses on %s, but also sends the boot file %q: machines may boot that file instead of Ingot's",
				f.Server, name, f.BootFile).remedy(
				"remove the boot file from that server; or set dhcp: {"+name+": off} and configure that server as ingot dhcp snippet shows"))
		default:
			out = append(out, ok("%s assigns addresses on %s", f.Server, name))
		}
	}
	if addresses == 0 {
		out = append(out, fail("no DHCP server assigns addresses on %s, and Ingot assigns none in mode %s", name, mode).remedy(
			"start a DHCP server, or set dhcp: {"+name+": reservation}; this check does not find a server that answers only clients it knows"))
	}
	return out
}

// checkSnippet checks the boot files that the DHCP server f names to each kind of client on an interface in mode "off". It fails
// only if the file for UEFI PXE clients is wrong. For other kinds of clients, which may not exist in this network, it warns.
func checkSnippet(name string, n config.Netboot, f neighbours.ForeignServer) Finding {
	address, err := hostnet.ProvisioningAddress(n)
	if err != nil {
		return fail("%v", err)
	}

	files, err := bootsvc.SnippetFiles(n.Loader)
	if err != nil {
		return fail("%v", err)
	}
	switch wrong, uefi := f.SnippetDifferences(address, n.HTTP, files); {
	case uefi:
		return fail("%s assigns addresses on %s, but does not send machines to Ingot: %s", f.Server, name, strings.Join(wrong, "; ")).remedy(
			"configure that server as ingot dhcp snippet shows")
	case len(wrong) > 0:
		return warn("%s assigns addresses on %s, but sends only some kinds of machines to Ingot: %s", f.Server, name, strings.Join(wrong,
			"; ")).remedy(
			"if you have machines of the other kinds, configure that server as ingot dhcp snippet shows")
	}
	return ok("%s assigns addresses on %s, and sends machines to Ingot", f.Server, name)
}

// checkOffers warns of each address that another DHCP server offered although it is reserved for a machine.
func checkOffers(_ context.Context, d *host) (out []Finding) {
	if !d.asksThisHost() {
		return nil
	}
	return offerFindings(d.offers, d.machines)
}

func offerFindings(offers []foreignOffer, machines []apitypes.MachineView) (out []Finding) {
	for _, o := range offers {
		for _, m := range machines {
			for _, i := range m.Interfaces {
				if o.Offered.IsValid() && i.Address == o.Offered {
					out = append(out, warn("%s on %s offered %s to an unknown client, but that address is reserved for %s (%s)",
						o.Server, o.iface, o.Offered, m.Name, i.MAC).remedy("exclude "+o.Offered.String()+
						" from the range of "+o.Server.String()))
				}
			}
		}
	}
	return out
}

// ForeignDHCPText describes another DHCP server on an interface, and the consequence for machines.
func ForeignDHCPText(name string, f neighbours.ForeignServer) string {
	if f.Proxy {
		return fmt.Sprintf("%s answers PXE on %s with boot file %q: machines may boot that file instead of Ingot's",
			f.Server, name, f.BootFile)
	}

	text := fmt.Sprintf("%s answers DHCP on %s and offered %s", f.Server, name, f.Offered)
	if f.BootFile != "" {
		text += fmt.Sprintf(" with boot file %q", f.BootFile)
	}

	return text + ": exclude Ingot's machines on that server, or two servers answer them"
}

// checkRelayAddress checks that this host has netboot.address, if the server answers only relays.
func checkRelayAddress(_ context.Context, d *host) []Finding {
	n := d.cfg.Netboot
	if !n.RelayOnly {
		return nil
	}

	a, err := netip.ParseAddr(n.Address)
	switch {
	case err == nil && slices.Contains(hostnet.Addresses(), a):
		return []Finding{ok("this host has %s, which relays and machines reach", n.Address)}
	case n.Listen != "":
		return []Finding{ok("%s belongs to another host, which must forward the ports to this one: netboot.listen is %s",
			n.Address, n.Listen)}
	}

	return []Finding{fail("this host does not have the address %s", n.Address)}
}

// checkRelayRoutes checks the route to each relay. It warns if only the default route leads there, which is usually
// wrong: the default router would need a route to the machines' network.
func checkRelayRoutes(ctx context.Context, d *host) (out []Finding) {
	for _, r := range d.cfg.Netboot.Relays {
		if a, err := netip.ParseAddr(r); err == nil { // a prefix is not checked, because the addresses of its relays are not known
			out = append(out, checkRelayRoute(ctx, d, a))
		}
	}
	return out
}

func checkRelayRoute(ctx context.Context, d *host, relay netip.Addr) Finding {
	// Connecting a UDP socket sends nothing: the kernel only looks for a route.
	c, err := (&net.Dialer{}).DialContext(ctx, "udp4", net.JoinHostPort(relay.String(), "67"))
	if err != nil {
		return fail("no route to relay %s: %v", relay, err)
	}

	_ = c.Close() // nothing was sent

	route, known := hostnet.RouteTo(d.routes, relay)
	switch {
	case known && route.To.Bits() == 0 && d.cfg.Netboot.Listen != "":
		return ok("replies to relay %s leave this container by its default route; the container's host needs a route to the relay's network",
			relay)
	case known && route.To.Bits() == 0:
		return warn("only the default route leads to relay %s: the router %s needs a route to the machines' network",
			relay, route).remedy("ip route add NETWORK/BITS via ROUTER " +
			"(DSM: Control Panel → Network → Static Route), unless the default router has this route")
	}

	return ok("replies to relay %s have a route", relay)
}

// checkReachability connects to the URLs that machines use. It returns nil if the server does not run, or if
// another host forwards the ports: these can be checked only from the machines' network.
func checkReachability(ctx context.Context, d *host) (out []Finding) {
	n := d.cfg.Netboot
	a, err := hostnet.ProvisioningAddress(n)
	if err != nil || n.Listen != "" || !d.running {
		return nil
	}

	urls := []string{"https://" + config.Join(a.String(), n.Agent) + "/"}
	for _, p := range slices.Concat(n.HTTP, n.Metadata) {
		urls = append(urls, "http://"+config.Join(a.String(), p)+"/")
	}

	for _, u := range urls {
		if _, err := headURL(ctx, u, true); err != nil {
			out = append(out, fail("%s, which machines use, does not answer: %v", u, err))
		} else {
			out = append(out, ok("%s answers", u))
		}
	}

	return out
}
