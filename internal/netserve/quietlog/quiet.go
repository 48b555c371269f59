// Package quietlog keeps what strangers can cause from filling the log: of each
// message a bounded number of lines is written per span of time, and then how
// many were left out.
package quietlog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	lines = 60          // of one message
	every = time.Minute // per this span
	// maxMessages bounds what is remembered: messages are static but for those
	// of libraries.
	maxMessages = 256
)

// Handler returns a slog.Handler that passes on to inner at most 60 records of
// the same level and message per minute; the first record after that says in
// "left_out" how many were not written. Records below slog.LevelInfo are whole:
// with that level every packet is wanted. now nil is time.Now.
func Handler(inner slog.Handler, now func() time.Time) slog.Handler {
	if now == nil {
		now = time.Now
	}
	return handler{inner, &counts{now: now, of: map[key]*count{}}}
}

type handler struct {
	slog.Handler
	counts *counts // shared by all that WithAttrs and WithGroup make
}

type key struct {
	level   slog.Level
	message string
}

type count struct {
	since         time.Time
	written, left int64
}

type counts struct {
	now func() time.Time
	mu  sync.Mutex
	of  map[key]*count
}

// admit reports whether a record may be written, and how many were left out since
// the last one that was.
func (c *counts) admit(k key) (ok bool, left int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	n := c.of[k]
	if n == nil && len(c.of) >= maxMessages {
		k = key{level: k.level}
		n = c.of[k]
	}
	if n == nil {
		n = &count{since: now}
		c.of[k] = n
	}
	// A clock that was set back begins a new span, too.
	if d := now.Sub(n.since); d >= every || d < 0 {
		left = n.left
		*n = count{since: now}
	}
	if n.written >= lines {
		n.left++
		return false, 0
	}
	n.written++
	return true, left
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		ok, left := h.counts.admit(key{r.Level, r.Message})
		if !ok {
			return nil
		}
		if left > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int64("left_out", left))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.counts}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.counts}
}
