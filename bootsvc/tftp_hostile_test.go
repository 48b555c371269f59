package bootsvc

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/inventory"
)

// TestTFTPHostileOptions: no option of a request stops the server (security S34).
func TestTFTPHostileOptions(t *testing.T) {
	_, f, _, addr := tftpServer(t)
	f.setGrant(armed("node1"))
	for _, options := range []string{
		"blksize\x00" + strings.Repeat("0", 400) + "512\x00",
		"blksize\x00" + strings.Repeat("0", 600) + "512\x00",
		"blksize\x00" + strings.Repeat("0", 1300) + "512\x00",
		"tsize\x00" + strings.Repeat("9", 490) + "\x00",
		strings.Repeat("blksize\x00512\x00", 60),
		strings.Repeat("\x00", 490),
		"blksize\x00-1\x00tsize\x00\x00\x00\x00",
	} {
		c := dial(t, addr)
		send(t, c, "\x00\x01snponly.efi\x00octet\x00"+options)
		if body, err := tftpGet(t, addr, "snponly.efi"); err != nil || len(body) != 4800 {
			t.Errorf("after the options %.20q: %d bytes, %v", options, len(body), err)
		}
	}
}

// TestTFTPHostileTransfers: no packet during a transfer stops the server (security S34).
func TestTFTPHostileTransfers(t *testing.T) {
	_, f, _, addr := tftpServer(t)
	f.setGrant(armed("node1"))
	for _, packet := range []string{
		"\x00\x03" + strings.Repeat("x", 600),
		"\x00\x04\x00\x00" + strings.Repeat("x", 600),
		"\x00\x06" + strings.Repeat("blksize\x0065464\x00", 90),
		"\x00\x01snponly.efi\x00octet\x00" + strings.Repeat("x", 1300),
		"\x00\x05" + strings.Repeat("x", 1400),
		"\x00\x04", "\x00\x06\x00", "\x00", "\x00\x09\x00\x00",
	} {
		c := dial(t, addr)
		send(t, c, "\x00\x01snponly.efi\x00octet\x00tsize\x000\x00")
		if oack := receive(t, c); !strings.HasPrefix(oack, "\x00\x06") {
			t.Fatalf("OACK %q", oack)
		}
		send(t, c, packet)
		if body, err := tftpGet(t, addr, "snponly.efi"); err != nil || len(body) != 4800 {
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
		"the self-test":               {CheckMAC + "/" + autoexecName, forged},
		"the script of a known one":   {"52:54:00:20:01:02/" + autoexecName, forged},
		"the loader of the armed one": {testMAC + "/snponly.efi", forged},
		"a MAC that nobody has":       {"52:54:00:99:99:99/snponly.efi", forged},
		"of one source": {testMAC + "/snponly.efi", func(n int) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(1024+n))
		}},
		"in the machine's own name": {"snponly.efi", func(n int) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr(testAddr), uint16(10000+n))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeMachines{machines: []inventory.Machine{machine(nil), machine(func(m *inventory.Machine) {
				m.Name, m.Interfaces[0].MAC, m.Interfaces[0].Address = "node2", "52:54:00:20:01:02", netip.MustParseAddr("10.10.20.12")
			})}}
			s, _ := newServer(t, f, nil)
			f.setGrant(armed("node1"))
			w := serveWire(t, s)
			for n := range 5000 {
				w.in <- datagram{peer: c.from(n), local: testSelf, content: []byte("\x00\x01" + c.file + "\x00octet\x00blksize\x001428\x00")}
				if n%1000 == 999 {
					own := netip.AddrPortFrom(netip.MustParseAddr(testAddr), uint16(1024+n))
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
	c := newTFTPConn(&fakeWire{})
	ask := func(n int) *tftpSession {
		s := &tftpSession{peer: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}), 1069), last: time.Now()}
		if !c.admit(s) {
			return nil
		}
		return s
	}
	first := ask(0)
	for n := 1; n < tftpUndecided; n++ {
		if ask(n) == nil {
			t.Fatalf("request %d is refused", n)
		}
	}
	if ask(tftpUndecided) != nil || ask(1) != nil {
		t.Fatal("more requests are let in than may be undecided")
	}
	c.finish(first, errBusy)
	if ask(tftpUndecided) == nil {
		t.Error("a request that was decided keeps its place")
	}
	if c.serve(first, rankOwn) || c.undecided != tftpUndecided || c.transfers != 0 {
		t.Errorf("%d undecided, %d transfers", c.undecided, c.transfers)
	}
}

// TestTFTPClientWithOnePort: a client that always uses the same port and has given up a transfer gets what it
// asks for next at once. A repeated or delayed request ends nothing.
func TestTFTPClientWithOnePort(t *testing.T) {
	c := newTFTPConn(&fakeWire{})
	now := time.Now()
	ask := func(name string, after time.Duration) *tftpSession {
		s := &tftpSession{peer: netip.MustParseAddrPort("10.10.20.11:1069"), last: now.Add(after), request: tftpRequest{name: name}}
		if !c.admit(s) {
			return nil
		}
		return s
	}
	first := ask("a", 0)
	if ask("b", 0) != nil {
		t.Error("a request replaces one whose look-up goes on")
	}
	c.serve(first, rankOwn)
	if ask("a", tftpTimeout) != nil {
		t.Error("a repeated request, of which no answer arrived, begins a second transfer")
	}
	first.proven, first.last = true, now.Add(time.Minute)
	if ask("a", time.Minute+tftpTimeout-1) != nil {
		t.Error("a delayed request ends a transfer that makes progress")
	}
	second := ask("a", time.Minute+tftpTimeout)
	if second == nil || !first.over || c.transfers != 0 {
		t.Fatal("a client that begins again waits for its old transfer")
	}
	c.serve(second, rankOwn)
	if third := ask("b", time.Minute+tftpTimeout); third == nil || !second.over || second == third {
		t.Error("a client that asks for another file waits for its old transfer")
	}
	c.finish(first, errBrokeOff)
	if len(c.live) != 1 || c.undecided != 1 {
		t.Errorf("%d live, %d undecided", len(c.live), c.undecided)
	}
}

