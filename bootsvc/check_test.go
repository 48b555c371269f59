package bootsvc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/inventory"
)

func checking(t *testing.T, kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	mac, err := net.ParseMAC(CheckMAC)
	if err != nil {
		t.Fatal(err)
	}
	p := packet(
		t,
		kind,
		append([]dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016"))}, mods...)...)
	p.ClientHWAddr = mac
	return p
}

// Every server answers CheckMAC, but only to a DISCOVER like that of firmware. The
// answer cannot be used to boot anything (S30).
func TestCheckIsAnswered(t *testing.T) {
	machines := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, j := newServer(t, machines, nil)
	r := s.answer(t.Context(), checking(t, dhcpv4.MessageTypeDiscover), link{name: "eth0"})
	if r.route != routeBroadcast {
		t.Fatalf("it leaves by %s", r.route)
	}
	f, ok := offer(r.packet.ToBytes(), r.packet.TransactionID)
	if !ok || f.Server != s.cfg.Address || f.BootFile != s.Base()+checkURL || !f.Proxy || !r.packet.YourIPAddr.IsUnspecified() {
		t.Errorf("%+v", f)
	}
	for name, p := range map[string]*dhcpv4.DHCPv4{
		"a REQUEST": checking(t, dhcpv4.MessageTypeRequest),
		"an INFORM": checking(t, dhcpv4.MessageTypeInform),
		"a system":  checking(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithOption(dhcpv4.OptClassIdentifier("udhcp"))),
	} {
		if s.answer(t.Context(), p, link{name: "eth0"}).route != routeNone {
			t.Errorf("%s is answered", name)
		}
	}
	if len(j.relays) != 0 {
		t.Errorf("relays heard: %v", j.relays)
	}
	// S30: if no relay is listed, a giaddr may be forged. It is answered only in the
	// network of a reservation or of the interface.
	in := link{name: "eth0", prefixes: []netip.Prefix{netip.MustParsePrefix("10.99.0.2/24")}}
	for range 100 {
		for giaddr, want := range map[string]route{"192.0.2.1": routeNone, "10.10.21.1": routeNone, "8.8.8.8": routeNone, "10.10.20.1": routeRelay, "10.99.0.1": routeRelay} {
			r := s.answer(t.Context(), checking(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP(giaddr))), in)
			if r.route != want || want == routeRelay && r.to.String() != giaddr {
				t.Errorf("giaddr %s: %s to %s", giaddr, r.route, r.to)
			}
		}
	}
	if len(j.relays) != 1 || j.relays[0].String() != "10.10.20.1" {
		t.Errorf("relays heard: %v", j.relays)
	}
	for _, path := range []string{checkURL, "/ipxe/binary/" + CheckMAC + "/autoexec.ipxe"} {
		w := get(t, s.Handler(), http.MethodGet, s.Base()+path, testAddr)
		if w.Code != http.StatusOK || w.Body.String() != s.checkScript() || strings.Contains(w.Body.String(), "kernel") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, path := range []string{"/ipxe/binary/" + CheckMAC + "/snponly.efi", "/boot/" + CheckMAC + "/x/vmlinuz", "/ipxe/script/02:69:6e:67:6f:75/auto.ipxe"} {
		if w := get(t, s.Handler(), http.MethodGet, s.Base()+path, testAddr); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// With discovery on, a check is answered as without: its client is not discovered.
func TestCheckIsAnsweredWithDiscovery(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, discovering)
	r := s.answer(t.Context(), checking(t, dhcpv4.MessageTypeDiscover), link{name: "eth8"})
	if r.route != routeBroadcast {
		t.Fatalf("it leaves by %s", r.route)
	}
	f, ok := offer(r.packet.ToBytes(), r.packet.TransactionID)
	if !ok || f.BootFile != s.Base()+checkURL || !f.Proxy {
		t.Errorf("%+v", f)
	}
}

// A relay-only server answers its own check besides listed relays. A reply to its own
// port reaches the check that waits for it.
func TestCheckThroughARelay(t *testing.T) {
	s, j := newServer(t, &fakeMachines{}, relayOnly)
	in := (&dhcpConn{}).link()
	for giaddr, want := range map[string]route{s.cfg.Address.String(): routeRelay, "10.10.20.1": routeRelay, "10.10.20.254": routeNone, "0.0.0.0": routeNone} {
		p := checking(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP(giaddr)))
		r := s.answer(t.Context(), p, in)
		if r.route != want || want == routeRelay && r.to.String() != giaddr {
			t.Errorf("giaddr %s: %s to %s", giaddr, r.route, r.to)
		}
	}
	for _, heard := range j.relays {
		if heard == s.cfg.Address {
			t.Error("the server takes itself for a relay")
		}
	}
	p := checking(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(s.cfg.Address.AsSlice()))
	answers, end := s.checks.begin(p.TransactionID)
	r := s.answer(t.Context(), p, in)
	if x := s.answer(t.Context(), r.packet, in); x.route != routeNone {
		t.Errorf("a reply is answered by %s", x.route)
	}
	select {
	case x := <-answers:
		if x.TransactionID != p.TransactionID {
			t.Error("of another transaction")
		}
	default:
		t.Error("the reply was not heard")
	}
	end()
	for range 100 { // no check waits any more
		s.answer(t.Context(), r.packet, in)
	}
}

// judged returns the result of judge for these answers.
func judged(self netip.Addr, found ...ForeignServer) (notes []string, err error) {
	a := answered{self: self}
	for _, f := range found {
		a.add(f)
	}
	return a.judge("on eth0")
}

func TestJudgeCheck(t *testing.T) {
	self := netip.MustParseAddr("10.10.20.2")
	me := ForeignServer{Server: self, BootOffer: BootOffer{BootFile: "http://10.10.20.2" + checkURL}}
	twin := ForeignServer{Server: netip.MustParseAddr("192.168.1.10"), BootOffer: BootOffer{BootFile: "http://192.168.1.10:7080" + checkURL}}
	router := ForeignServer{Server: netip.MustParseAddr("10.10.20.1"), Offered: netip.MustParseAddr("10.10.20.150")}
	if notes, err := judged(self, me); err != nil || len(notes) != 0 {
		t.Errorf("alone: %v %v", notes, err)
	}
	if notes, err := judged(self, router, me, router); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "10.10.20.1") {
		t.Errorf("beside a router: %v %v", notes, err)
	}
	if _, err := judged(
		self,
		me,
		twin,
		twin,
	); !errors.Is(err, inventory.ErrConflict) ||
		!strings.Contains(err.Error(), "too, 192.168.1.10: stop") {
		t.Errorf("two of Ingot: %v", err)
	}
	for _, found := range [][]ForeignServer{nil, {router}} {
		if _, err := judged(self, found...); !errors.Is(err, inventory.ErrUnreachable) {
			t.Errorf("%v: %v", found, err)
		}
	}
}

// TestS48ForgedOffersAreBounded: forged OFFERs cannot fill the memory or a workflow's
// history, and cannot hide this server or another Ingot server.
func TestS48ForgedOffersAreBounded(t *testing.T) {
	self := netip.MustParseAddr("10.10.20.2")
	me := ForeignServer{Server: self, BootOffer: BootOffer{BootFile: "http://10.10.20.2" + checkURL}}
	var routers, twins []ForeignServer
	for n := range 5000 {
		at := netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)})
		routers = append(routers, ForeignServer{Server: at})
		twins = append(twins, ForeignServer{Server: at, BootOffer: BootOffer{BootFile: "http://10.30.0.1" + checkURL}})
	}
	notes, err := judged(self, append(routers, me)...)
	if err != nil || len(notes) != maxNamed+1 || !strings.Contains(notes[maxNamed], "and more") {
		t.Errorf("forged servers: %d notes, %v", len(notes), err)
	}
	_, err = judged(self, append(routers, append(twins, me)...)...)
	if !errors.Is(err, inventory.ErrConflict) || len(err.Error()) > 300 || !strings.Contains(err.Error(), "10.30.0.0, ") ||
		!strings.Contains(err.Error(), "and more") {
		t.Errorf("forged twins: %v", err)
	}
}

// A server with Listen cannot be checked from its own host. TestLabCheckClient uses
// real sockets.
func TestCheckClient(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, relayOnly)
	s.cfg.Listen = netip.MustParseAddr("0.0.0.0")
	notes, err := s.CheckClient(context.Background())
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "ask from outside") {
		t.Errorf("a server behind published ports: %v %v", notes, err)
	}
}
