package httpserve_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/httpserve"
)

// A request that is under way when the context ends is answered; one that
// outlasts the grace is cut off, and Run ends without an error all the same.
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

// One source has its share of the connections and no more; when one of them
// ends, the next has its place.
func TestLimit(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	httpserve.Limit(srv, 3, 2)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- httpserve.Run(ctx, "a test", srv, l, time.Second) }()
	dial := func(from string) net.Conn {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() }) // ended by the server otherwise
		return c
	}
	// served tells whether the server answers on the connection, or has closed it.
	served := func(c net.Conn) bool {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return false
		}
		b := make([]byte, 12)
		_, err := io.ReadFull(c, b)
		return err == nil && string(b) == "HTTP/1.1 200"
	}
	first, second := dial("127.0.0.1"), dial("127.0.0.1")
	require.True(t, served(first))
	require.True(t, served(second))
	require.False(t, served(dial("127.0.0.1")), "a third one of the same source")
	require.True(t, served(dial("127.0.0.2")), "another source")
	require.False(t, served(dial("127.0.0.3")), "a fourth one of all")
	require.NoError(t, first.Close())
	require.Eventually(t, func() bool { return served(dial("127.0.0.1")) }, time.Minute, time.Millisecond, "the place of one that ended")
	cancel()
	require.NoError(t, <-ran)
}

// A socket that cannot be served is an error that names it.
func TestRunRefused(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	err = httpserve.Run(t.Context(), "a test", &http.Server{ReadHeaderTimeout: time.Minute}, l, time.Second)
	require.ErrorContains(t, err, "serving a test on "+l.Addr().String())
}
