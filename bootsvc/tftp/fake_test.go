package tftp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
)

var (
	ownHost = netip.MustParseAddr("10.10.20.2")
	client  = netip.MustParseAddr("10.10.20.11")
)

// serveLoader serves snponly.efi, of 4,800 bytes. The file is a client's own if it asks from client or from this host.
func serveLoader(_ context.Context, r Request) error {
	if r.Name != "snponly.efi" {
		return ErrNoFile
	}
	rank := RankArmed
	if r.From == client || r.From.IsLoopback() {
		rank = RankOwn
	}
	content := strings.Repeat("snponly.efi\n", 400)
	return r.Send(rank, int64(len(content)), strings.NewReader(content))
}

// noLimits permits everything.
type noLimits struct{}

func (noLimits) Unresolved(netip.Addr) bool    { return false }
func (noLimits) MayWait(netip.Addr, bool) bool { return true }
func (noLimits) TakeUnproven() bool            { return true }
func (noLimits) ReturnUnproven()               {}

// newService returns a server whose panics end the test binary: a fuzz target would not see a panic that it recovers from.
func newService(h Handler) *Server {
	return NewServer(h, noLimits{}, guard.New(slog.New(crashing{})))
}

type crashing struct{ slog.Handler }

func (crashing) Enabled(context.Context, slog.Level) bool { return true }

func (crashing) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += "\n" + a.String(); return true })
	panic(text)
}

// newTestConn returns a connection without limits.
func newTestConn(p packets) *Conn {
	c, s := newConn(p), newService(nil)
	c.guard, c.limits, c.stats = s.guard, s.limits, &s.stats
	return c
}

// listenLocally serves snponly.efi on a port of the loopback address.
func listenLocally(t *testing.T) (addr string) {
	t.Helper()
	c, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveUntilEnd(t, newService(serveLoader), c)
	return fmt.Sprintf("127.0.0.1:%d", portOf(t, c))
}

func portOf(t *testing.T, c *Conn) int {
	t.Helper()
	self, err := unix.Getsockname(c.packets.(*socket).fd)
	if err != nil {
		t.Fatal(err)
	}
	return self.(*unix.SockaddrInet4).Port
}

// serveUntilEnd serves until the test ends.
func serveUntilEnd(t testing.TB, s *Server, c *Conn) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// await waits until ok returns true.
func await(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatal("this did not happen in 20 s")
		case <-tick.C:
		}
	}
}

// fakeWire is a Conn's socket in memory. It keeps the sent packets and delivers the
// packets in the channel in.
type fakeWire struct {
	in     chan datagram
	closed chan struct{}
	once   sync.Once
	conn   *Conn        // the one that uses this socket
	full   atomic.Int64 // how often the send buffer is still to be reported as full

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
		await(t, func() bool {
			w.in <- datagram{peer: peer, local: ownHost, content: packet}
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
	w.in <- datagram{peer: peer, local: ownHost, content: packet}
	await(t, func() bool { return !w.has(peer) }) // until then, a further request counts as a repeated one
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

// serveWire serves on a fakeWire until the test ends.
func serveWire(t testing.TB, s *Server) *fakeWire {
	t.Helper()
	w := &fakeWire{in: make(chan datagram), closed: make(chan struct{})}
	w.conn = newConn(w)
	serveUntilEnd(t, s, w.conn)
	return w
}
