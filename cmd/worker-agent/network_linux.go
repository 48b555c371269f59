package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"

	"github.com/ingotmetal/ingot/action"
)

// network configures the interface with the address mac by DHCP, and starts a goroutine that renews the
// lease. It retries until it has an address, without a limit.
func network(ctx context.Context, log *slog.Logger, mac string) {
	if lo, err := netlink.LinkByName("lo"); err == nil {
		_ = netlink.LinkSetUp(lo) // ignore the error: the agent does not need the loopback interface
	}
	for pause := 500 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		link, lease, err := configure(ctx, log, mac)
		if err == nil {
			go keep(ctx, log, link, lease)
			return
		}
		log.Warn("bringing up the network", "mac", mac, "error", err)
		time.Sleep(pause)
	}
}

// configure makes one attempt to configure the interface with the address mac, and returns the interface and its lease.
func configure(ctx context.Context, log *slog.Logger, mac string) (netlink.Link, *nclient4.Lease, error) {
	link, err := findLink(mac)
	if err != nil {
		return nil, nil, err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, nil, fmt.Errorf("setting %s up: %w", link.Attrs().Name, err)
	}

	awaitCarrier(link, 10*time.Second)
	lease, err := request(ctx, link, nil)
	if err != nil {
		return nil, nil, err
	}
	if err := apply(link, lease.ACK); err != nil {
		return nil, nil, err
	}

	log.Info("address", "interface", link.Attrs().Name, "mac", link.Attrs().HardwareAddr.String(), "address",
		lease.ACK.YourIPAddr.String(),
		"router", fmt.Sprint(lease.ACK.Router()), "server", lease.ACK.ServerIdentifier().String())
	return link, lease, nil
}

// unplug sets all network cards down. Without unplug, Linux 6.1 was seen to hang while it shut down its devices: it
// waited for a virtio card that still received packets, although the kernel had already removed the card's ring.
func unplug() {
	links, err := netlink.LinkList()
	if err != nil {
		return
	}

	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback == 0 {
			_ = netlink.LinkSetDown(l) // on an error, the card stays up until the kernel shuts it down
		}
	}
}

func findLink(mac string) (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}

	var there []string
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || len(a.HardwareAddr) != 6 {
			continue
		}
		if mac == "" || strings.EqualFold(a.HardwareAddr.String(), mac) {
			return l, nil
		}
		there = append(there, a.Name+" "+a.HardwareAddr.String())
	}

	return nil, fmt.Errorf("finding the interface with MAC %s: this machine has only %v", mac, there)
}

// awaitCarrier waits until the interface has a carrier, but at most for limit. It reports no error: without a carrier, DHCP
// fails, and then the function network calls configure again.
func awaitCarrier(link netlink.Link, limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		l, err := netlink.LinkByIndex(link.Attrs().Index)
		if err == nil && (l.Attrs().OperState == netlink.OperUp || l.Attrs().OperState == netlink.OperUnknown) {
			return
		}
	}
}

// request renews a lease, or gets a new one if old is nil. It sends a vendor class that no firmware uses, so that the
// server does not mistake the request for another network boot.
func request(ctx context.Context, link netlink.Link, old *nclient4.Lease) (*nclient4.Lease, error) {
	c, err := nclient4.New(link.Attrs().Name, nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(4))
	if err != nil {
		return nil, fmt.Errorf("opening a socket for DHCP: %w", err)
	}
	// Close does not release the lease; ignore its error.
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	options := dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer,
		dhcpv4.OptionInterfaceMTU, dhcpv4.OptionClasslessStaticRoute)
	class := dhcpv4.WithOption(dhcpv4.OptClassIdentifier(action.VendorClass))
	var lease *nclient4.Lease
	if old != nil {
		lease, err = c.Renew(ctx, old, options, class)
	} else {
		lease, err = c.Request(ctx, options, class)
	}
	if err != nil {
		return nil, fmt.Errorf("asking for an address on %s: %w", link.Attrs().Name, err)
	}
	return lease, nil
}

// apply configures the interface with the address, MTU, routes and name servers of ack.
func apply(link netlink.Link, ack *dhcpv4.DHCPv4) error {
	mask := ack.SubnetMask()
	if mask == nil {
		mask = ack.YourIPAddr.DefaultMask()
	}

	addr := &netlink.Addr{IPNet: &net.IPNet{IP: ack.YourIPAddr, Mask: mask}}
	have, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing addresses: %w", err)
	}

	for _, h := range have {
		if h.IPNet.String() != addr.IPNet.String() {
			_ = netlink.AddrDel(link, &h) // ignore the error: an additional address does no harm
		}
	}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("setting the address %s: %w", addr.IPNet, err)
	}
	if mtu, err := dhcpv4.GetUint16(dhcpv4.OptionInterfaceMTU, ack.Options); err == nil && mtu >= 576 {
		if err := netlink.LinkSetMTU(link, int(mtu)); err != nil {
			return fmt.Errorf("setting the MTU %d: %w", mtu, err)
		}
	}

	var errs []error
	for _, r := range routesOf(ack, addr.IPNet) {
		r.LinkIndex = link.Attrs().Index
		if err := netlink.RouteReplace(&r); err != nil {
			errs = append(errs, fmt.Errorf("setting the route to %v through %v: %w", r.Dst, r.Gw, err))
		}
	}

	var resolv strings.Builder
	for _, ip := range ack.DNS() {
		fmt.Fprintf(&resolv, "nameserver %s\n", ip)
	}
	errs = append(errs, os.WriteFile("/etc/resolv.conf", []byte(resolv.String()), 0o644))
	return errors.Join(errs...)
}

// routesOf returns the routes in ack for an interface with this address and subnet.
func routesOf(ack *dhcpv4.DHCPv4, own *net.IPNet) (out []netlink.Route) {
	add := func(dst *net.IPNet, gw net.IP) {
		r := netlink.Route{Dst: dst, Gw: gw}
		switch {
		case gw == nil || gw.IsUnspecified():
			r.Gw, r.Scope = nil, netlink.SCOPE_LINK
		case !own.Contains(gw): // without this flag the kernel refuses the route: network is unreachable
			r.SetFlag(netlink.FLAG_ONLINK)
		}
		out = append(out, r)
	}
	// RFC 3442: a client ignores the router option if there are classless routes.
	if routes := ack.ClasslessStaticRoute(); len(routes) > 0 {
		for _, r := range routes {
			add(r.Dest, r.Router)
		}
	} else if routers := ack.Router(); len(routers) > 0 {
		add(&net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, routers[0])
	}
	return out
}

// keep renews the lease each time half of it has passed, and never returns. If the server does not answer, the machine
// keeps the address, because an installation may be running.
func keep(ctx context.Context, log *slog.Logger, link netlink.Link, lease *nclient4.Lease) {
	for {
		half := lease.ACK.IPAddressLeaseTime(time.Hour) / 2
		time.Sleep(max(half, 30*time.Second))
		next, err := request(ctx, link, lease)
		if err != nil {
			next, err = request(ctx, link, nil)
		}

		if err == nil {
			err = apply(link, next.ACK)
			lease = next
		}
		if err != nil {
			log.Warn("renewing the address", "error", err)
		}
	}
}
