// Package httpserve runs an HTTP server until a context ends, limits its connections, and
// explains why an address cannot be bound.
package httpserve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Run serves l with srv until ctx ends, and then closes l. Running requests may continue for the time grace, with their
// contexts; then they are aborted, which is not an error. If serving fails, the error names the server (what).
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
		_ = srv.Close() // closes connections that did not finish in time
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s on %s: %w", what, l.Addr(), err)
	}
	return nil
}