// fakeWire is a tftpConn's socket in memory. It keeps the sent packets and delivers the
// packets in the channel in.
type fakeWire struct {
	in     chan datagram
	closed chan struct{}
	once   sync.Once
	conn   *tftpConn    // the one that uses this socket
	full   atomic.Int64 // so many times, there is no room

	mu   sync.Mutex
	sent []datagram
}

func (w *fakeWire) Receive(int) ([]datagram, error) {
	select {
	case d := <-w.in:
		return []datagram{d}, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *fakeWire) Send(packets []datagram) (int, error) {
	if w.full.Add(-1) >= 0 {
		return 0, unix.EAGAIN
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range packets {
		w.sent = append(w.sent, datagram{peer: d.peer, content: slices.Concat(d.head[:], d.content)})
	}
	return len(packets), nil
}

func (w *fakeWire) Stop() { w.once.Do(func() { close(w.closed) }) }

func (w *fakeWire) Close() error { return nil }

// fetch fetches a file like a client that loses no packets and repeats a packet until it
// is answered.
func (w *fakeWire) fetch(t *testing.T, peer netip.AddrPort, file string) (body []byte) {
	t.Helper()
	packet := []byte("\x00\x01" + file + "\x00octet\x00blksize\x001428\x00")
	for size := 1432; size == 1432; {
		var answer []byte
		waitFor(t, func() bool {
			w.in <- datagram{peer: peer, local: testSelf, content: packet}
			for _, d := range w.take() {
				if d.peer == peer {
					answer = d.content
				}
			}
			return answer != nil && (packet[1] == opRRQ) == (answer[1] != opData)
		})
		if answer[1] == opError {
			t.Fatalf("%s is refused: %q", file, answer[4:])
		}
		packet = []byte{0, opACK, 0, 0}
		if answer[1] == opData {
			copy(packet[2:], answer[2:4])
			body, size = append(body, answer[4:]...), len(answer)
		}
	}
	w.in <- datagram{peer: peer, local: testSelf, content: packet}
	return body
}

// take returns the packets that were sent since its last call.
func (w *fakeWire) take() []datagram {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.sent
	w.sent = nil
	return out
}

// has reports whether the transfer with peer is not over.
func (w *fakeWire) has(peer netip.AddrPort) bool {
	w.conn.mu.Lock()
	defer w.conn.mu.Unlock()
	return w.conn.live[peer] != nil
}

// serveWire serves s on a fakeWire until the test ends.
func serveWire(t testing.TB, s *Server) *fakeWire {
	t.Helper()
	w := &fakeWire{in: make(chan datagram), closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	w.conn = newTFTPConn(w)
	go func() { done <- s.serveTFTP(ctx, w.conn) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestTFTPWindowsAreShortForOthers: a request for an armed machine's file gets a long
// window only if it comes from the machine's own address (security S34).
func TestTFTPWindowsAreShortForOthers(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, f, nil)
	f.setGrant(armed("node1"))
	w := serveWire(t, s)
	for source, want := range map[string]string{"192.0.2.7:1069": "windowsize\x008\x00", testAddr + ":1069": "windowsize\x0064\x00"} {
		w.in <- datagram{peer: netip.MustParseAddrPort(source), local: testSelf, content: []byte("\x00\x01" + testMAC + "/snponly.efi\x00octet\x00windowsize\x00100\x00")}
		var got []datagram
		waitFor(t, func() bool { got = append(got, w.take()...); return len(got) > 0 })
		if string(got[0].content) != "\x00\x06"+want {
			t.Errorf("%s is answered with %q", source, got[0].content)
		}
	}
}

// TestTFTPSelfTestIsForThisHost: the check's script, the only file without a machine, is
// not sent to a forged source (security S34).
func TestTFTPSelfTestIsForThisHost(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, nil)
	w := serveWire(t, s)
	for source, want := range map[string]string{"192.0.2.7:1069": "\x00\x05\x00\x01file not found\x00", testSelf.String() + ":1069": "\x00\x03\x00\x01#!ipxe\n"} {
		w.in <- datagram{peer: netip.MustParseAddrPort(source), local: testSelf, content: []byte("\x00\x01" + CheckMAC + "/" + autoexecName + "\x00octet\x00")}
		var got []datagram
		waitFor(t, func() bool { got = append(got, w.take()...); return len(got) > 0 })
		if !strings.HasPrefix(string(got[0].content), want) {
			t.Errorf("%s is answered with %q", source, got[0].content)
		}
		w.in <- datagram{peer: netip.MustParseAddrPort(source), local: testSelf, content: []byte("\x00\x05\x00\x00")} // end the transfer
	}
}
