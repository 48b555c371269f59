// Package quietlog prevents network clients from filling the log: it writes only a limited number of records per
// message and minute, and then logs how many it left out.
package quietlog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	lines = 60          // records of one message
	every = time.Minute // per this period
	// maxMessages limits the number of messages that have a count of their own. Only libraries create messages at run
	// time. Beyond the limit, all messages of a level share one count.
	maxMessages = 256
)

// Handler returns a slog.Handler that passes to inner at most 60 records of the same level and message per minute. The
// first record of a later minute has the attribute "left_out": how many records were not written. Records below
// slog.LevelInfo are not limited, because a debug log should show every packet. now = nil means time.Now.
func Handler(inner slog.Handler, now func() time.Time) slog.Handler {
	if now == nil {
		now = time.Now
	}
	return handler{inner, &counts{now: now, of: map[key]*count{}}}
}

type handler struct {
	slog.Handler
	counts *counts // shared by the handlers that WithAttrs and WithGroup return
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

// admit reports whether a record may be written. If the record is the first one of a new period, left is how many
// records were left out in the previous period.
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
	// Also begin a new period if the clock was set back.
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
