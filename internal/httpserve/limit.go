package httpserve

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// stalled is how long a write may wait for its client before the connection
// counts as one that does not read.
const stalled = 5 * time.Second

// Limit makes srv hold at most total connections. One more takes the place of
// another, of the source with the most connections: one that is idle, or whose
// client does not read, before one that is served. So a source has all the
// room that others leave, and no more. Whoever is closed may try again.
//
// first tells whether a source comes before others, as Prefer does for a
// connection; it is asked only when there is no room. nil: none does.
//
// srv must serve a listener of Track. Limit sets srv.ConnState and
// srv.ConnContext.
func Limit(srv *http.Server, total int, first func(source netip.Addr) bool) {
	l := &limiter{total: total, first: first, conns: map[net.Conn]*member{}, from: map[netip.Addr]int{}}
	srv.ConnState = l.changed
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, preferKey{}, func() { l.prefer(c) })
	}
}

type preferKey struct{}

// Prefer makes the connection of a request's context come before those that
// have proven nothing: its client is one that has a right to an answer.
func Prefer(ctx context.Context) {
	if f, ok := ctx.Value(preferKey{}).(func()); ok {
		f()
	}
}

type limiter struct {
	total int
	first func(netip.Addr) bool

	mu    sync.Mutex
	conns map[net.Conn]*member
	from  map[netip.Addr]int // connections that are not preferred
}

// A member is an open connection.
type member struct {
	conn      net.Conn
	source    netip.Addr
	state     http.ConnState
	since     time.Time // in that state
	preferred bool
}

func (l *limiter) changed(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		l.add(c)
	case http.StateActive, http.StateIdle:
		l.mu.Lock()
		defer l.mu.Unlock()
		if m := l.conns[c]; m != nil {
			m.state, m.since = state, time.Now()
		}
	case http.StateClosed, http.StateHijacked:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.remove(l.conns[c])
	}
}

func (l *limiter) add(c net.Conn) {
	m := &member{conn: c, state: http.StateNew, since: time.Now()}
	if a, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		m.source = a.Addr().Unmap()
	}
	l.mu.Lock()
	full := len(l.conns) >= l.total
	l.mu.Unlock()
	m.preferred = full && l.first != nil && l.first(m.source)

	l.mu.Lock()
	l.conns[c] = m
	if !m.preferred {
		l.from[m.source]++
	}
	var out *member
	if len(l.conns) > l.total {
		out = l.worst(m)
		l.remove(out)
	}
	l.mu.Unlock()
	if out != nil {
		drop(out.conn)
	}
}

// remove forgets m, which may be nil.
func (l *limiter) remove(m *member) {
	if m == nil || l.conns[m.conn] != m {
		return
	}
	delete(l.conns, m.conn)
	if !m.preferred {
		l.leave(m.source)
	}
}

func (l *limiter) leave(source netip.Addr) {
	if l.from[source]--; l.from[source] == 0 {
		delete(l.from, source)
	}
}

func (l *limiter) prefer(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.conns[c]; m != nil && !m.preferred {
		m.preferred = true
		l.leave(m.source)
	}
}

// worst returns the connection that has to go when newest has come.
func (l *limiter) worst(newest *member) *member {
	now := time.Now()
	worst := newest
	for _, m := range l.conns {
		if l.before(m, worst, now) {
			worst = m
		}
	}
	return worst
}

// before tells whether a has to go before b.
func (l *limiter) before(a, b *member, now time.Time) bool {
	if a.preferred != b.preferred {
		return b.preferred
	}
	if n, m := l.from[a.source], l.from[b.source]; !a.preferred && n != m {
		return n > m
	}
	if v, w := a.value(now), b.value(now); v != w {
		return v < w
	}
	return a.since.Before(b.since)
}

// value orders connections of one source by what is lost with them.
func (m *member) value(now time.Time) int {
	switch t := tracked(m.conn); {
	case m.state != http.StateActive:
		return 0
	case t != nil && t.waits(now) > stalled:
		return 1
	}
	return 2
}

// drop closes a connection at once, with what was not read from it yet: a client
// that reads nothing would keep that in the kernel.
func drop(c net.Conn) {
	if t := tracked(c); t != nil {
		_ = t.SetLinger(0) // of a connection that has just ended
		_ = t.Close()
		return
	}
	_ = c.Close()
}

// Track returns a listener whose connections know for how long a write waits. It
// belongs below TLS.
func Track(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		return &trackedConn{TCPConn: tcp}, nil
	}
	return c, err
}

// A trackedConn notes since when a write waits. Like a net.TCPConn it sends a
// file without copying it through our memory.
type trackedConn struct {
	*net.TCPConn
	writing atomic.Int64 // since when, in Unix nanoseconds; 0: none
}

// tracked returns what Track has made of a connection, or nil.
func tracked(c net.Conn) *trackedConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	t, _ := c.(*trackedConn)
	return t
}

func (t *trackedConn) waits(now time.Time) time.Duration {
	since := t.writing.Load()
	if since == 0 {
		return 0
	}
	return now.Sub(time.Unix(0, since))
}

func (t *trackedConn) Write(b []byte) (int, error) {
	t.writing.Store(time.Now().UnixNano())
	defer t.writing.Store(0)
	return t.TCPConn.Write(b)
}

// ReadFrom implements io.ReaderFrom, by which net/http sends files.
func (t *trackedConn) ReadFrom(r io.Reader) (int64, error) {
	t.writing.Store(time.Now().UnixNano())
	defer t.writing.Store(0)
	return t.TCPConn.ReadFrom(r)
}
