package clock

import (
	"context"
	mathrand "math/rand/v2"
	"time"
)

// Backoff is a pause between attempts that grows up to Max.
type Backoff struct{ next, Max time.Duration }

// Pause waits 100 ms at first and then twice as long each time, up to b.Max; see step. It returns ctx's cause if ctx ends.
func (b *Backoff) Pause(ctx context.Context) error { return Sleep(ctx, b.step()) }

// step returns the next pause: a random time between half and all of the current length. Without the random part, all agents
// would send at once when a server comes back.
func (b *Backoff) step() time.Duration {
	if b.next == 0 {
		b.next = 100 * time.Millisecond
	}
	d := min(b.next, b.Max)
	b.next = min(2*b.next, b.Max)
	return d/2 + mathrand.N(d/2+1)
}
