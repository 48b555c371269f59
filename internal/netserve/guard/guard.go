// Package guard keeps a panic that network input caused from ending the process.
package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
)

// A Guard ends, counts and logs panics. Every goroutine that reads what came
// over the network defers Recover, or serves through Handler.
type Guard struct {
	log    *slog.Logger
	panics atomic.Int64
}

// New returns a Guard that writes to log, which must be bounded (internal/netserve/quietlog):
// a client that can cause one panic can cause many.
func New(log *slog.Logger) *Guard { return &Guard{log: log} }

// Recover ends a panic of the goroutine that defers it. what names the input.
func (g *Guard) Recover(what string) {
	if v := recover(); v != nil {
		g.Caught(what, v)
	}
}

// Caught counts and logs a panic that its caller has recovered from.
func (g *Guard) Caught(what string, v any) {
	g.panics.Add(1)
	g.log.Error("handling network input panicked", "input", what, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
}

// Panics returns how many panics were ended.
func (g *Guard) Panics() int64 { return g.panics.Load() }

// Handler serves with h. The connection of a request that panics is closed
// without an answer.
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
