package dhcp

import (
	"context"
	"errors"
	"flag"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
)

var inLab = flag.Bool("lab", false, "run the tests that need root and make network namespaces")

// TestS30WaitingRepliesAreBounded: DHCP replies to forged relays and addresses, too. A reply to a MAC or to all hosts does not wait.
func TestS30WaitingRepliesAreBounded(t *testing.T) {
	const waiting = 64
	sent := map[Route]int{}
	var s *Server
	for _, by := range []Route{RouteRelay, RouteUnicast, RouteSource, RouteRaw, RouteBroadcast} {
		s, _ = newServer(t, &fakeDecider{}, func(c *Config) {
			c.Limits = neighbours.NewLimits(func(netip.Addr) bool { return true })
		})
		for n := range 2 * waiting {
			r := Reply{Packet: packet(t, dhcpv4.MessageTypeOffer), Route: by, To: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})}
			if s.maySend(&Conn{name: "eth0"}, r) {
				sent[by]++
			}
		}
	}
	want := map[Route]int{
		RouteRelay: waiting, RouteUnicast: waiting, RouteSource: waiting,
		RouteRaw: 2 * waiting, RouteBroadcast: 2 * waiting,
	}
	if !maps.Equal(sent, want) {
		t.Errorf("sent %v, want %v", sent, want)
	}
	own := Reply{Packet: packet(t, dhcpv4.MessageTypeOffer), Route: RouteUnicast, To: netip.MustParseAddr(testAddr), own: true}
	if !s.maySend(&Conn{name: "eth0"}, own) {
		t.Error("the armed machine has no room")
	}
}

// TestLabS30SendingDoesNotWait: a socket whose buffer is full of packets that wait for ARP refuses more, and does not keep its server
// waiting.
func TestLabS30SendingDoesNotWait(t *testing.T) {
	if !*inLab {
		t.Skip("needs root and network namespaces: go test -lab")
	}
	runtime.LockOSThread() // the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"link", "add", "srv0", "type", "veth", "peer", "name", "cli0"},
		{"addr", "add", "10.10.20.2/24", "dev", "srv0"},
		{"link", "set", "srv0", "up"},
		{"link", "set", "cli0", "up"},
	} {
		if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v %s", args, err, out)
		}
	}

	absent := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 10, 20, byte(100 + n)}) }
	c, err := Listen(t.Context(), "srv0", 67, testSelf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.conn.SetWriteBuffer(1); err != nil { // the kernel's smallest
		t.Fatal(err)
	}
	var replies []Reply
	for n := range batchSize {
		replies = append(replies, Reply{Packet: packet(t, dhcpv4.MessageTypeOffer), Route: RouteRelay, To: absent(n)})
	}
	refused := 0
	c.write(newPacketBatch().out, replies, func(Reply, error) { refused++ })
	if refused == 0 || refused == len(replies) {
		t.Errorf("%d of %d DHCP replies were refused", refused, len(replies))
	}
}

// TestS34ListedRelaysHaveRoomOfTheirOwn: an answer to a relay that the configuration lists does not compete with those to forged
// addresses. Any host can pretend to be a relay that is not listed.
func TestS34ListedRelaysHaveRoomOfTheirOwn(t *testing.T) {
	for _, listed := range []bool{true, false} {
		s, _ := newServer(t, &fakeDecider{}, func(c *Config) {
			if listed {
				c.Relays = wire.Relays{netip.PrefixFrom(gateway, 32)}
			}
		})
		p := packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(gateway.AsSlice()))
		if r := s.answer(t.Context(), p, Link{Name: "eth0"}); r.Route != RouteRelay || r.own != listed {
			t.Errorf("listed %t: %s, own %t", listed, r.Route, r.own)
		}
	}
}

// TestAnswer: a port answers while a worker reads its packets, however often it is asked; and still ends when it should.
func TestAnswer(t *testing.T) {
	s, _ := newServer(t, &fakeDecider{}, nil)
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	c := &Conn{name: "lo", conn: udp, p4: ipv4.NewPacketConn(udp), raw: -1, heard: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	c.turn.Lock()
	done := make(chan error)
	go func() { done <- s.Serve(ctx, c) }()

	late, end := context.WithCancel(t.Context())
	end()
	if err := c.Answer(late); !errors.Is(err, context.Canceled) {
		t.Errorf("all workers are stuck, and the port answers: %v", err)
	}
	c.turn.Unlock()
	for range 3 {
		if err := c.Answer(t.Context()); err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
