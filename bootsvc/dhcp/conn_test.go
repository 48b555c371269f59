package dhcp

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/ipv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

func TestDHCPCountsWhatTheKernelDrops(t *testing.T) {
	lc := net.ListenConfig{Control: setSocket("")}
	pc, err := lc.ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &Conn{conn: pc.(*net.UDPConn), p4: ipv4.NewPacketConn(pc), raw: -1}
	defer c.Close()
	if err := c.conn.SetReadBuffer(1); err != nil { // the kernel's smallest
		t.Fatal(err)
	}
	self := c.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	batch := newPacketBatch()
	batch.in = batch.in[:1]
	send := func() {
		t.Helper()
		if _, err := c.conn.WriteToUDPAddrPort(make([]byte, 300), self); err != nil {
			t.Fatal(err)
		}
	}
	var dropped atomic.Int64
	read := func() {
		t.Helper()
		packets, err := c.read(batch, &dropped)
		if err != nil || len(packets) != 1 || packets[0].N != 300 || packets[0].Addr.String() != self.String() {
			t.Fatalf("%+v, %v", packets, err)
		}
	}
	const sent = 100
	for range sent {
		send()
	}
	read()
	if dropped.Load() != 0 {
		t.Errorf("%d packets were dropped before the first one", dropped.Load())
	}
	for dropped.Load() == 0 { // the next packet that the kernel accepts tells of those before it
		send()
		read()
	}
	if total := dropped.Load(); total < sent/2 || total >= sent {
		t.Errorf("%d of %d packets were dropped", total, sent)
	}
}

// A lookup that takes long does not keep the packets that follow waiting.
func TestSlowLookupDoesNotBlockOthers(t *testing.T) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	asked, release := make(chan string), make(chan struct{})
	s, _ := newServer(t, &fakeDecider{wait: func(mac string) { asked <- mac; <-release }}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, &Conn{conn: conn, p4: ipv4.NewPacketConn(conn), raw: -1}) }()
	for n := range workers {
		mac := net.HardwareAddr{2, 0, 0, 0, 0, byte(n)}
		b := packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(mac)).ToBytes()
		if _, err := conn.WriteToUDPAddrPort(b, conn.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-asked:
			if got != mac.String() {
				t.Errorf("%s was looked up, not %s", got, mac)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s waits for the lookups of other machines", mac)
		}
	}
	cancel()
	close(release)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// sends is a log that tells of each reply that cannot be sent.
type sends chan string

func (s sends) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "sending a DHCP reply") {
		s <- string(b)
	}
	return len(b), nil
}

// A reply that is ready is sent while the lookup for a packet that was read together with its request takes long. This socket
// answers relays alone, so the log shows the attempt.
func TestSlowLookupDoesNotDelayReadyReplies(t *testing.T) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	sent := make(sends, 1)
	asked, release := make(chan string, 1), make(chan struct{})
	s, _ := newServer(t, &fakeDecider{wait: func(mac string) { asked <- mac; <-release }}, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(sent, nil))
	})
	for _, mac := range []string{testMAC, "02:00:00:00:00:01"} { // both are there before the first read
		hw, err := net.ParseMAC(mac)
		if err != nil {
			t.Fatal(err)
		}
		b := packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(hw)).ToBytes()
		if _, err := conn.WriteToUDPAddrPort(b, conn.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx, &Conn{conn: conn, p4: ipv4.NewPacketConn(conn), raw: -1}) }()
	<-asked
	select {
	case <-sent:
	case <-time.After(time.Minute):
		t.Error("a reply waits for the lookup of another machine")
	}
	cancel()
	close(release)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Replies to one read are sent together. One that cannot be sent is reported, and the others leave.
func TestRepliesOfABatch(t *testing.T) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	self := netip.MustParseAddr("127.0.0.1")
	port := uint16(client.LocalAddr().(*net.UDPAddr).Port)
	c := &Conn{conn: conn, p4: ipv4.NewPacketConn(conn), raw: -1, iface: &net.Interface{Index: 1}}
	defer c.Close()
	var replies []Reply
	for n := range byte(3) {
		p := packet(t, dhcpv4.MessageTypeOffer, dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, n}))
		replies = append(replies, Reply{Packet: p, Route: RouteSource, To: self, Port: port})
	}
	replies[1].Port = 0 // the kernel refuses it
	var refused []byte
	c.write(newPacketBatch().out, replies, func(r Reply, _ error) { refused = append(refused, r.Packet.ClientHWAddr[5]) })
	if !slices.Equal(refused, []byte{1}) {
		t.Errorf("the replies %v were refused", refused)
	}
	b := make([]byte, wire.MaxDatagram)
	for _, want := range []byte{0, 2} {
		n, err := client.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		p, err := dhcpv4.FromBytes(b[:n])
		if err != nil || p.ClientHWAddr[5] != want {
			t.Errorf("%v, %v", p, err)
		}
	}
}

// TestS31RelaySocketSendsToRelaysOnly: a socket that only relays send to sends only replies to relays.
func TestS31RelaySocketSendsToRelaysOnly(t *testing.T) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	c := &Conn{conn: conn, p4: ipv4.NewPacketConn(conn), raw: -1}
	defer c.Close()
	var refused []Route
	ways := []Route{RouteBroadcast, RouteRaw}
	c.write(newPacketBatch().out, []Reply{
		{Packet: packet(t, dhcpv4.MessageTypeDiscover), Route: ways[0], To: netip.MustParseAddr(testAddr)},
		{Packet: packet(t, dhcpv4.MessageTypeDiscover), Route: ways[1], To: netip.MustParseAddr(testAddr)},
	}, func(r Reply, _ error) { refused = append(refused, r.Route) })
	if !slices.Equal(refused, ways) {
		t.Errorf("replies by %v were refused, not those by %v", refused, ways)
	}
}
