package wire

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/inventory"
)

func TestParseSyslog(t *testing.T) {
	secret := inventory.Claim([]byte("0123456789abcdef"), inventory.Owner{Machine: "node1", Run: "r"}, 1)
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
	secret := inventory.Claim([]byte("0123456789abcdef"), inventory.Owner{Machine: "node1", Run: "r"}, 1)
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
	r, j := recording()
	s := NewSyslog(r, onlyClient)
	own, foreign := netip.MustParseAddr(clientAddress), netip.MustParseAddr("10.10.20.99")
	for n := range maxSyslogEach + 7 {
		s.handle(t.Context(), fmt.Appendf(nil, "<6>kernel: %d", n), own)
	}
	s.handle(t.Context(), []byte("<6>kernel: x"), foreign)
	s.handle(t.Context(), []byte("<6>"), own)
	r.Flush(t.Context())
	if len(j.syslog) != maxSyslogEach || j.syslog[0].Machine != "node1" || j.syslog[0].Text != "0" || !j.syslog[0].At.Equal(someTime) {
		t.Errorf("%d lines, %+v", len(j.syslog), j.syslog[0])
	}
	if r.Dropped().Syslog != 7 || s.UnknownSenders() != 1 || r.guard.Panics() != 0 {
		t.Errorf("%+v, %d unknown, %d panics", r.Dropped(), s.UnknownSenders(), r.guard.Panics())
	}

	s.handle(t.Context(), []byte("<6>kernel: again"), own)
	j.err = fmt.Errorf("the disk is full")
	r.Flush(t.Context())
	j.err = nil
	r.Flush(t.Context())
	if len(j.syslog) != maxSyslogEach || r.Dropped().Syslog != 8 {
		t.Errorf("%d lines after a failed write, %d dropped", len(j.syslog), r.Dropped().Syslog)
	}
}

// The port is served until the server ends, clients are given it while it is 514, and a port that is taken ends nothing.
func TestSyslogPort(t *testing.T) {
	r, j := recording()
	s := NewSyslog(r, func(context.Context, netip.Addr) string { return "node1" })
	conn := s.Listen(t.Context(), "127.0.0.1:0")
	if conn == nil || s.IsNamed() {
		t.Fatal("the port is not bound, or named although it is not 514")
	}
	if second := s.Listen(t.Context(), conn.LocalAddr().String()); second != nil {
		t.Error("a port was bound twice")
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context(), conn) }()
	c, err := net.Dial("udp4", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("<3>ipxe: no space")); err != nil {
		t.Fatal(err)
	}
	<-r.wakeSyslog
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "reading syslog") {
		t.Errorf("after the socket was closed: %v", err)
	}
	r.Flush(t.Context())
	if len(j.syslog) != 1 || j.syslog[0].Severity != "err" || j.syslog[0].Text != "no space" {
		t.Errorf("%+v", j.syslog)
	}
}
