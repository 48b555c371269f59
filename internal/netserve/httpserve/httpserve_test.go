package httpserve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
)

// A request that is under way when the context ends is answered; one that exceeds the grace
// is aborted, and Run still returns no error.
func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		grace    time.Duration
		answered bool
	}{"ends in time": {time.Minute, true}, "is cut off": {time.Millisecond, false}} {
		t.Run(name, func(t *testing.T) {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			begun, end := make(chan struct{}), make(chan struct{})
			srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(begun)
				select {
				case <-end:
				case <-r.Context().Done(): // only a connection that was cut off ends it
					return
				}
				_, _ = io.WriteString(w, "whole")
			})}
			ran := make(chan error, 1)
			go func() { ran <- httpserve.Run(ctx, "a test", srv, l, c.grace) }()
			answer := make(chan string, 1)
			go func() {
				res, err := http.Get("http://" + l.Addr().String())
				if err != nil {
					answer <- ""
					return
				}
				defer res.Body.Close()
				b, err := io.ReadAll(res.Body)
				if err != nil {
					b = nil
				}
				answer <- string(b)
			}()
			<-begun
			cancel()
			if c.answered {
				close(end)
				require.Equal(t, "whole", <-answer)
			} else {
				require.Empty(t, <-answer)
			}
			require.NoError(t, <-ran)
		})
	}
}

// A limited server, and what a test knows of it.
type limited struct {
	t    *testing.T
	addr string
	held chan struct{} // one element per request of /hold
	idle chan string   // addresses of clients whose connections have become idle, or are closed
}

func limit(t *testing.T, total int, first func(netip.Addr) bool) limited {
	t.Helper()
	held, end, idle := make(chan struct{}, 100), make(chan struct{}), make(chan string, 100)
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/proven":
			httpserve.Prefer(r.Context())
		case "/hold":
			held <- struct{}{}
			<-end
		}
	})}
	httpserve.Limit(srv, total, first)
	changed := srv.ConnState
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		if changed(c, state); state == http.StateIdle || state == http.StateClosed {
			idle <- c.RemoteAddr().String()
		}
	}
	return limited{t, serve(t, srv, func() { close(end) }), held, idle}
}

// serve runs srv until the test has ended, and returns its address. It calls end before it stops srv.
func serve(t *testing.T, srv *http.Server, end func()) (addr string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- httpserve.Run(ctx, "a test", srv, httpserve.Track(l), time.Second) }()
	t.Cleanup(func() {
		end()
		cancel()
		require.NoError(t, <-ran)
	})
	return l.Addr().String()
}

func (l limited) tryDial(from string) (net.Conn, error) {
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(l.t.Context(), "tcp", l.addr)
	if err == nil {
		l.t.Cleanup(func() { _ = c.Close() }) // ended by the server otherwise
	}
	return c, err
}

func (l limited) dial(from string) net.Conn {
	l.t.Helper()
	c, err := l.tryDial(from)
	require.NoError(l.t, err)
	return c
}

// refused reports whether the server closes a new connection. The reset can come
// before the dial has returned.
func (l limited) refused(from string) bool {
	l.t.Helper()
	c, err := l.tryDial(from)
	if errors.Is(err, syscall.ECONNRESET) {
		return true
	}
	require.NoError(l.t, err)
	return l.gone(c)
}

// served reports whether the server answers on the connection, or has closed it.
func (l limited) served(c net.Conn, path string) bool {
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return false
	}
	b := make([]byte, 256)
	n, err := io.ReadAtLeast(c, b, 12)
	if err != nil || !strings.HasPrefix(string(b[:n]), "HTTP/1.1 200") {
		return false
	}
	for address := range l.idle { // the server knows that the request has ended
		if address == c.LocalAddr().String() {
			break
		}
	}
	return true
}

// gone reports whether the server has closed the connection, on which it sends nothing.
func (l limited) gone(c net.Conn) bool {
	require.NoError(l.t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err := c.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// One source may use all free connections. When another source connects, the first source
// loses connections, idle ones before those that are served (security S35).
func TestLimitSharesBySource(t *testing.T) {
	l := limit(t, 3, nil)
	busy, idle, silent := l.dial("127.0.0.1"), l.dial("127.0.0.1"), l.dial("127.0.0.1")
	_, err := io.WriteString(busy, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-l.held
	require.True(t, l.served(idle, "/"), "three of one source")
	require.True(t, l.served(l.dial("127.0.0.2"), "/"), "another source")
	require.True(t, l.served(l.dial("127.0.0.3"), "/"))
	require.True(t, l.gone(idle))
	require.True(t, l.gone(silent), "the one that never asked")
	require.True(t, l.refused("127.0.0.1"), "a source with its share takes nothing from others")
}

// A source with precedence and a proven connection are not closed for others (security S35).
func TestLimitPrefers(t *testing.T) {
	l := limit(t, 2, func(source netip.Addr) bool { return source == netip.MustParseAddr("127.0.0.9") })
	proven := l.dial("127.0.0.1")
	require.True(t, l.served(proven, "/proven"))
	stranger := l.dial("127.0.0.1")
	require.True(t, l.served(stranger, "/"))
	first := l.dial("127.0.0.9")
	require.True(t, l.served(first, "/"))
	require.True(t, l.gone(stranger))
	require.Eventually(t, func() bool { // its source is being looked up
		if l.refused("127.0.0.2") && l.served(first, "/") {
			return true
		}
		first = l.dial("127.0.0.9")
		return false
	}, time.Minute, time.Millisecond)
	for range 3 {
		require.True(t, l.refused("127.0.0.2"))
	}
	require.True(t, l.served(proven, "/"))
	require.True(t, l.served(first, "/"))
}

// One source cannot block the listener, whatever its connections have proven (security S35).
func TestLimitSharesWhatIsPreferred(t *testing.T) {
	l := limit(t, 4, nil)
	for range 4 {
		require.True(t, l.served(l.dial("127.0.0.1"), "/proven"))
	}
	for n := range 3 {
		require.True(t, l.served(l.dial(fmt.Sprintf("127.0.0.%d", 2+n)), "/proven"), "another source that has proven nothing yet")
	}
	require.True(t, l.refused("127.0.0.9"), "all have their share, and have proven something")
}

// A socket that cannot be served is an error that names it.
func TestRunRefused(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	err = httpserve.Run(t.Context(), "a test", &http.Server{ReadHeaderTimeout: time.Minute}, l, time.Second)
	require.ErrorContains(t, err, "serving a test on "+l.Addr().String())
}
