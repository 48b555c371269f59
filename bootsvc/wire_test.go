package bootsvc

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/inventory"
)

// The last requests of a client are explained, at most 16 of each and of 1,024 clients. No secret
// of a boot is among them.
func TestS48HeardIsBounded(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
	s, _ := newServer(t, f, nil)
	in := dhcp.Link{Name: "eth0"}
	s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, pxeClient(7), generic(12, []byte("a\x1b[31mb")...)).ToBytes(), in)
	script := get(t, s.Handler(), http.MethodGet, "/ipxe/script/"+testMAC+"/auto.ipxe", "10.10.20.11").Body.String()
	_, rest, _ := strings.Cut(script, "kernel http://10.10.20.2")
	kernel, _, _ := strings.Cut(rest, " ")
	if w := get(t, s.Handler(), http.MethodGet, kernel, "10.10.20.11"); w.Code != http.StatusOK {
		t.Fatalf("%s: %d", kernel, w.Code)
	}
	e, err := s.Why(t.Context(), testMAC)
	if err != nil || len(e.Exchanges) != 3 {
		t.Fatalf("%v, %+v", err, e.Exchanges)
	}
	for n, want := range []string{`DISCOVER xid=0x01020304 secs=0 12="a[31mb" 60="PXEClient`, "GET /ipxe/script/", "GET /boot/" + testMAC + "/TOKEN/vmlinuz"} {
		if !strings.Contains(e.Exchanges[n].Request, want) {
			t.Errorf("%q does not have %q", e.Exchanges[n].Request, want)
		}
	}
	if !strings.Contains(e.Exchanges[0].Answer, "OFFER by raw, address "+testAddr+", boot file snponly.efi") {
		t.Errorf("the answer: %s", e.Exchanges[0].Answer)
	}
	if text := fmt.Sprint(e.Exchanges); strings.Contains(text, strings.Split(kernel, "/")[3]) {
		t.Errorf("the boot's token is among %s", text)
	}

	mac := func(n int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, byte(n >> 8), byte(n)} }
	for n := range 3000 {
		for range 20 {
			s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(mac(n))).ToBytes(), in)
		}
	}
	clients := 0
	for n := range 3000 {
		if s.History.HasAskedSince(mac(n).String(), time.Time{}) {
			clients++
		}
	}
	if clients != 1024 {
		t.Errorf("%d clients", clients)
	}
	if n := len(s.History.Of("02:00:00:00:0b:b7")); n != 16 {
		t.Errorf("%d requests of the last client", n)
	}
}

