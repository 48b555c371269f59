package lab

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// The networks of a fleet: its machines are behind the router, which relays their DHCP, and their controllers are behind
// the namespace BMCs.
var (
	fleetMachines = netip.MustParsePrefix("10.11.0.0/16")
	fleetBMCs     = netip.MustParsePrefix("10.12.0.0/16")
	// FleetGateway is the address of the machines' router.
	FleetGateway = netip.MustParseAddr("10.11.255.254")
)

// fleetDHCPTries is how often a machine sends a DHCP packet, with pauses of 1, 2, 4 … s.
const fleetDHCPTries = 6

// A Fleet is many machines that cost little more than what they send: they have no namespace, no disk and no process. Each
// has its own address, a management controller that speaks Redfish over TLS, and when that switches it on, it boots as
// firmware and iPXE do, by DHCP through the router, TFTP and HTTP.
type Fleet struct {
	lab   *Lab
	relay *net.UDPConn

	mu      sync.Mutex
	waiting map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4
}

// A FleetMachine is a machine of a Fleet.
type FleetMachine struct {
	Name, MAC  string
	Address    netip.Addr
	BMC        *Redfish
	BMCAddress netip.Addr

	fleet *Fleet
	on    atomic.Bool
	ons   atomic.Int32
	power chan struct{} // a value for each power-on
}

// Fleet adds n machines to the lab, up to 60,000, which use the lab's router: its DHCP relay has to be stopped.
func (l *Lab) Fleet(ctx context.Context, n int) (*Fleet, []*FleetMachine, error) {
	f := &Fleet{lab: l, waiting: map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4{}}
	for ns, lines := range map[Namespace][]string{
		Router: {"route add local " + fleetMachines.String() + " dev lo"},
		BMCs:   {"route add local " + fleetBMCs.String() + " dev lo"},
		Server: {"route add " + fleetBMCs.String() + " via 10.10.10.10"},
	} {
		if err := l.ipBatch(ctx, ns, lines...); err != nil {
			return nil, nil, err
		}
	}
	machines := make([]*FleetMachine, n)
	byBMC := map[netip.Addr]*FleetMachine{}
	for i := range machines {
		m := &FleetMachine{
			Name: fmt.Sprintf("fleet-%d", i), MAC: fmt.Sprintf("52:54:02:00:%02x:%02x", i>>8, i&0xff),
			Address: nth(fleetMachines, i), BMCAddress: nth(fleetBMCs, i), fleet: f, power: make(chan struct{}, 16),
		}
		m.BMC = NewRedfish(m, RedfishHPE, "admin", "lab-fleet")
		machines[i], byBMC[m.BMCAddress] = m, m
	}
	if err := f.serveBMCs(ctx, byBMC); err != nil {
		return nil, nil, err
	}
	err := l.InNamespace(Router, func() (err error) {
		f.relay, err = net.ListenUDP("udp4", &net.UDPAddr{IP: FleetGateway.AsSlice(), Port: dhcpv4.ServerPort})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if !l.onClose(f.relay.Close) {
		return nil, nil, errors.Join(ErrClosed, f.relay.Close())
	}
	go f.readRelay()
	return f, machines, nil
}

// nth returns an address of a network of 16 bits; 250 in a row end in 1 to 250.
func nth(p netip.Prefix, i int) netip.Addr {
	b := p.Addr().As4()
	b[2], b[3] = byte(i/250), byte(1+i%250)
	return netip.AddrFrom4(b)
}

// serveBMCs serves the controllers of all machines at one socket: the address that a client has dialled tells which.
func (f *Fleet) serveBMCs(ctx context.Context, machines map[netip.Addr]*FleetMachine) error {
	cert, _, err := selfSigned(fleetBMCs.Addr().String())
	if err != nil {
		return err
	}
	s, err := f.lab.Listen(ctx, BMCs, fmt.Sprintf("0.0.0.0:%d", RedfishPort))
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
			if m := machines[at.AddrPort().Addr().Unmap()]; ok && m != nil {
				m.BMC.ServeHTTP(w, r)
				return
			}
			http.NotFound(w, r)
		}),
	}
	if !f.lab.onClose(server.Close) {
		return errors.Join(ErrClosed, s.Close())
	}
	go func() {
		err := server.Serve(tls.NewListener(s, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}))
		if !errors.Is(err, http.ErrServerClosed) {
			f.lab.log.Error("serving the controllers of a fleet", "error", err)
		}
	}()
	return nil
}

// readRelay gives each answer of the server to the machine that waits for it.
func (f *Fleet) readRelay() {
	buf := make([]byte, 2048)
	for {
		n, _, err := f.relay.ReadFromUDP(buf)
		if err != nil {
			return // closed
		}
		p, err := dhcpv4.FromBytes(buf[:n])
		if err != nil {
			continue
		}
		f.mu.Lock()
		ch := f.waiting[p.TransactionID]
		f.mu.Unlock()
		select {
		case ch <- p:
		default: // no machine waits for it, or it has an answer already
		}
	}
}

