package bootsvc

import (
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/inventory"
)

// TestS30WaitingRepliesAreBounded: DHCP replies to forged relays and addresses, too. A reply to a MAC or to all hosts does not wait.
func TestS30WaitingRepliesAreBounded(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, nil)
	const waiting = 64
	sent := map[route]int{}
	for _, by := range []route{routeRelay, routeUnicast, routeSource, routeRaw, routeBroadcast} {
		s.limits = neighbours.NewLimits(func(netip.Addr) bool { return true })
		for n := range 2 * waiting {
			r := reply{packet: packet(t, dhcpv4.MessageTypeOffer), route: by, to: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})}
			if s.maySend(&dhcpConn{name: "eth0"}, r) {
				sent[by]++
			}
		}
	}
	want := map[route]int{
		routeRelay: waiting, routeUnicast: waiting, routeSource: waiting,
		routeRaw: 2 * waiting, routeBroadcast: 2 * waiting,
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
	var n neighbours.Table
	client := netip.MustParseAddr(testAddr)
	if mac, ok := n.MAC(client); ok || !n.Unresolved(client) {
		t.Errorf("%s is known as %s before any packet", client, mac)
	}
	s, _ := newServer(t, &fakeMachines{}, nil)
	if mac, ok := neighbours.NewProber(nil, &n, s.log).AskKernel(client); !ok || n.Unresolved(client) {
		t.Errorf("%s is %q after a packet to it", client, mac)
	}
	for a, unresolved := range map[string]bool{"10.10.20.99": true, "10.10.20.2": false, "192.0.2.1": false, "127.0.0.1": false} {
		if mac, ok := n.MAC(netip.MustParseAddr(a)); ok || n.Unresolved(netip.MustParseAddr(a)) != unresolved {
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