// S48: a lease follows what was agreed. An address at which another host answers is not offered for
// five minutes; a DECLINE alone, which can be forged, changes nothing.
func TestLeases(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
	now := testNow
	s, _ := newServer(t, f, func(c *Config) { c.Now = func() time.Time { return now } })
	const other = "52:54:00:99:99:99"
	probes := make(chan string) // the MAC that answers, or ""
	s.discovery.probe = func(netip.Addr, string) (string, bool) { mac := <-probes; return mac, mac != "" }
	in := dhcp.Link{Name: "eth0"}
	send := func(kind dhcpv4.MessageType, mods ...dhcpv4.Modifier) bool {
		return s.dhcp.Handle(t.Context(), packet(t, kind, mods...).ToBytes(), in).Route != dhcp.RouteNone
	}
	wants := generic(50, net.ParseIP(testAddr).To4()...)
	state := func(want string) inventory.DHCPLease {
		t.Helper()
		all := s.Leases()
		if len(all) != 1 || all[0].State != want {
			t.Fatalf("%+v, not %s", all, want)
		}
		return all[0]
	}
	waitFor := func(want string) {
		t.Helper()
		for range 500 {
			if s.Leases()[0].State == want {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("%+v, not %s", s.Leases(), want)
	}

	send(dhcpv4.MessageTypeDiscover)
	state(inventory.LeaseOffered)
	send(dhcpv4.MessageTypeRequest, wants)
	if x := state(inventory.LeaseBound); !x.Expires.Equal(now.Add(7*24*time.Hour)) || x.Machine != "node1" || x.Where != "eth0" {
		t.Errorf("%+v", x)
	}
	send(dhcpv4.MessageTypeDiscover)
	state(inventory.LeaseBound)
	elsewhere := generic(54, 10, 10, 20, 99)
	send(dhcpv4.MessageTypeRelease, elsewhere)
	send(dhcpv4.MessageTypeDecline, wants, elsewhere)
	send(dhcpv4.MessageTypeDecline, generic(50, 10, 10, 20, 12))
	send(dhcpv4.MessageTypeDecline)
	state(inventory.LeaseBound)
	send(dhcpv4.MessageTypeRelease)
	state(inventory.LeaseReleased)

	send(dhcpv4.MessageTypeDecline, wants)
	state(inventory.LeaseDeclined)
	probes <- ""
	if !send(dhcpv4.MessageTypeDiscover) {
		t.Error("after a forged DECLINE the machine gets no offer")
	}

	now = now.Add(time.Minute)
	send(dhcpv4.MessageTypeDecline, wants)
	probes <- other
	waitFor(inventory.LeaseConflict)
	if x := state(inventory.LeaseConflict); x.Other != other {
		t.Errorf("%+v", x)
	}
	if send(dhcpv4.MessageTypeDiscover) {
		t.Error("an address that another host uses was offered")
	}
	why := func() string {
		t.Helper()
		e, err := s.Why(t.Context(), testMAC)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(e.Address, e.Reasons, e.Answers)
	}
	if text := why(); strings.HasPrefix(text, testAddr) || strings.Contains(text, "kpxe") ||
		!strings.Contains(text, testAddr+" is in conflict: host "+other+" uses it. Ingot does not offer the address until "+
			now.Add(5*time.Minute).Format(time.RFC3339)+"; ") {
		t.Errorf("during a conflict: %s", text)
	}
	send(dhcpv4.MessageTypeDecline, wants)
	state(inventory.LeaseConflict)
	now = now.Add(5 * time.Minute)
	if !send(dhcpv4.MessageTypeDiscover) {
		t.Error("the address is not offered again")
	}
	if text := why(); !strings.HasPrefix(text, testAddr) || strings.Contains(text, "conflict") {
		t.Errorf("after a conflict: %s", text)
	}
}

// S31: a relay may select the client's network by option 82 (RFC 3527), if it is listed.
func TestLinkSelection(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	p := packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.IPv4(10, 99, 0, 1)), generic(82, 5, 4, 10, 10, 20, 0))
	elsewhere := packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.IPv4(10, 10, 20, 1)), generic(82, 5, 4, 10, 99, 20, 0))
	listed := func(c *Config) {
		c.Relays = []netip.Prefix{netip.MustParsePrefix("10.99.0.1/32"), netip.MustParsePrefix("10.10.20.1/32")}
	}
	for _, c := range []struct {
		name string
		p    *dhcpv4.DHCPv4
		edit func(*Config)
		want dhcp.Route
	}{
		{"listed", p, listed, dhcp.RouteRelay}, {"not listed", p, nil, dhcp.RouteNone}, {"another network", elsewhere, listed, dhcp.RouteNone},
	} {
		s, _ := newServer(t, f, c.edit)
		r := s.dhcp.Handle(t.Context(), c.p.ToBytes(), dhcp.Link{Name: "eth0"})
		if r.Route != c.want {
			t.Errorf("%s: by %s", c.name, r.Route)
		}
		if r.Route == dhcp.RouteRelay && r.To != netip.MustParseAddr("10.99.0.1") {
			t.Errorf("%s: to %s", c.name, r.To)
		}
	}
}

// transferWriter calls during while an answer is being written.
type transferWriter struct {
	*httptest.ResponseRecorder
	during func()
}

func (w transferWriter) Write(b []byte) (int, error) {
	w.during()
	return w.ResponseRecorder.Write(b)
}

// A machine that is being sent a file has just been in contact, however long ago it has asked for it: a pause of this process breaks
// no connection.
func TestContactDuringATransfer(t *testing.T) {
	late := testNow.Add(time.Hour)
	agent, _ := newServer(t, &fakeMachines{
		machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{"node1": armed("node1")},
	}, nil)
	installer, _ := withInstaller(t)
	base := "/boot/" + testMAC + "/" + inventory.BootToken(testKey, armed("node1").Owner, 1) + "/"
	for _, c := range []struct {
		s        *Server
		protocol string
		path     string
	}{
		{agent, "HTTP", base + "vmlinuz"},
		{agent, "HTTP", base + "initramfs"},
		{agent, "HTTP", "/ipxe/binary/" + testMAC + "/snponly.efi"},
		{installer, "HTTP", base + "initrd-x"},
		{agent, "TFTP", base + "initramfs"},
		{agent, "TFTP", testMAC + "/snponly.efi"},
	} {
		during := 0
		check := func() {
			if during++; !c.s.History.HasAskedSince(testMAC, late) || c.s.History.HasAskedSince(unknownMAC, late) {
				t.Errorf("%s by %s: the machine that gets it must be in contact, and no other", c.path, c.protocol)
			}
		}
		if c.protocol == "HTTP" {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://10.10.20.2"+c.path, nil)
			r.RemoteAddr = testAddr + ":40000"
			c.s.Handler().ServeHTTP(transferWriter{httptest.NewRecorder(), check}, r)
		} else if err := c.s.files.read(t.Context(), tftp.Request{
			Name: c.path, From: netip.MustParseAddr(testAddr), Send: func(tftp.Rank, int64, io.Reader) error { check(); return nil },
		}); err != nil {
			t.Errorf("%s by TFTP: %v", c.path, err)
		}
		if during == 0 || c.s.History.HasAskedSince(testMAC, late) {
			t.Errorf("%s by %s: %d writes; after the transfer, the request alone counts", c.path, c.protocol, during)
		}
	}
}
