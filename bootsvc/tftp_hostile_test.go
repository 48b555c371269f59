package bootsvc

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

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
				w.in <- datagram{c.from(n), testSelf.AsSlice(), []byte("\x00\x01" + c.file + "\x00octet\x00blksize\x001428\x00")}
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

// TestTFTPForgetsLostRequests: requests that the library has dropped do not count
// permanently.
func TestTFTPForgetsLostRequests(t *testing.T) {
	c := newTFTPConn(nil, &fakeWire{})
	peer := func(n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}), 1069)
	}
	for n := range tftpUndecided {
		if !c.admit(peer(n), nil) {
			t.Fatalf("request %d is refused", n)
		}
	}
	if c.admit(peer(tftpUndecided), nil) || c.admit(peer(0), nil) {
		t.Fatal("more requests are let in than may be undecided")
	}
	late := c.session(peer(1))
	for _, s := range c.live {
		s.last = s.last.Add(-2 * tftpLost)
	}
	if !c.admit(peer(0), nil) || !c.admit(peer(tftpUndecided), nil) {
		t.Error("lost requests keep their place")
	}
	if c.serve(late, rankOwn) || c.undecided != 2 || c.transfers != 0 {
		t.Errorf("%d undecided, %d transfers", c.undecided, c.transfers)
	}
}

// TestTFTPTransferReadsWhatItIsHanded: if a transfer times out while a packet is being
// passed to it, it is not ended before it has read the packet: it would close a channel
// that the library's loop sends on. After tftpRetries it is ended in any case.
func TestTFTPTransferReadsWhatItIsHanded(t *testing.T) {
	peer := netip.MustParseAddrPort("192.0.2.1:1069")
	oack, data := []byte{0, opOACK, 0, 0}, []byte{0, opData, 0, 1}
	ended := func(c *tftpConn, b []byte) bool { _, _, err := c.maySend(peer, b); return err != nil }
	for name, hand := range map[string]func(c *tftpConn) bool{
		"an ACK":                    func(c *tftpConn) bool { return c.acknowledged(peer, 0) },
		"an error":                  func(c *tftpConn) bool { return c.ended(peer) },
		"an ACK before an eviction": func(c *tftpConn) bool { return c.acknowledged(peer, 0) && !c.finish(c.live[peer]) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newTFTPConn(nil, &fakeWire{})
			if !c.admit(peer, nil) || !c.serve(c.live[peer], rankOwn) || ended(c, oack) || !hand(c) {
				t.Fatal("the transfer did not begin")
			}
			for n := range tftpRetries {
				if _, send, err := c.maySend(peer, oack); send || err != nil {
					t.Fatalf("repeat %d: sent: %v, %v", n, send, err)
				}
			}
			if !ended(c, oack) {
				t.Error("the transfer goes on for ever")
			}
			if c.acknowledged(peer, 0) || c.ended(peer) {
				t.Error("a transfer that is over is handed a packet")
			}
		})
	}
	c := newTFTPConn(nil, &fakeWire{})
	if !c.admit(peer, nil) || !c.serve(c.live[peer], rankOwn) || ended(c, oack) || !c.acknowledged(peer, 0) || ended(c, data) {
		t.Fatal("the transfer did not begin")
	}
	c.shut()
	if ended(c, data) || c.acknowledged(peer, 1) {
		t.Error("it is ended before it has read that the server shuts down")
	}
}

// fakeWire is a tftpConn's socket in memory. It keeps the sent packets and delivers the
// packets in the channel in.
type fakeWire struct {
	in     chan datagram
	closed chan struct{}
	once   sync.Once
	conn   *tftpConn // the one that uses this socket

	mu   sync.Mutex
	sent []datagram
}

type datagram struct {
	peer  netip.AddrPort
	local net.IP
	b     []byte
}

func (w *fakeWire) ReadFrom(b []byte) (int, *ipv4.ControlMessage, net.Addr, error) {
	select {
	case d := <-w.in:
		return copy(b, d.b), &ipv4.ControlMessage{Dst: d.local}, net.UDPAddrFromAddrPort(d.peer), nil
	case <-w.closed:
		return 0, nil, nil, net.ErrClosed
	}
}

func (w *fakeWire) WriteTo(b []byte, cm *ipv4.ControlMessage, to net.Addr) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, datagram{peerOf(to.(*net.UDPAddr)), cm.Src, bytes.Clone(b)})
	return len(b), nil
}

// fetch fetches a file like a client that loses no packets and repeats a packet until it
// is answered.
func (w *fakeWire) fetch(t *testing.T, peer netip.AddrPort, file string) (body []byte) {
	t.Helper()
	packet := []byte("\x00\x01" + file + "\x00octet\x00blksize\x001428\x00")
	for size := 1432; size == 1432; {
		var answer []byte
		waitFor(t, func() bool {
			w.in <- datagram{peer, testSelf.AsSlice(), packet}
			for _, d := range w.take() {
				if d.peer == peer {
					answer = d.b
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
	w.in <- datagram{peer, testSelf.AsSlice(), packet}
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

// fakeSocket has the other methods of a socket that the library calls.
type fakeSocket struct{ *fakeWire }

func (s fakeSocket) ReadFrom([]byte) (int, net.Addr, error) { return 0, nil, net.ErrClosed }
func (s fakeSocket) WriteTo([]byte, net.Addr) (int, error)  { return 0, net.ErrClosed }
func (s fakeSocket) Close() error                           { return nil }
func (s fakeSocket) LocalAddr() net.Addr                    { return &net.UDPAddr{IP: testSelf.AsSlice(), Port: 69} }
func (s fakeSocket) SetDeadline(time.Time) error            { return nil }
func (s fakeSocket) SetWriteDeadline(time.Time) error       { return nil }
func (s fakeSocket) SetReadDeadline(time.Time) error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// serveWire serves s on a fakeWire until the test ends.
func serveWire(t testing.TB, s *Server) *fakeWire {
	t.Helper()
	w := &fakeWire{in: make(chan datagram), closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	w.conn = newTFTPConn(fakeSocket{w}, w)
	go func() { done <- s.serveTFTP(ctx, w.conn) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestTFTPSelfTestIsForThisHost: the check's script, the only file without a machine, is
// not sent to a forged source (security S34).
func TestTFTPSelfTestIsForThisHost(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, nil)
	w := serveWire(t, s)
	for source, want := range map[string]string{"192.0.2.7:1069": "\x00\x05\x00\x01file not found\x00", testSelf.String() + ":1069": "\x00\x03\x00\x01#!ipxe\n"} {
		w.in <- datagram{netip.MustParseAddrPort(source), testSelf.AsSlice(), []byte("\x00\x01" + CheckMAC + "/" + autoexecName + "\x00octet\x00")}
		var got []datagram
		waitFor(t, func() bool { got = append(got, w.take()...); return len(got) > 0 })
		if !strings.HasPrefix(string(got[0].b), want) {
			t.Errorf("%s is answered with %q", source, got[0].b)
		}
		w.in <- datagram{netip.MustParseAddrPort(source), testSelf.AsSlice(), []byte("\x00\x05\x00\x00")} // end the transfer
	}
}
