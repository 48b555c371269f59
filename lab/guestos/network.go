package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// cards returns the Ethernet interfaces, sorted by name.
func cards() ([]net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var eth []net.Interface
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && len(i.HardwareAddr) == 6 {
			eth = append(eth, i)
		}
	}
	sort.Slice(eth, func(a, b int) bool { return eth[a].Name < eth[b].Name })
	return eth, nil
}

// unplug sets all cards down before the kernel shuts its devices down. Otherwise Linux 6.1 can hang: it waits for the ring of a
// virtio card that still receives packets and is already broken.
func unplug() {
	all, err := cards()
	if err != nil {
		return
	}
	for _, c := range all {
		if l, err := netlink.LinkByName(c.Name); err == nil {
			_ = netlink.LinkSetDown(l) // then it goes with it up
		}
	}
}

func linkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// addAddress adds an address to an interface and announces it by ARP.
func addAddress(name, cidr string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(l, a); err != nil {
		return fmt.Errorf("setting the address %s of %q: %w", cidr, name, err)
	}
	return announce(l, a.IP)
}

// announce sends a gratuitous ARP (RFC 5227 §3), so that neighbours find an address that moved.
func announce(l netlink.Link, ip net.IP) error {
	mac, ip4 := l.Attrs().HardwareAddr, ip.To4()
	if len(mac) != 6 || ip4 == nil || ip4.IsLoopback() {
		return nil
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing is lost with it
	all := bytes.Repeat([]byte{0xff}, 6)
	frame := append(append(bytes.Clone(all), mac...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	frame = append(append(append(append(frame, mac...), ip4...), make([]byte, 6)...), ip4...)
	return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Halen: 6, Addr: [8]byte(append(all, 0, 0))})
}

// addRoute sets a route; dst "" or 0.0.0.0/0 is the default one.
func addRoute(dst, gateway string) error {
	_, n, err := net.ParseCIDR("0.0.0.0/0")
	if dst != "" {
		_, n, err = net.ParseCIDR(dst)
	}
	gw := net.ParseIP(gateway)
	if err != nil || gw == nil {
		return fmt.Errorf("route %q via %q: no addresses", dst, gateway)
	}
	return netlink.RouteReplace(&netlink.Route{Dst: n, Gw: gw})
}

// lease requests an address until it gets one, and renews it until ctx ends. hostname may be empty.
func (h *host) lease(ctx context.Context, name, hostname string) error {
	if err := linkUp(name); err != nil {
		return err
	}
	var got *nclient4.Lease
	for try := 1; ; try++ {
		var err error
		if got, err = request(ctx, name, hostname, nil); err == nil {
			break
		}
		h.say("dhcp %s: try %d: %v", name, try, err)
		if !pause(ctx, time.Second) {
			return ctx.Err()
		}
	}
	h.say("dhcp %s: address %s from %s", name, got.ACK.YourIPAddr, got.ACK.ServerIdentifier())
	go func() {
		for pause(ctx, max(got.ACK.IPAddressLeaseTime(time.Hour)/2, time.Second)) {
			again, err := request(ctx, name, hostname, got)
			if err != nil {
				again, err = request(ctx, name, hostname, nil)
			}
			if err != nil {
				h.say("dhcp %s: %v", name, err)
				continue
			}
			got = again
		}
	}()
	return nil
}

// request does a DHCP exchange (a whole one, or the renewal of old) and configures the interface.
func request(ctx context.Context, name, hostname string, old *nclient4.Lease) (*nclient4.Lease, error) {
	mods := []dhcpv4.Modifier{dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer,
		dhcpv4.OptionHostName, dhcpv4.OptionClasslessStaticRoute)}
	if hostname != "" {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptHostName(hostname)))
	}
	c, err := nclient4.New(name, nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(3))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // nothing is lost with it
	var l *nclient4.Lease
	if old != nil {
		l, err = c.Renew(ctx, old, mods...)
	} else {
		l, err = c.Request(ctx, mods...)
	}
	if err != nil {
		return nil, err
	}
	mask := l.ACK.SubnetMask()
	if mask == nil {
		mask = l.ACK.YourIPAddr.DefaultMask()
	}
	if err := addAddress(name, (&net.IPNet{IP: l.ACK.YourIPAddr, Mask: mask}).String()); err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	// RFC 3442: with classless routes the router option is ignored.
	if routes := l.ACK.ClasslessStaticRoute(); len(routes) > 0 {
		for _, r := range routes {
			route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: r.Dest, Gw: r.Router}
			if r.Router == nil || r.Router.IsUnspecified() {
				route.Gw, route.Scope = nil, netlink.SCOPE_LINK
			}
			err = errors.Join(err, netlink.RouteReplace(route))
		}
	} else if routers := l.ACK.Router(); len(routers) > 0 {
		err = netlink.RouteReplace(
			&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: routers[0]},
		)
	}
	return l, err
}

// leaseAll requests addresses on all cards and returns when the first card has one.
func (h *host) leaseAll(ctx context.Context, hostname string) error {
	all, err := cards()
	if err != nil || len(all) == 0 {
		return fmt.Errorf("finding network cards: none (%w)", err)
	}
	done := make(chan error, len(all))
	for _, c := range all {
		go func() { done <- h.lease(ctx, c.Name, hostname) }()
	}
	return <-done
}

// client returns an HTTP client that does not verify certificates, because the guest has no authority for them.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as rd.noverifyssl says
		DisableKeepAlives: true,
		DialContext:       (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	}}
}

// fetch gets a document of at most limit bytes.
func fetch(ctx context.Context, from string, limit int64) ([]byte, error) {
	var b bytes.Buffer
	_, err := fetchTo(ctx, from, limit, &b)
	return b.Bytes(), err
}

// fetchFile gets a large file.
func fetchFile(ctx context.Context, from, path string) (int64, error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	n, err := fetchTo(ctx, from, 1<<40, f)
	return n, errors.Join(err, f.Close())
}

func fetchTo(ctx context.Context, from string, limit int64, to io.Writer) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("User-Agent", "ingot-lab-guest")
	res, err := client().Do(req)
	if err != nil {
		return 0, plain(err)
	}
	defer res.Body.Close() // only read from
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 200)) // only for the message
		return 0, fmt.Errorf("fetching: status %s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	n, err := io.Copy(to, io.LimitReader(res.Body, limit))
	if err == nil && res.ContentLength >= 0 && n != res.ContentLength {
		err = fmt.Errorf("fetching: %d of %d bytes came", n, res.ContentLength)
	}
	return n, err
}

// plain removes the URL from an error, because it may contain a secret.
func plain(err error) error {
	var whole *url.Error
	if errors.As(err, &whole) {
		return whole.Err
	}
	return err
}
