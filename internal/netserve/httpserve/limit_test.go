package httpserve

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Of one source, a connection that does not read is closed for a new one, but a new one is
// not closed for the next (security S35).
func TestPriority(t *testing.T) {
	now := time.Now()
	conn := func(state http.ConnState, in, writes time.Duration) *member {
		c := &trackedConn{}
		if writes > 0 {
			c.writing.Store(now.Add(-writes).UnixNano())
		}
		return &member{conn: c, state: state, since: now.Add(-in)}
	}
	order := []*member{ // in order of closing
		conn(http.StateNew, time.Minute, 0),
		conn(http.StateIdle, time.Second, 0),
		conn(http.StateActive, time.Hour, time.Minute),
		conn(http.StateActive, 2*stalled, 2*stalled),
		conn(http.StateNew, time.Second, 0),
		conn(http.StateNew, 0, 0),
		conn(http.StateActive, time.Hour, time.Second),
		conn(http.StateActive, time.Minute, 0),
	}
	l := &limiter{}
	for i, a := range order {
		for j, b := range order {
			require.Equal(t, i < j, l.closesBefore(a, b, now), "%d before %d", i, j)
		}
	}
}

// A source is looked up only when the server is full, once a second, and not when it has its
// share; only a few look-ups run at a time (security S35).
func TestLookupsAreBounded(t *testing.T) {
	priority, busy := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	l := newLimiter(16, func(source netip.Addr) bool { return source == priority })
	now := time.Now()
	known, ask := l.priorityOf(priority, now)
	require.Zero(t, known)
	require.False(t, ask, "there is room")

	for range 16 {
		m := &member{conn: &trackedConn{}, group: group{source: busy}}
		l.conns[m.conn] = m
		l.count(m, 1)
	}
	known, ask = l.priorityOf(busy, now)
	require.Zero(t, known)
	require.False(t, ask, "a source with more than its share")

	_, ask = l.priorityOf(priority, now)
	require.True(t, ask)
	_, ask = l.priorityOf(priority, now)
	require.False(t, ask, "its look-up is under way")
	l.lookUp(priority)
	known, ask = l.priorityOf(priority, now)
	require.True(t, known.priority)
	require.False(t, ask)
	_, ask = l.priorityOf(priority, now.Add(2*lookupFor))
	require.True(t, ask, "the answer is old")

	asked := 1
	for n := range 2 * maxLookups {
		if _, ask := l.priorityOf(netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", n>>8, n&255)), now); ask {
			asked++
		}
	}
	require.Equal(t, lookupsAt, asked)
	for n := range 2 * maxLookups {
		a := netip.MustParseAddr(fmt.Sprintf("10.1.%d.%d", n>>8, n&255))
		if l.pending = 0; !asks(l.priorityOf(a, now)) {
			t.Fatal("not looked up")
		}
		l.lookUp(a)
	}
	require.LessOrEqual(t, len(l.lookups), maxLookups)
}

func asks(_ lookup, ask bool) bool { return ask }

// A slow look-up delays no connection, and its result applies to the connections that its
// source has by then.
func TestSlowLookupDelaysNoConnection(t *testing.T) {
	answer, done := make(chan bool), make(chan struct{})
	l := newLimiter(8, func(netip.Addr) bool { return <-answer })
	conns := make([]net.Conn, 0, 16)
	accept := func(source string) {
		c := &trackedConn{TCPConn: dialled(t, source)}
		conns = append(conns, c)
		l.changed(c, http.StateNew)
	}
	for range 8 {
		accept("127.0.0.2")
	}
	accept("127.0.0.3") // returns while its look-up waits
	require.Len(t, l.conns, 8)
	require.False(t, l.conns[conns[8]].preferred)
	accept("127.0.0.2")
	require.Contains(t, l.conns, conns[8], "it is not closed for others during the look-up")

	go func() { answer <- true; close(done) }()
	<-done
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.conns[conns[8]].preferred
	}, time.Minute, time.Millisecond)
}

// Cork sets TCP_CORK, and uncork clears it.
func TestCork(t *testing.T) {
	var corked []int
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		raw, err := tracked(r.Context().Value(connKey{}).(requestConn).conn).SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		note := func(fd uintptr) {
			on, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK)
			if err != nil {
				t.Error(err)
			}
			corked = append(corked, on)
		}
		uncork := Cork(r.Context())
		first := raw.Control(note)
		uncork()
		if err := errors.Join(first, raw.Control(note)); err != nil {
			t.Error(err)
		}
	}))
	s.Listener = Track(s.Listener)
	Limit(s.Config, 16, nil)
	s.Start()
	defer s.Close()
	res, err := s.Client().Get(s.URL)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, []int{1, 0}, corked)

	Cork(t.Context())() // a request without a connection, in tests
}

// A client that takes 4 s for each MiB reads, however large the piece is.
func TestWaitsForEachMiB(t *testing.T) {
	began := time.Now()
	for mib, stalls := range map[int64]bool{0: true, 1: true, 2: true, 3: false, 4: false} {
		conn := &trackedConn{}
		done := conn.begin(mib << 20)
		require.Equal(t, stalls, conn.waits(began.Add(12*time.Second)) > stalled, "%d MiB in 12 s", mib)
		done()
		require.Zero(t, conn.waits(began.Add(time.Hour)))
	}
}

// dialled returns the server's end of a connection from source.
func dialled(t *testing.T, source string) *net.TCPConn {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	client, err := d.DialContext(t.Context(), "tcp4", l.Addr().String())
	require.NoError(t, err)
	server, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return server.(*net.TCPConn)
}
