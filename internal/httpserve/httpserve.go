// Package httpserve runs an HTTP server for as long as a context lives.
package httpserve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limit makes srv close new connections beyond total, and those of one source
// address beyond each, so that one host does not take the place of all others.
// Whoever is closed may try again. The listener stays as it is: one that
// counted would lose sendfile. It replaces srv.ConnState.
func Limit(srv *http.Server, total, each int) {
	var mu sync.Mutex
	all, from := 0, map[string]int{}
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		source, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			source = c.RemoteAddr().String()
		}
		mu.Lock()
		defer mu.Unlock()
		switch state {
		case http.StateNew:
			all++
			from[source]++
			if all > total || from[source] > each {
				_ = c.Close() // StateClosed follows, and counts down
			}
		case http.StateClosed, http.StateHijacked:
			all--
			if from[source]--; from[source] == 0 {
				delete(from, source)
			}
		}
	}
}

// Run serves l with srv until ctx ends, and closes it. Requests that are under
// way then keep their context and get grace to end; after that they are cut
// off, which is no error. An error is one of serving, and names what.
func Run(ctx context.Context, what string, srv *http.Server, l net.Listener, grace time.Duration) error {
	if srv.BaseContext == nil {
		srv.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serving %s on %s: %w", what, l.Addr(), err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if srv.Shutdown(last) != nil {
		_ = srv.Close() // connections that did not end in time
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s on %s: %w", what, l.Addr(), err)
	}
	return nil
}
