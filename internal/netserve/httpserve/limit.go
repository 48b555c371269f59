package httpserve

import (
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// stalled is the time per MiB of a write after which a client counts as not reading.
const stalled = 5 * time.Second

const (
	lookupFor  = time.Second // how long a result of isPriority is cached
	maxLookups = 4096        // maximum number of cached results
	lookupsAt  = 16          // maximum number of parallel look-ups
)

// Limit makes srv hold at most total connections. When all are in use, a new connection replaces a connection of the
// source that holds the most: first an idle one, then one whose client does not read. The client of a closed connection
// may connect again.
//
// isPriority reports whether the connections of a source have precedence; Prefer gives precedence to a single
// connection. isPriority is called in a separate goroutine, only when all connections are in use, and at most once a
// second per source. nil means that no source has precedence. If a source has more than an eighth of all connections
// with precedence, it loses that precedence, so that it cannot block other sources.
//
// srv must serve a listener that Track has returned. Limit sets srv.ConnState and srv.ConnContext.
func Limit(srv *http.Server, total int, isPriority func(source netip.Addr) bool) {
	l := newLimiter(total, isPriority)
	srv.ConnState = l.changed
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, requestConn{l, c})
	}
}

type connKey struct{}

type requestConn struct {
	limiter *limiter
	conn    net.Conn
}

// Prefer gives the connection of a request precedence; ctx is the request's context. Call it only if the client has
// proved what few clients can prove: that it has a token or a reserved address. Other hosts on the network can read the
// token of a boot, so a proof alone never closes the only connection of another source.
func Prefer(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(requestConn); ok {
		c.limiter.prefer(c.conn)
	}
}

// Cork makes the connection of a request send only full segments (TCP_CORK in tcp(7)) until uncork is called; ctx is
// the request's context. A file that is sent in pieces then takes fewer packets. Use it for HTTP/1.1 only, where a
// connection has one request at a time.
func Cork(ctx context.Context) (uncork func()) {
	c, _ := ctx.Value(connKey{}).(requestConn)
	t := tracked(c.conn)
	if t == nil {
		return func() {}
	}

	t.cork(1)
	return func() { t.cork(0) }
}

type limiter struct {
	total      int
	share      int // maximum number of a source's connections with precedence
	isPriority func(netip.Addr) bool

	mu      sync.Mutex
	conns   map[net.Conn]*member
	from    map[group]int // number of connections
	lookups map[netip.Addr]lookup
	pending int // running look-ups
}

// A member is an open connection and its state.
type member struct {
	group
	conn    net.Conn
	pending bool // isPriority is being called for the source
	state   http.ConnState
	since   time.Time // when the connection entered this state
}

// A group is a set of connections that are counted together.
type group struct {
	source    netip.Addr
	preferred bool
}

// A lookup is a cached result of isPriority, or a running look-up.
type lookup struct {
	pending  bool
	priority bool
	at       time.Time
}

func newLimiter(total int, isPriority func(netip.Addr) bool) *limiter {
	return &limiter{
		total: total, share: max(1, total/8), isPriority: isPriority,
		conns: map[net.Conn]*member{}, from: map[group]int{}, lookups: map[netip.Addr]lookup{},
	}
}

func (l *limiter) changed(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		l.add(c)
	case http.StateActive, http.StateIdle:
		l.record(c, state)
	case http.StateClosed, http.StateHijacked:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.remove(l.conns[c])
	}
}

// record stores the state of a connection, unless it was removed.
func (l *limiter) record(c net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.conns[c]; m != nil {
		m.state, m.since = state, time.Now()
	}
}

func (l *limiter) add(c net.Conn) {
	m := &member{conn: c, state: http.StateNew, since: time.Now()}
	if a, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		m.source = a.Addr().Unmap()
	}

	l.mu.Lock()
	known, ask := l.priorityOf(m.source, m.since)
	m.preferred, m.pending = known.priority, known.pending
	l.conns[c] = m
	l.count(m, 1)
	var out *member
	if len(l.conns) > l.total {
		out = l.connectionToClose(m)
		l.remove(out)
	}
	l.mu.Unlock()

	if ask {
		go l.lookUp(m.source)
	}
	if out != nil {
		drop(out.conn)
	}
}

// priorityOf returns the cached look-up of a source that connects. ask reports whether the caller must start a new
// look-up. The accept loop does not wait for that look-up: until it ends, the source's connections have precedence over
// connections without proof.
func (l *limiter) priorityOf(source netip.Addr, now time.Time) (known lookup, ask bool) {
	has := l.from[group{source, false}] + l.from[group{source, true}]
	if l.isPriority == nil || len(l.conns) < l.total || has >= l.share {
		return lookup{}, false
	}

	known, ok := l.lookups[source]
	if ok && (known.pending || now.Sub(known.at) < lookupFor) {
		return known, false
	}
	if l.pending == lookupsAt {
		return lookup{}, false
	}
	if len(l.lookups) >= maxLookups {
		maps.DeleteFunc(l.lookups, func(_ netip.Addr, x lookup) bool { return !x.pending })
	}
	known = lookup{pending: true}
	l.lookups[source] = known
	l.pending++
	return known, true
}

