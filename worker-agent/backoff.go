package agent

import (
	"context"
	mathrand "math/rand/v2"
	"time"

	"github.com/ingotmetal/ingot/internal/clock"
)

// backoff is a growing pause between tries.
type backoff struct{ next, max time.Duration }

// pause waits 100 ms, then twice as long each time, up to max.
func (b *backoff) pause(ctx context.Context) error { return clock.Sleep(ctx, b.step()) }

// step returns how long to wait now: a random time between half of the pause and all of it.
// Otherwise all agents would call at once when a server comes back.
func (b *backoff) step() time.Duration {
	if b.next == 0 {
		b.next = 100 * time.Millisecond
	}
	d := min(b.next, b.max)
	b.next = min(2*b.next, b.max)
	return d/2 + mathrand.N(d/2+1)
}
