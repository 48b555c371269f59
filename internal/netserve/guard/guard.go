// Package guard keeps the process running when network input causes a panic.
package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
)

// A Guard recovers from panics, counts and logs them. Every goroutine that handles network input must defer Recover,
// or serve through Handler.
type Guard struct {
	log    *slog.Logger
	panics atomic.Int64
}

// New returns a Guard that logs to log. The rate of log must be limited (internal/netserve/quietlog), because a client
// that can cause one panic can cause many.
func New(log *slog.Logger) *Guard { return &Guard{log: log} }

// Recover recovers from a panic of the goroutine that defers it, and logs the panic with the name of the input (what).
func (g *Guard) Recover(what string) {
	if v := recover(); v != nil {
		g.Caught(what, v)
	}
}

// Caught counts and logs a panic from which the caller has recovered.
func (g *Guard) Caught(what string, v any) {
	g.panics.Add(1)
	g.log.Error("handling network input panicked", "input", what, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
}

// Panics returns the number of panics so far.
func (g *Guard) Panics() int64 { return g.panics.Load() }

// Handler returns a handler that serves with h. If h panics, the handler closes the connection without an answer.
func (g *Guard) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				g.Caught("a request", v)
			}
			panic(http.ErrAbortHandler) // net/http closes the connection and logs nothing
		}()
		h.ServeHTTP(w, r)
	})
}