// lookUp calls isPriority for a source. If isPriority returns true, lookUp prefers all connections of the source.
func (l *limiter) lookUp(source netip.Addr) {
	found := l.isPriority(source)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending--
	l.lookups[source] = lookup{priority: found, at: time.Now()}
	for _, m := range l.conns {
		if m.source != source {
			continue
		}
		m.pending = false
		if found {
			l.preferMember(m)
		}
	}
}

// remove removes m from the limiter. It does nothing if m is nil or was already removed.
func (l *limiter) remove(m *member) {
	if m == nil || l.conns[m.conn] != m {
		return
	}
	delete(l.conns, m.conn)
	l.count(m, -1)
}

func (l *limiter) count(m *member, by int) {
	if l.from[m.group] += by; l.from[m.group] == 0 {
		delete(l.from, m.group)
	}
}

func (l *limiter) prefer(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.conns[c]; m != nil {
		l.preferMember(m)
	}
}

func (l *limiter) preferMember(m *member) {
	if m.preferred {
		return
	}
	l.count(m, -1)
	m.preferred = true
	l.count(m, 1)
}

// connectionToClose returns the connection to close if newest exceeds the limit; this may be newest itself.
func (l *limiter) connectionToClose(newest *member) *member {
	now := time.Now()
	out := newest
	for _, m := range l.conns {
		if l.closesBefore(m, out, now) {
			out = m
		}
	}
	return out
}

// closesBefore reports whether a must be closed if one of a and b must be closed.
func (l *limiter) closesBefore(a, b *member, now time.Time) bool {
	if r, s := l.rank(a), l.rank(b); r != s {
		return r < s
	}
	if n, m := l.from[a.group], l.from[b.group]; n != m {
		return n > m
	}
	if a.preferred != b.preferred {
		return b.preferred
	}
	if v, w := a.priority(now), b.priority(now); v != w {
		return v < w
	}
	return a.since.Before(b.since)
}

// rank returns 2 for a preferred connection whose source is within its share, and for the only connection of a source
// that is being looked up. It returns 1 for further connections of such a source, and otherwise 0. Among equal ranks,
// the connections of the busiest source are closed first: sources that share one proof cannot keep out a source that is
// not looked up yet.
func (l *limiter) rank(m *member) int {
	switch {
	case m.preferred && l.from[m.group] <= l.share, m.pending && l.from[group{m.source, false}]+l.from[group{m.source, true}] == 1:
		return 2
	case m.pending:
		return 1
	}
	return 0
}

// priority ranks a connection of a source by its state: the connection with the lowest number is closed first.
func (m *member) priority(now time.Time) int {
	t := tracked(m.conn)
	switch reads := t == nil || t.waits(now) <= stalled; {
	case m.state == http.StateActive && reads:
		return 3
	case m.state == http.StateNew && now.Sub(m.since) < stalled:
		return 2 // its client has not had time to send a request
	case m.state == http.StateActive:
		return 1
	}
	return 0
}

// drop closes a connection at once and discards unsent data, which the kernel would otherwise keep for a client that
// never reads.
func drop(c net.Conn) {
	if t := tracked(c); t != nil {
		_ = t.SetLinger(0) // fails only if the connection has just ended
		_ = t.Close()
		return
	}
	_ = c.Close()
}

// Track returns a listener whose connections measure how long a write blocks. It must be the listener below TLS.
func Track(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		return &trackedConn{TCPConn: tcp}, nil
	}
	return c, err
}

// A trackedConn records when a blocking write began. Like a net.TCPConn, it sends files without copying them through
// user space.
type trackedConn struct {
	*net.TCPConn
	writing atomic.Int64 // start of the running write in Unix nanoseconds; 0 = no write is running
	mib     atomic.Int64 // size of that write in MiB, rounded down
}

// tracked returns the trackedConn of a connection, also below TLS, or nil if it has none.
func tracked(c net.Conn) *trackedConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	t, _ := c.(*trackedConn)
	return t
}

// cork sets TCP_CORK to on. If the connection has ended, cork does nothing.
func (t *trackedConn) cork(on int) {
	raw, err := t.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, on) })
	}
}

// waits returns how long the client has taken so far per MiB of the running write, or 0 if no write is running.
func (t *trackedConn) waits(now time.Time) time.Duration {
	since := t.writing.Load()
	if since == 0 {
		return 0
	}
	return now.Sub(time.Unix(0, since)) / time.Duration(max(1, t.mib.Load()))
}

// begin records that n bytes are being written until done is called.
func (t *trackedConn) begin(n int64) (done func()) {
	t.mib.Store(n >> 20)
	t.writing.Store(time.Now().UnixNano())
	return func() { t.writing.Store(0) }
}

func (t *trackedConn) Write(b []byte) (int, error) {
	defer t.begin(int64(len(b)))()
	return t.TCPConn.Write(b)
}

// ReadFrom implements io.ReaderFrom, which net/http uses to send files.
func (t *trackedConn) ReadFrom(r io.Reader) (int64, error) {
	var n int64
	if limited, ok := r.(*io.LimitedReader); ok {
		n = limited.N
	}
	defer t.begin(n)()
	return t.TCPConn.ReadFrom(r)
}
