package httpserve

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Of one source, a connection that does not read is closed for a new one, and a
// new one is not for the next (security S35).
func TestPriority(t *testing.T) {
	now := time.Now()
	conn := func(state http.ConnState, in, writes time.Duration) *member {
		c := &trackedConn{}
		if writes > 0 {
			c.writing.Store(now.Add(-writes).UnixNano())
		}
		return &member{conn: c, state: state, since: now.Add(-in)}
	}
	order := []*member{ // in which they are closed
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

// The look-up of a source delays all connections: it is made only when the server
// is full, once a second for each source, and not for a source that has its share
// (security S35).
func TestLookupsAreBounded(t *testing.T) {
	priority := netip.MustParseAddr("192.0.2.1")
	asked := 0
	l := newLimiter(16, func(source netip.Addr) bool { asked++; return source == priority })
	now := time.Now()
	require.False(t, l.sourceIsPriority(priority, now), "there is room")
	require.Zero(t, asked)

	busy := netip.MustParseAddr("192.0.2.2")
	for range 16 {
		m := &member{conn: &trackedConn{}, group: group{source: busy}}
		l.conns[m.conn] = m
		l.count(m, 1)
	}
	require.False(t, l.sourceIsPriority(busy, now))
	require.Zero(t, asked, "a source with more than its share")
	for range 9 {
		require.True(t, l.sourceIsPriority(priority, now))
	}
	require.Equal(t, 1, asked)
	require.True(t, l.sourceIsPriority(priority, now.Add(2*lookupFor)))
	require.Equal(t, 2, asked)
	for n := range 2 * maxLookups {
		l.sourceIsPriority(netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", n>>8, n&255)), now)
	}
	require.LessOrEqual(t, len(l.lookups), maxLookups)
}
