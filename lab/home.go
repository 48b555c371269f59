package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// The namespaces of a lab with Options.Home. Router is then the only connection between the home
// network and the others, and its relay forwards DHCP from VLAN 20 to Seed.
const (
	Seed       Namespace = "nas"  // a second host for Ingot, only on the home network
	HomeRouter Namespace = "home" // gives addresses of the home network to every client
	Target               = Server // the host on the provisioning network, to which Ingot moves
)

// Addresses of the home network.
const (
	HomeVLAN          = 1
	SeedAddress       = "192.168.1.10" // eth0 of Seed
	SeedInterface     = "eth0"
	TargetAddress     = ServerAddress
	HomeGateway       = "192.168.1.1" // HomeRouter: it has no uplink
	RouterHomeAddress = "192.168.1.2" // eth1 of Router
)

// SeedLink is the cable of Seed.
const SeedLink Link = "p-nas-eth0"

// Addresses given by HomeRouter: 192.168.1.100 to .199, for an hour.
var (
	homeFirst = netip.MustParseAddr("192.168.1.100")
	homePool  = 100
)

// buildHome adds the home network to an existing lab.
func (l *Lab) buildHome(ctx context.Context) error {
	for _, ns := range []Namespace{Seed, HomeRouter} {
		if err := l.addNamespace(ctx, ns); err != nil {
			return err
		}
	}
	sw := bridge(HomeVLAN)
	for _, p := range []port{
		{Seed, SeedInterface, HomeVLAN},
		{HomeRouter, "eth0", HomeVLAN},
		{Router, "eth1", HomeVLAN},
		{Router, "eth10", BMCVLAN},
	} {
		sw = append(sw, l.plug(p)...)
	}
	if err := l.ipBatch(ctx, Switch, sw...); err != nil {
		return err
	}
	for _, n := range []struct {
		ns  Namespace
		cmd []string
	}{
		{
			Router,
			[]string{"link set eth1 up", "addr add " + RouterHomeAddress + "/24 dev eth1", "link set eth10 up", "addr add 10.10.10.1/24 dev eth10"},
		},
		{
			Seed,
			[]string{
				"link set eth0 up", "addr add " + SeedAddress + "/24 dev eth0",
				"route add default via " + HomeGateway, "route add 10.10.0.0/16 via " + RouterHomeAddress,
			},
		},
		{HomeRouter, []string{"link set eth0 up", "addr add " + HomeGateway + "/24 dev eth0"}},
		{BMCs, []string{"route add default via 10.10.10.1"}},
	} {
		if err := l.ipBatch(ctx, n.ns, n.cmd...); err != nil {
			return err
		}
	}
	l.relays, l.relayFlags = []string{SeedAddress}, []string{"-id", "eth20", "-iu", "eth1"}
	h := &homeDHCP{lab: l, leases: map[string]netip.Addr{}}
	l.home = h
	return h.start(ctx)
}

// SetRelays makes the router's DHCP relay send to these servers; without servers there is no relay.
// It restarts the relay, as VyOS does on a commit. A lab with Options.Home relays requests from
// VLAN 20, any other lab those from VLAN 30.
func (l *Lab) SetRelays(servers ...string) error {
	l.StopRelay()
	l.mu.Lock()
	l.relays = slices.Clone(servers)
	l.mu.Unlock()
	if len(servers) == 0 {
		return nil
	}
	return l.StartRelay()
}

// Relays returns the servers that the relay is configured for, whether or not it is running.
func (l *Lab) Relays() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.relays)
}

// HomeLeases returns the addresses that the home router has given, by MAC. The home router answers
// every client and knows nothing of Ingot.
func (l *Lab) HomeLeases() map[string]netip.Addr {
	if l.home == nil {
		return nil
	}
	l.home.mu.Lock()
	defer l.home.mu.Unlock()
	out := map[string]netip.Addr{}
	for mac, a := range l.home.leases {
		out[mac] = a
	}
	return out
}

// homeDHCP is the DHCP server of a home router: it gives every client an address, and no boot file.
type homeDHCP struct {
	lab    *Lab
	mu     sync.Mutex
	leases map[string]netip.Addr
}

