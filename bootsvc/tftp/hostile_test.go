package tftp

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"
)

// TestTFTPHostileOptions: no option of a request stops the server (security S34).
func TestTFTPHostileOptions(t *testing.T) {
	addr := listenLocally(t)
	for _, options := range []string{
		"blksize\x00" + strings.Repeat("0", 400) + "512\x00",
		"blksize\x00" + strings.Repeat("0", 600) + "512\x00",
		"blksize\x00" + strings.Repeat("0", 1300) + "512\x00",
		"tsize\x00" + strings.Repeat("9", 490) + "\x00",
		strings.Repeat("blksize\x00512\x00", 60),
		strings.Repeat("\x00", 490),
		"blksize\x00-1\x00tsize\x00\x00\x00\x00",
	} {
		c := tftptest.Dial(t, addr)
		tftptest.Send(t, c, "\x00\x01snponly.efi\x00octet\x00"+options)
		if body, err := tftptest.Get(t, addr, "snponly.efi"); err != nil || len(body) != 4800 {
			t.Errorf("after the options %.20q: %d bytes, %v", options, len(body), err)
		}
	}
}

// TestTFTPHostileTransfers: no packet during a transfer stops the server (security S34).
func TestTFTPHostileTransfers(t *testing.T) {
	addr := listenLocally(t)
	for _, packet := range []string{
		"\x00\x03" + strings.Repeat("x", 600),
		"\x00\x04\x00\x00" + strings.Repeat("x", 600),
		"\x00\x06" + strings.Repeat("blksize\x0065464\x00", 90),
		"\x00\x01snponly.efi\x00octet\x00" + strings.Repeat("x", 1300),
		"\x00\x05" + strings.Repeat("x", 1400),
		"\x00\x04", "\x00\x06\x00", "\x00", "\x00\x09\x00\x00",
	} {
		c := tftptest.Dial(t, addr)
		tftptest.Send(t, c, "\x00\x01snponly.efi\x00octet\x00tsize\x000\x00")
		if oack := tftptest.Receive(t, c); !strings.HasPrefix(oack, "\x00\x06") {
			t.Fatalf("OACK %q", oack)
		}
		tftptest.Send(t, c, packet)
		if body, err := tftptest.Get(t, addr, "snponly.efi"); err != nil || len(body) != 4800 {
			t.Errorf("after the packet %.20q: %d bytes, %v", packet, len(body), err)
		}
	}
}

// TestTFTPIsNotStarved: requests with forged sources, for any file and even with the
// machine's own address, do not block TFTP for an armed machine (security S34).
func TestTFTPIsNotStarved(t *testing.T) {
	forged := func(n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}), 1069)
	}
	for name, c := range map[string]struct {
		file string
		from func(n int) netip.AddrPort
	}{
		"a file that is refused":   {"other.efi", forged},
		"a file of any machine":    {"known.efi", forged},
		"the file of an armed one": {"snponly.efi", forged},
		"of one source": {"snponly.efi", func(n int) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(1024+n))
		}},
		"in the machine's own name": {"snponly.efi", func(n int) netip.AddrPort { return netip.AddrPortFrom(client, uint16(10000+n)) }},
		"refused in its own name":   {"other.efi", func(n int) netip.AddrPort { return netip.AddrPortFrom(client, uint16(10000+n)) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := serveWire(t, newService(func(ctx context.Context, r Request) error {
				if r.Name == "known.efi" {
					return r.Send(RankKnown, 5, strings.NewReader("known"))
				}
				return serveLoader(ctx, r)
			}))
			for n := range 5000 {
				w.in <- datagram{peer: c.from(n), local: ownHost, content: []byte("\x00\x01" + c.file + "\x00octet\x00blksize\x001428\x00")}
				if n%1000 == 999 {
					own := netip.AddrPortFrom(client, uint16(1024+n))
					if got := w.fetch(t, own, "snponly.efi"); len(got) != 4800 {
						t.Fatalf("after %d forged requests: %d bytes", n+1, len(got))
					}
				}
			}
		})
	}
}

// TestTFTPLimitsRequests: requests that are not decided yet have a limit, and one that is
// decided leaves its place to the next (security S34).
func TestTFTPLimitsRequests(t *testing.T) {
	c := newTestConn(&fakeWire{})
	ask := func(n int) *session {
		s := &session{peer: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}), 1069), last: time.Now()}
		if !c.admit(s) {
			return nil
		}
		return s
	}
	first := ask(0)
	for n := 1; n < maxUndecided; n++ {
		if ask(n) == nil {
			t.Fatalf("request %d is refused", n)
		}
	}
	if ask(maxUndecided) != nil || ask(1) != nil {
		t.Fatal("more requests are let in than may be undecided")
	}
	c.finish(first, errBusy)
	if ask(maxUndecided) == nil {
		t.Error("a request that was decided keeps its place")
	}
	if c.serve(first, RankOwn) || c.undecided != maxUndecided || c.transfers != 0 {
		t.Errorf("%d undecided, %d transfers", c.undecided, c.transfers)
	}
}

// TestTFTPClientWithOnePort: a client that always uses the same port and has given up a transfer gets what it
// asks for next at once. A repeated or delayed request ends nothing.
func TestTFTPClientWithOnePort(t *testing.T) {
	c := newTestConn(&fakeWire{})
	now := time.Now()
	ask := func(name string, after time.Duration) *session {
		s := &session{peer: netip.MustParseAddrPort("10.10.20.11:1069"), last: now.Add(after), request: request{name: name}}
		if !c.admit(s) {
			return nil
		}
		return s
	}
	first := ask("a", 0)
	if ask("b", 0) != nil {
		t.Error("a request replaces one whose look-up goes on")
	}
	c.serve(first, RankOwn)
	if ask("a", Timeout) != nil {
		t.Error("a request that is repeated because no answer arrived begins a second transfer")
	}
	first.proven, first.last = true, now.Add(time.Minute)
	if ask("a", time.Minute+Timeout-1) != nil {
		t.Error("a delayed request ends a transfer that makes progress")
	}
	second := ask("a", time.Minute+Timeout)
	if second == nil || !first.over || c.transfers != 0 {
		t.Fatal("a client that begins again waits for its old transfer")
	}
	c.serve(second, RankOwn)
	if third := ask("b", time.Minute+Timeout); third == nil || !second.over || second == third {
		t.Error("a client that asks for another file waits for its old transfer")
	}
	c.finish(first, errBrokeOff)
	if len(c.live) != 1 || c.undecided != 1 {
		t.Errorf("%d live, %d undecided", len(c.live), c.undecided)
	}
}

// TestTFTPWindowsAreShortForOthers: a request for an armed machine's file gets a long
// window only if it comes from the machine's own address (security S34).
func TestTFTPWindowsAreShortForOthers(t *testing.T) {
	w := serveWire(t, newService(serveLoader))
	for source, want := range map[string]string{"192.0.2.7:1069": "windowsize\x008\x00", client.String() + ":1069": "windowsize\x0064\x00"} {
		w.in <- datagram{peer: netip.MustParseAddrPort(source), local: ownHost, content: []byte("\x00\x01snponly.efi\x00octet\x00windowsize\x00100\x00")}
		var got []datagram
		await(t, func() bool { got = append(got, w.take()...); return len(got) > 0 })
		if string(got[0].content) != "\x00\x06"+want {
			t.Errorf("%s is answered with %q", source, got[0].content)
		}
	}
}
