package clock

import (
	"context"
	mathrand "math/rand/v2"
	"time"
)

// Backoff is a growing pause between tries.
type Backoff struct{ next, Max time.Duration }

// Pause waits 100 ms, then twice as long each time, up to max.
func (b *Backoff) Pause(ctx context.Context) error { return Sleep(ctx, b.step()) }

// step returns how long to wait now: a random time between half of the pause and all of it.
// Otherwise all agents would call at once when a server comes back.
func (b *Backoff) step() time.Duration {
	if b.next == 0 {
		b.next = 100 * time.Millisecond
	}
	d := min(b.next, b.Max)
	b.next = min(2*b.next, b.Max)
	return d/2 + mathrand.N(d/2+1)
}