// exchange sends a packet as the relay does (RFC 1542) until an answer of the wanted type comes.
func (f *Fleet) exchange(ctx context.Context, p *dhcpv4.DHCPv4, want dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	p.GatewayIPAddr, p.HopCount = FleetGateway.AsSlice(), 1
	ch := make(chan *dhcpv4.DHCPv4, 1)
	f.mu.Lock()
	f.waiting[p.TransactionID] = ch
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiting, p.TransactionID)
	}()
	server := &net.UDPAddr{IP: net.ParseIP(ServerAddress), Port: dhcpv4.ServerPort}
	for try := range fleetDHCPTries {
		if _, err := f.relay.WriteToUDP(p.ToBytes(), server); err != nil {
			return nil, err
		}
		wait := time.After(time.Second << try)
		for waiting := true; waiting; {
			select {
			case got := <-ch:
				if got.MessageType() == want {
					return got, nil
				}
			case <-wait:
				waiting = false
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return nil, fmt.Errorf("no %s came", want)
}

// lease asks for an address as a client of that vendor class does; "" is an operating system.
func (m *FleetMachine) lease(ctx context.Context, class string) (*dhcpv4.DHCPv4, error) {
	mac, err := net.ParseMAC(m.MAC)
	if err != nil {
		return nil, err
	}
	discover, err := dhcpv4.NewDiscovery(mac, clientOptions(class, make([]byte, 16))...)
	if err != nil {
		return nil, err
	}
	offer, err := m.fleet.exchange(ctx, discover, dhcpv4.MessageTypeOffer)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, clientOptions(class, make([]byte, 16))...)
	if err != nil {
		return nil, err
	}
	return m.fleet.exchange(ctx, request, dhcpv4.MessageTypeAck)
}

// WaitPower returns when the controller has switched the machine on.
func (m *FleetMachine) WaitPower(ctx context.Context) error {
	select {
	case <-m.power:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PowerOns returns how often the machine was switched on.
func (m *FleetMachine) PowerOns() int { return int(m.ons.Load()) }

// Boot does what firmware and iPXE do: DHCP, the loader by TFTP, DHCP, script, kernel and initrd. It returns the kernel's
// command line; "" means that the machine boots its disk.
func (m *FleetMachine) Boot(ctx context.Context) (cmdline string, err error) {
	ack, err := m.lease(ctx, classPXE)
	if err != nil {
		return "", fmt.Errorf("asking for an address: %w", err)
	}
	loader := bootFile(ack)
	if loader == "" {
		return "", nil
	}
	if err := m.tftp(ack.ServerIPAddr, loader); err != nil {
		return "", fmt.Errorf("fetching loader %q: %w", loader, err)
	}
	if ack, err = m.lease(ctx, classIPXE); err != nil {
		return "", fmt.Errorf("asking for an address: %w", err)
	}
	url := bootFile(ack)
	if url == "" {
		return "", nil
	}
	client := m.HTTP()
	defer client.CloseIdleConnections()
	load := func(url string) (string, error) {
		var script strings.Builder
		_, err := download(ctx, client, url, &script)
		return script.String(), err
	}
	x := &ipxe{
		load: load,
		vars: map[string]string{
			"platform": "pcbios", "version": "2.0.0", "net0/ip": m.Address.String(), "net0/mac": m.MAC, "serial": m.Name,
		},
		say:   func(string) {},
		pause: func(d time.Duration) bool { return sleep(ctx, d) },
		fetch: func(_, url string) error {
			_, err := download(ctx, client, url, io.Discard)
			return err
		},
	}
	script, err := load(url)
	if err != nil {
		return "", err
	}
	return x.run(script)
}

// tftp reads a file as firmware does.
func (m *FleetMachine) tftp(server net.IP, name string) error {
	var c *net.UDPConn
	err := m.fleet.lab.InNamespace(Router, func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: m.Address.AsSlice()})
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close() // a UDP socket
	_, err = tftpRead(c, &net.UDPAddr{IP: server, Port: 69}, name)
	return err
}

// HTTP returns a client with the machine's address.
func (m *FleetMachine) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = m.fleet.lab.InNamespace(Router, func() (err error) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: m.Address.AsSlice()}}
			c, err = d.DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}}}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// PowerState implements Chassis.
func (m *FleetMachine) PowerState() PowerState {
	if m.on.Load() {
		return On
	}
	return Off
}

// PowerOn implements Chassis.
func (m *FleetMachine) PowerOn(context.Context) error {
	if m.on.Swap(true) {
		return nil
	}
	m.ons.Add(1)
	m.power <- struct{}{}
	return nil
}

// PowerOff implements Chassis.
func (m *FleetMachine) PowerOff(context.Context) error { m.on.Store(false); return nil }

// Reset implements Chassis.
func (m *FleetMachine) Reset(context.Context) error {
	if m.on.Load() {
		m.power <- struct{}{}
	}
	return nil
}

// PressPower implements Chassis.
func (m *FleetMachine) PressPower(ctx context.Context) error { return m.PowerOff(ctx) }

// SetNextBoot implements Chassis: every boot asks the network first.
func (m *FleetMachine) SetNextBoot(NextBoot) {}
