package bootsvc

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/inventory"
)

func TestParseSyslog(t *testing.T) {
	secret := inventory.Claim(testKey, inventory.Owner{Machine: "node1", Run: "r"}, 1)
	for in, want := range map[string]string{
		// RFC 5424 §6.5
		"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed":   "crit su 'su root' failed",
		`<165>1 2003-10-11T22:14:15.003Z host evntslog - ID47 [x@1 iut="3" e="a\]b"][y@1 a="b"] An entry`: "notice evntslog An entry",
		`<165>1 2003-10-11T22:14:15.003Z host - - - [no end`:                                              "notice  [no end",
		// RFC 3164 §5.4
		"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick": "crit su 'su root' failed for lonvick",
		"<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!":                     "notice  10.0.0.99 Use the BFG!",
		"<30>Oct 11 22:14:15 node1 systemd[1]: Started.":                 "info systemd Started.",
		"<6>kernel: eth0: link is up":                                    "info kernel eth0: link is up",
		"<190>ipxe: http://10.10.20.2/boot.ipxe... ok":                   "info ipxe http://10.10.20.2/boot.ipxe... ok",
		"<999>odd":               "debug  odd",
		"plain text\x1b[31m\r\n": "notice  plain text[31m",
		"<14>a: GET /c/node1/" + secret[:20] + "/nocloud/ done":                       "info a GET /c/node1/SECRET/nocloud/ done",
		"<14>a: ingot.claim=" + secret[:8] + " x":                                     "info a ingot.claim=SECRET x",
		"<14>a: nonce " + secret:                                                      "info a nonce HEX",
		"<14>a: https://user:password@host/x":                                         "info a https://host/x",
		"<14>1 - - " + strings.Repeat("p", 90) + " - - - " + strings.Repeat("x", 900): "info " + strings.Repeat("p", 48) + " " + strings.Repeat("x", 512),
	} {
		x, ok := parseSyslog([]byte(in))
		if got := x.Severity + " " + x.Program + " " + x.Text; !ok || got != want {
			t.Errorf("%q:\n got %q\nwant %q", in, got, want)
		}
	}
	for _, empty := range []string{"", "<13>", "<13>1 - - - - - -", "\x00\x01"} {
		if x, ok := parseSyslog([]byte(empty)); ok {
			t.Errorf("%q: %+v", empty, x)
		}
	}
}

func FuzzSyslog(f *testing.F) {
	secret := inventory.Claim(testKey, inventory.Owner{Machine: "node1", Run: "r"}, 1)
	for _, s := range []string{
		"<34>1 2003-10-11T22:14:15.003Z host su - ID47 [a b=\"c\\]\"] text", "<13>Feb  5 17:32:18 10.0.0.99 tag[1]: text",
		"<6>kernel: x", "/c/node1/" + secret + "/", "<1>1 [[[\\", "<>", "<14>1",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, ok := parseSyslog(b)
		switch {
		case ok != (x.Text != ""):
			t.Fatalf("%v, %q", ok, x.Text)
		case len(x.Text) > maxSyslogText || len(x.Program) > maxSyslogProgram || len(x.Severity) > 7 || x.Severity == "":
			t.Fatalf("too long: %+v", x)
		case strings.ContainsFunc(x.Program+x.Text, func(c rune) bool { return c < ' ' || c > '~' }):
			t.Fatalf("not printable: %q %q", x.Program, x.Text)
		case longHex.MatchString(x.Text) || strings.Contains(x.Text, secret):
			t.Fatalf("a secret: %q", x.Text)
		}
	})
}

// S48: what a machine sends is kept for it, at most so many lines between two writes; other senders
// are counted.
func TestS48SyslogOfMachinesIsBounded(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, j := newServer(t, f, nil)
	own, foreign := netip.MustParseAddr(testAddr), netip.MustParseAddr("10.10.20.99")
	for n := range maxSyslogEach + 7 {
		s.handleSyslog(t.Context(), fmt.Appendf(nil, "<6>kernel: %d", n), own)
	}
	s.handleSyslog(t.Context(), []byte("<6>kernel: x"), foreign)
	s.handleSyslog(t.Context(), []byte("<6>"), own)
	s.rec.flush(t.Context())
	if len(j.syslog) != maxSyslogEach || j.syslog[0].Machine != "node1" || j.syslog[0].Text != "0" || !j.syslog[0].At.Equal(testNow) {
		t.Errorf("%d lines, %+v", len(j.syslog), j.syslog[0])
	}
	if st := s.Stats(); st.SyslogDropped != 7 || st.SyslogUnknown != 1 || st.Panics != 0 {
		t.Errorf("%+v", st)
	}

	s.handleSyslog(t.Context(), []byte("<6>kernel: again"), own)
	j.err = fmt.Errorf("the disk is full")
	s.rec.flush(t.Context())
	j.err = nil
	s.rec.flush(t.Context())
	if len(j.syslog) != maxSyslogEach || s.Stats().SyslogDropped != 8 {
		t.Errorf("%d lines after a failed write, %d dropped", len(j.syslog), s.Stats().SyslogDropped)
	}
}

// In mode proxy a machine is known by the MAC of its address.
func TestSyslogByMAC(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.Addr{} })}}
	s, j := newServer(t, f, func(c *Config) { c.Modes = map[string]inventory.DHCPMode{"lo": inventory.DHCPProxy} })
	s.neighbour = func(a netip.Addr) (string, bool) { return testMAC, a == netip.MustParseAddr("10.10.20.77") }
	s.handleSyslog(t.Context(), []byte("<6>hello"), netip.MustParseAddr("10.10.20.77"))
	s.rec.flush(t.Context())
	if len(j.syslog) != 1 || j.syslog[0].Machine != "node1" {
		t.Errorf("%+v", j.syslog)
	}
}

// The port is served until the server ends, DHCP names it to iPXE while it is 514, and a port that is
// taken ends nothing.
func TestSyslogPort(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) {
		m.Interfaces[0].Address = netip.MustParseAddr("127.0.0.1")
	})}}
	s, j := newServer(t, f, func(c *Config) { c.SyslogAddr = "127.0.0.1:0" })
	conn := s.listenSyslog(t.Context())
	if conn == nil || s.logServer.Load() {
		t.Fatal("the port is not bound, or named although it is not 514")
	}
	s.cfg.SyslogAddr = conn.LocalAddr().String()
	if second := s.listenSyslog(t.Context()); second != nil {
		t.Error("a port was bound twice")
	}
	done := make(chan error, 1)
	go func() { done <- s.serveSyslog(t.Context(), conn) }()
	c, err := net.Dial("udp4", s.cfg.SyslogAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("<3>ipxe: no space")); err != nil {
		t.Fatal(err)
	}
	<-s.rec.wakeSyslog
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "reading syslog") {
		t.Errorf("after the socket was closed: %v", err)
	}
	s.rec.flush(t.Context())
	if len(j.syslog) != 1 || j.syslog[0].Severity != "err" || j.syslog[0].Text != "no space" {
		t.Errorf("%+v", j.syslog)
	}

	f.machines = []inventory.Machine{machine(nil)}
	offer := func() string {
		ipxe := dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionUserClassInformation, []byte("iPXE")))
		r := s.handlePacket(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, ipxe).ToBytes(), link{name: "lo"})
		return addr4(r.packet.Options.Get(dhcpv4.OptionLogServer)).String()
	}
	if got := offer(); got != "invalid IP" {
		t.Errorf("option 7: %s", got)
	}
	s.logServer.Store(true)
	if got := offer(); got != testSelf.String() {
		t.Errorf("option 7: %s", got)
	}
}
