package bootsvc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	floodRate   = 800 // forged packets a second, half of them for TFTP
	floodRounds = 30  // of the armed machine, without and with the flood
	floodOff    = 200 // known machines that are off
)

// TestLabS30S34AbsentNeighbours floods a server with packets of forged addresses that no host on the segment has: each answer
// waits in the kernel for an ARP reply that never comes. Read requests come in the armed machine's own name as well. That machine,
// on the same segment, is answered by DHCP, on port 4011 and by TFTP, with no more repetitions than any client makes.
func TestLabS30S34AbsentNeighbours(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	ip(t, "address", "delete", "10.10.20.2/24", "dev", "srv0")
	ip(t, "address", "add", "10.10.20.2/16", "dev", "srv0")
	ip(t, "-n", clientNS, "address", "add", testAddr+"/16", "dev", "cli0")
	var cli *net.Interface
	atClient(t, func() (err error) {
		cli, err = net.InterfaceByName("cli0")
		return err
	})
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) {
		m.Interfaces[0].MAC, m.Interfaces[0].Netmask = cli.HardwareAddr.String(), "255.255.0.0"
	})}}
	for n := range floodOff {
		f.machines = append(f.machines, machine(func(m *inventory.Machine) {
			m.Name, m.Interfaces[0].MAC = fmt.Sprintf("off%d", n), offMAC(n).String()
			m.Interfaces[0].Address, m.Interfaces[0].Netmask = offAddress(n), "255.255.0.0"
		}))
	}
	for _, mode := range []inventory.DHCPMode{inventory.DHCPReservation, inventory.DHCPProxy} {
		t.Run(string(mode), func(t *testing.T) { floodOneMode(t, f, mode, cli) })
	}
}

// floodOneMode measures the armed machine's rounds without and with the flood.
func floodOneMode(t *testing.T, f *fakeMachines, mode inventory.DHCPMode, cli *net.Interface) {
	s, _ := newServer(t, f, func(c *Config) {
		c.Interfaces, c.HTTPAddr, c.Modes = []string{"srv0"}, []string{":80"}, map[string]inventory.DHCPMode{"srv0": mode}
	})
	f.setGrant(armed("node1"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	waitFor(t, func() bool { return s.fetchCheck(ctx) == nil })

	client := &floodClient{t: t, mac: cli.HardwareAddr, mode: mode}
	client.open()
	var quiet, flooded floodResult
	for range floodRounds {
		client.round(&quiet)
	}
	flood, incomplete := startFlood(t, cli, mode), 0
	for round := int64(1); round <= floodRounds; round++ {
		waitFor(t, func() bool { return flood.sent.Load() >= round*floodRate/5 })
		client.round(&flooded)
		incomplete = max(incomplete, incompleteNeighbours(t))
	}
	flood.stop()
	sent, st := flood.sent.Load(), s.Stats()
	t.Logf("mode %s, %d rounds quiet: %s", mode, floodRounds, quiet)
	t.Logf("mode %s, %d rounds during %d forged packets: %s; at most %d neighbours were unresolved; %+v",
		mode, floodRounds, sent, flooded, incomplete, st)
	// The rest was answered: what had room, and the armed machine.
	if st.DHCPUnresolved < sent/4 || st.TFTPUnresolved < sent/4 {
		t.Errorf("of %d forged packets, the answers to %d by DHCP and %d by TFTP were dropped", sent, st.DHCPUnresolved, st.TFTPUnresolved)
	}
	if limit := 64 + 128; incomplete > limit {
		t.Errorf("%d entries of the neighbour table were unresolved, more than %d", incomplete, limit)
	}
	if st.TFTPServed < 2*floodRounds {
		t.Errorf("%d files were served, not %d", st.TFTPServed, 2*floodRounds)
	}
}

// incompleteNeighbours counts the addresses that the kernel is asking for by ARP.
func incompleteNeighbours(t *testing.T) (n int) {
	t.Helper()
	all, err := netlink.NeighList(0, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if x.State == netlink.NUD_INCOMPLETE {
			n++
		}
	}
	return n
}

// floodClient is the armed machine.
type floodClient struct {
	t    *testing.T
	mac  net.HardwareAddr
	mode inventory.DHCPMode
	dhcp net.PacketConn
	xid  uint32

	repeated int // packets
}

// floodResult is what rounds took.
type floodResult struct {
	rounds, repeated int // repeated: packets of the machine
	total, longest   time.Duration
}

func (r floodResult) String() string {
	return fmt.Sprintf("%s each, the longest %s, %d packets repeated", (r.total / time.Duration(r.rounds)).Round(10*time.Microsecond),
		r.longest.Round(10*time.Microsecond), r.repeated)
}

// How long iPXE and EDK2 wait for an answer before each repetition.
var (
	dhcpWaits = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}
	tftpWaits = []time.Duration{2 * time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second}
)

func (c *floodClient) open() {
	c.t.Helper()
	atClient(c.t, func() (err error) {
		lc := net.ListenConfig{Control: broadcastOn("cli0")}
		c.dhcp, err = lc.ListenPacket(c.t.Context(), "udp4", ":68")
		return err
	})
	c.t.Cleanup(func() { _ = c.dhcp.Close() })
}

// round boots as far as the loader, and adds what that took to r.
func (c *floodClient) round(r *floodResult) {
	c.t.Helper()
	c.repeated = 0
	began := time.Now()
	c.ask(dhcpv4.MessageTypeDiscover, netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 67))
	if c.mode == inventory.DHCPProxy {
		c.ask(dhcpv4.MessageTypeRequest, netip.AddrPortFrom(testSelf, wire.ProxyPort))
	} else {
		c.ask(dhcpv4.MessageTypeInform, netip.AddrPortFrom(testSelf, 67)) // answered by unicast
	}
	c.fetch()
	took := time.Since(began)
	r.rounds, r.repeated = r.rounds+1, r.repeated+c.repeated
	r.total, r.longest = r.total+took, max(r.longest, took)
}

