package neighbours

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/inventory"
)

// judged returns the result of judge for these answers.
func judged(self netip.Addr, found ...ForeignServer) (notes []string, err error) {
	a := Answers{self: self}
	for _, f := range found {
		a.add(f)
	}
	return a.Judge("on eth0")
}

func TestJudgeCheck(t *testing.T) {
	self := netip.MustParseAddr("10.10.20.2")
	me := ForeignServer{Server: self, BootOffer: BootOffer{BootFile: "http://10.10.20.2" + CheckPath}}
	twin := ForeignServer{Server: netip.MustParseAddr("192.168.1.10"), BootOffer: BootOffer{BootFile: "http://192.168.1.10:7080" + CheckPath}}
	router := ForeignServer{Server: netip.MustParseAddr("10.10.20.1"), Offered: netip.MustParseAddr("10.10.20.150")}
	if notes, err := judged(self, me); err != nil || len(notes) != 0 {
		t.Errorf("alone: %v %v", notes, err)
	}
	if notes, err := judged(self, router, me, router); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "10.10.20.1") {
		t.Errorf("next to a router: %v %v", notes, err)
	}
	if _, err := judged(
		self,
		me,
		twin,
		twin,
	); !errors.Is(err, inventory.ErrConflict) ||
		!strings.Contains(err.Error(), "another server of Ingot, 192.168.1.10; stop") {
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
	me := ForeignServer{Server: self, BootOffer: BootOffer{BootFile: "http://10.10.20.2" + CheckPath}}
	var routers, twins []ForeignServer
	for n := range 5000 {
		at := netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)})
		routers = append(routers, ForeignServer{Server: at})
		twins = append(twins, ForeignServer{Server: at, BootOffer: BootOffer{BootFile: "http://10.30.0.1" + CheckPath}})
	}
	notes, err := judged(self, append(routers, me)...)
	if err != nil || len(notes) != maxNamed+1 || !strings.Contains(notes[maxNamed], "more DHCP servers") {
		t.Errorf("forged servers: %d notes, %v", len(notes), err)
	}
	_, err = judged(self, append(routers, append(twins, me)...)...)
	if !errors.Is(err, inventory.ErrConflict) || len(err.Error()) > 300 || !strings.Contains(err.Error(), "10.30.0.0, ") ||
		!strings.Contains(err.Error(), "and more") {
		t.Errorf("forged twins: %v", err)
	}
}

// A reply reaches the question that waits for it, and no other.
func TestDeliver(t *testing.T) {
	c := NewChecker(netip.MustParseAddr("10.10.20.2"), nil)
	p, err := probeClients[0].newDiscover(net.HardwareAddr{2, 0, 0, 0, 0, 1})
	if err != nil {
		t.Fatal(err)
	}
	answers, end := c.begin(p.TransactionID)
	other := *p
	other.TransactionID = dhcpv4.TransactionID{1, 2, 3, 4}
	c.Deliver(&other)
	c.Deliver(p)
	if x := <-answers; x != p || len(answers) != 0 {
		t.Errorf("%s, and %d more", x.Summary(), len(answers))
	}
	end()
	for range 100 { // nothing waits any more
		c.Deliver(p)
	}
}