// start binds the port and serves until the lab is closed.
func (h *homeDHCP) start(ctx context.Context) error {
	var c net.PacketConn
	err := h.lab.InNamespace(HomeRouter, func() (err error) {
		lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
			var opt error
			err := rc.Control(func(fd uintptr) {
				opt = errors.Join(unix.BindToDevice(int(fd), "eth0"), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
			})
			return errors.Join(err, opt)
		}}
		c, err = lc.ListenPacket(ctx, "udp4", ":67")
		return err
	})
	if err != nil {
		return fmt.Errorf("binding the home router's DHCP: %w", err)
	}
	done := make(chan struct{})
	if !h.lab.onClose(func() error {
		err := c.Close()
		<-done
		return err
	}) {
		_ = c.Close()
		return ErrClosed
	}
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, _, err := c.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			r := h.answer(buf[:n])
			if r == nil {
				continue
			}
			// All answers are broadcast: the client has no address yet.
			if _, err := c.WriteTo(r.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort}); err != nil {
				h.lab.log.Warn("answering DHCP at home", "error", err)
			}
		}
	}()
	return nil
}

// answer returns the reply to a packet, or nil for none.
func (h *homeDHCP) answer(b []byte) *dhcpv4.DHCPv4 {
	p, err := dhcpv4.FromBytes(b)
	if err != nil || p.OpCode != dhcpv4.OpcodeBootRequest || !p.GatewayIPAddr.IsUnspecified() {
		return nil
	}
	kind := dhcpv4.MessageTypeOffer
	switch p.MessageType() {
	case dhcpv4.MessageTypeDiscover:
	case dhcpv4.MessageTypeRequest:
		if id := p.ServerIdentifier(); id != nil && id.String() != HomeGateway {
			return nil // the client chose another server
		}
		kind = dhcpv4.MessageTypeAck
	default:
		return nil
	}
	a, ok := h.lease(p.ClientHWAddr.String())
	if !ok {
		return nil
	}
	if kind == dhcpv4.MessageTypeAck {
		wanted := p.RequestedIPAddress()
		if wanted == nil {
			wanted = p.ClientIPAddr
		}
		if p.ServerIdentifier() == nil && wanted.String() != a.String() {
			return nil // the returning client of another server
		}
	}
	gateway := net.ParseIP(HomeGateway)
	r, err := dhcpv4.NewReplyFromRequest(
		p,
		dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(a.AsSlice()),
		dhcpv4.WithServerIP(gateway),
		dhcpv4.WithOption(
			dhcpv4.OptServerIdentifier(gateway),
		),
		dhcpv4.WithOption(dhcpv4.OptRouter(gateway)),
		dhcpv4.WithOption(dhcpv4.OptDNS(gateway)),
		dhcpv4.WithOption(dhcpv4.OptSubnetMask(net.CIDRMask(24, 32))),
		dhcpv4.WithOption(dhcpv4.OptIPAddressLeaseTime(time.Hour)),
	)
	if err != nil {
		return nil
	}
	return r
}

// lease returns the address for a MAC; ok is false if no address is left.
func (h *homeDHCP) lease(mac string) (_ netip.Addr, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a, ok := h.leases[mac]; ok {
		return a, true
	}
	if len(h.leases) >= homePool {
		return netip.Addr{}, false
	}
	b := homeFirst.As4()
	b[3] += byte(len(h.leases))
	h.leases[mac] = netip.AddrFrom4(b)
	return h.leases[mac], true
}

// startRelay starts ISC dhcrelay on the router with the flags of VyOS and option 82.
func (l *Lab) startRelay(flags, servers []string) (*Cmd, error) {
	log, err := os.OpenFile(filepath.Join(l.dir, "dhcrelay.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own descriptor
	args := slices.Concat([]string{"-4", "-d", "--no-pid", "-c", "10", "-a", "-m", "forward", "-A", "576"}, flags, servers)
	c := l.Command(l.ctx, Router, filepath.Join(PackageDir("relay"), "usr/sbin/dhcrelay"), args...)
	c.Stdout, c.Stderr = log, log
	return c, c.Start()
}

// RemoveRouter stops the relay and unplugs Router, so that a machine of the lab can be the router
// with its addresses. Connections through Router's namespace (DirectGateway, RelayedGateway) end.
func (l *Lab) RemoveRouter(ctx context.Context) error {
	l.StopRelay()
	out, err := l.Command(ctx, Router, "ip", "-o", "-4", "addr", "show").Output()
	if err != nil {
		return err
	}
	var down []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 1 && f[1] != "lo" {
			down = append(down, "link set "+f[1]+" down")
		}
	}
	return l.ipBatch(ctx, Router, down...)
}