// ask sends a DHCP message until it is answered.
func (c *floodClient) ask(kind dhcpv4.MessageType, to netip.AddrPort) {
	c.t.Helper()
	c.xid++
	p := floodPacket(c.t, kind, c.mac, c.xid)
	if kind != dhcpv4.MessageTypeDiscover {
		p.ClientIPAddr = net.ParseIP(testAddr)
	}
	c.send(c.dhcp, p.ToBytes(), to, dhcpWaits, func(b []byte, _ net.Addr) bool {
		r, err := dhcpv4.FromBytes(b)
		return err == nil && r.OpCode == dhcpv4.OpcodeBootReply && r.TransactionID == p.TransactionID
	})
}

// fetch fetches the loader.
func (c *floodClient) fetch() {
	c.t.Helper()
	var conn net.PacketConn
	atClient(c.t, func() (err error) {
		var lc net.ListenConfig
		conn, err = lc.ListenPacket(c.t.Context(), "udp4", testAddr+":0")
		return err
	})
	defer conn.Close()
	to := netip.AddrPortFrom(testSelf, 69)
	packet, size := []byte("\x00\x01"+c.mac.String()+"/snponly.efi\x00octet\x00"), 0
	for block := uint16(1); ; block++ {
		var length int
		c.send(conn, packet, to, tftpWaits, func(b []byte, _ net.Addr) bool {
			length = len(b) - 4
			return len(b) >= 4 && b[1] == 3 && binary.BigEndian.Uint16(b[2:]) == block
		})
		size += length
		packet = binary.BigEndian.AppendUint16([]byte{0, 4}, block)
		if length < 512 {
			break
		}
	}
	if _, err := conn.WriteTo(packet, net.UDPAddrFromAddrPort(to)); err != nil || size != 4800 {
		c.t.Fatalf("%d bytes, %v", size, err)
	}
}

// send sends a packet and waits for its answer; it repeats the packet as a client does.
func (c *floodClient) send(
	conn net.PacketConn,
	packet []byte,
	to netip.AddrPort,
	waits []time.Duration,
	answers func([]byte, net.Addr) bool,
) {
	c.t.Helper()
	buf := make([]byte, wire.MaxDatagram)
	for n, wait := range waits {
		if n > 0 {
			c.repeated++
		}
		_, err := conn.WriteTo(packet, net.UDPAddrFromAddrPort(to))
		if err = errors.Join(err, conn.SetReadDeadline(time.Now().Add(wait))); err != nil {
			c.t.Fatal(err)
		}
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				break // the next repetition
			}
			if answers(buf[:n], from) {
				return
			}
		}
	}
	c.t.Fatalf("the armed machine got no answer from %s to %d packets, the first bytes are % x", to, len(waits), packet[:4])
}

