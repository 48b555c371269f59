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

// A socket that cannot be served is an error that names it.
func TestRunRefused(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	err = httpserve.Run(t.Context(), "a test", &http.Server{ReadHeaderTimeout: time.Minute}, l, time.Second)
	require.ErrorContains(t, err, "serving a test on "+l.Addr().String())
}
