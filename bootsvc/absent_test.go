package bootsvc

import (
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/inventory"
)

// TestS34WaitingAnswersAreBounded: what waits for ARP is bounded in all and for one address. It has room again when the kernel has
// given up.
func TestS34WaitingAnswersAreBounded(t *testing.T) {
	address := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 10, 128, byte(n)}) }
	w := newAnswerLimits(nil).others
	began := time.Now()
	for n := range perOther + 1 {
		if got := w.add(address(0), began); got != (n < perOther) {
			t.Errorf("answer %d to one address: %t", n+1, got)
		}
	}
	for n := range 2 * othersWaiting {
		if got := w.add(address(1+n), began); got != (n < othersWaiting-perOther) {
			t.Errorf("answer to address %d: %t", n+1, got)
		}
	}
	if w.add(address(0), began.Add(arpGivesUp-1)) {
		t.Error("there is room while all wait")
	}
	if !w.add(address(0), began.Add(arpGivesUp)) {
		t.Error("there is no room when the kernel has given up")
	}
}

// TestS34ArmedMachineHasRoomOfItsOwn: answers to many absent neighbours leave room for the address that is reserved for an armed
// machine, and the reverse.
func TestS34ArmedMachineHasRoomOfItsOwn(t *testing.T) {
	l := newAnswerLimits(func(netip.Addr) bool { return true })
	self := netip.MustParseAddr(testAddr)
	count := func(own bool) (sent int) {
		for n := range 1000 {
			to := self
			if !own {
				to = netip.AddrFrom4([4]byte{10, 10, byte(128 + n>>8), byte(n)})
			}
			if l.admit(to, own) {
				sent++
			}
		}
		return sent
	}
	if others, own := count(false), count(true); others != othersWaiting || own != perOwn {
		t.Errorf("%d answers to others and %d to the machine are sent", others, own)
	}
	l.askKernel = func(netip.Addr) bool { return false } // the machine has answered ARP
	if own := count(true); own != 1000 {
		t.Errorf("%d answers to the machine are sent when its MAC is known", own)
	}
}

func TestTokenBucket(t *testing.T) {
	b := tokenBucket{rate: 10, size: 3}
	now := time.Now()
	take := func(want int) {
		t.Helper()
		for n := range want + 1 {
			if got := b.take(now); got != (n < want) {
				t.Errorf("token %d of %d: %t", n+1, want, got)
			}
		}
	}
	take(3)
	now = now.Add(200 * time.Millisecond)
	take(2)
	now = now.Add(time.Hour)
	take(3)
}

// TestS30WaitingRepliesAreBounded: DHCP replies to forged relays and addresses, too. A reply to a MAC or to all hosts does not wait.
func TestS30WaitingRepliesAreBounded(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, nil)
	s.limits.askKernel = func(netip.Addr) bool { return true }
	sent := map[route]int{}
	for _, by := range []route{routeRelay, routeUnicast, routeSource, routeRaw, routeBroadcast} {
		s.limits.others = newAnswerLimits(nil).others
		for n := range 2 * othersWaiting {
			r := reply{packet: packet(t, dhcpv4.MessageTypeOffer), route: by, to: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})}
			if s.maySend(&dhcpConn{name: "eth0"}, r) {
				sent[by]++
			}
		}
	}
	want := map[route]int{
		routeRelay: othersWaiting, routeUnicast: othersWaiting, routeSource: othersWaiting,
		routeRaw: 2 * othersWaiting, routeBroadcast: 2 * othersWaiting,
	}
	if !maps.Equal(sent, want) {
		t.Errorf("sent %v, want %v", sent, want)
	}
	own := reply{packet: packet(t, dhcpv4.MessageTypeOffer), route: routeUnicast, to: netip.MustParseAddr(testAddr), own: true}
	if !s.maySend(&dhcpConn{name: "eth0"}, own) {
		t.Error("the armed machine has no room")
	}
}

// TestLabS30SendingDoesNotWait: a socket whose buffer is full of packets that wait for ARP refuses more, and does not keep its server
// waiting.
func TestLabS30SendingDoesNotWait(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	absent := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 10, 20, byte(100 + n)}) }
	c, err := listenDHCP(t.Context(), "srv0", 67, testSelf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.conn.SetWriteBuffer(1); err != nil { // the kernel's smallest
		t.Fatal(err)
	}
	var replies []reply
	for n := range dhcpBatch {
		replies = append(replies, reply{packet: packet(t, dhcpv4.MessageTypeOffer), route: routeRelay, to: absent(n)})
	}
	refused := 0
	c.write(newPacketBatch().out, replies, func(reply, error) { refused++ })
	if refused == 0 || refused == len(replies) {
		t.Errorf("%d of %d DHCP replies were refused", refused, len(replies))
	}
}

// TestLabNeighbours: the kernel is asked for the MAC of one address.
func TestLabNeighbours(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	ip(t, "-n", clientNS, "address", "add", testAddr+"/24", "dev", "cli0")
	var n neighbours
	client := netip.MustParseAddr(testAddr)
	if mac, ok := n.mac(client); ok || !n.unresolved(client) {
		t.Errorf("%s is known as %s before any packet", client, mac)
	}
	s, _ := newServer(t, &fakeMachines{}, nil)
	if mac, ok := s.probeByKernel(client); !ok || n.unresolved(client) {
		t.Errorf("%s is %q after a packet to it", client, mac)
	}
	for a, unresolved := range map[string]bool{"10.10.20.99": true, "10.10.20.2": false, "192.0.2.1": false, "127.0.0.1": false} {
		if mac, ok := n.mac(netip.MustParseAddr(a)); ok || n.unresolved(netip.MustParseAddr(a)) != unresolved {
			t.Errorf("%s: %q, unresolved %t", a, mac, !unresolved)
		}
	}
}

// TestS34ListedRelaysHaveRoomOfTheirOwn: an answer to a relay that the configuration lists does not compete with those to forged
// addresses. Any host can pretend to be a relay that is not listed.
func TestS34ListedRelaysHaveRoomOfTheirOwn(t *testing.T) {
	for _, listed := range []bool{true, false} {
		s, _ := newServer(t, &fakeMachines{machines: []inventory.Machine{machine(nil)}}, func(c *Config) {
			if listed {
				c.Relays = []netip.Prefix{netip.MustParsePrefix("10.10.20.1/32")}
			}
		})
		p := packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP("10.10.20.1")))
		if r := s.answer(t.Context(), p, link{name: "eth0"}); r.route != routeRelay || r.own != listed {
			t.Errorf("listed %t: %s, own %t", listed, r.route, r.own)
		}
	}
}