// flood sends forged packets until it is stopped.
type flood struct {
	sent atomic.Int64
	stop func()
}

func startFlood(t *testing.T, cli *net.Interface, mode inventory.DHCPMode) *flood {
	t.Helper()
	server := serverMAC(t)
	fd := -1
	atClient(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	out := &flood{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	out.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = unix.Close(fd)
	})
	t.Cleanup(out.stop)
	ll := &unix.SockaddrLinklayer{Protocol: wire.Hton16(unix.ETH_P_IP), Ifindex: cli.Index, Halen: 6}
	copy(ll.Addr[:], server)
	running.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; <-tick.C {
			for range floodRate / 100 {
				if err := unix.Sendto(fd, forgedPacket(t, n, cli.HardwareAddr, mode), 0, ll); err == nil {
					out.sent.Add(1)
				}
				n++
			}
		}
	})
	return out
}

func serverMAC(t *testing.T) net.HardwareAddr {
	t.Helper()
	srv, err := net.InterfaceByName("srv0")
	if err != nil {
		t.Fatal(err)
	}
	return srv.HardwareAddr
}

// forgedPacket returns packet n of a flood: a read request or a DHCP message. Most answers go to addresses that no host has.
func forgedPacket(t *testing.T, n int, armed net.HardwareAddr, mode inventory.DHCPMode) []byte {
	absent := netip.AddrFrom4([4]byte{10, 10, 128 | byte(n>>8)&127, byte(n)})
	switch {
	case n%2 == 0:
		from := absent
		if n%8 == 0 {
			from = netip.MustParseAddr(testAddr) // in the armed machine's own name
		}
		return udpPacket(netip.AddrPortFrom(from, 1024+uint16(n)&0x3fff), netip.AddrPortFrom(testSelf, 69),
			[]byte("\x00\x01"+armed.String()+"/snponly.efi\x00octet\x00blksize\x001428\x00"))
	case n%4 == 1: // through a relay
		p := floodPacket(t, dhcpv4.MessageTypeDiscover, armed, uint32(n)|1<<31)
		p.GatewayIPAddr = absent.AsSlice()
		return udpPacket(netip.AddrPortFrom(absent, 67), netip.AddrPortFrom(testSelf, 67), p.ToBytes())
	case mode == inventory.DHCPProxy:
		p := floodPacket(t, dhcpv4.MessageTypeRequest, armed, uint32(n)|1<<31)
		return udpPacket(netip.AddrPortFrom(absent, 68), netip.AddrPortFrom(testSelf, wire.ProxyPort), p.ToBytes())
	}
	p := floodPacket(t, dhcpv4.MessageTypeInform, offMAC(n/4%floodOff), uint32(n)|1<<31)
	p.ClientIPAddr = offAddress(n / 4 % floodOff).AsSlice()
	return udpPacket(netip.AddrPortFrom(absent, 68), netip.AddrPortFrom(testSelf, 67), p.ToBytes())
}

func floodPacket(t *testing.T, kind dhcpv4.MessageType, mac net.HardwareAddr, xid uint32) *dhcpv4.DHCPv4 {
	return packet(t, kind, pxeClient(7), dhcpv4.WithHwAddr(mac),
		dhcpv4.WithTransactionID(dhcpv4.TransactionID(binary.BigEndian.AppendUint32(nil, xid))))
}

func offMAC(n int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 1, byte(n)} }

func offAddress(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 10, 30, byte(n)}) }

// udpPacket returns an IPv4 packet. Its UDP checksum is left out.
func udpPacket(from, to netip.AddrPort, payload []byte) []byte {
	b := wire.IPPacket(from.Addr(), to.Addr(), payload)
	binary.BigEndian.PutUint16(b[20:], from.Port())
	binary.BigEndian.PutUint16(b[22:], to.Port())
	binary.BigEndian.PutUint16(b[26:], 0)
	return b
}
