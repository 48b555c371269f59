// Package clock compares the wall clock, which people and NTP can set, with a counter that cannot be set. By the wall clock
// alone, a wait may seem to be over too early or too late.
package clock

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// every is the time between two readings of both clocks.
	every = time.Second
	// tolerance is how far the wall clock may deviate from the counter before the deviation counts as a step. NTP's slewing changes
	// the speed of both.
	tolerance = 3 * time.Second
	// slack is the maximum error when a time of the wall clock is converted to a time of the counter.
	slack = tolerance + 2*every
	// frozen is the pause between two readings above which this process counts as suspended. Normally it reads the clocks every second.
	frozen = 5 * time.Second
	// kept is how many steps are stored, and also how many pauses.
	kept = 64
)

// A Step is a sudden change of the wall clock from one time to another.
type Step struct{ From, To time.Time }

// By returns how far the clock was set; negative = backward.
func (s Step) By() time.Duration { return s.To.Sub(s.From) }

// era is a period in which the wall clock and the counter advanced at the same rate.
type era struct {
	since  time.Duration // start of the era, by the counter
	offset time.Time     // what the wall clock showed when the counter was 0, calculated from this era
}

// Clock records by how much the wall clock was set since this process began. Create one with New or Of.
type Clock struct {
	wall func() time.Time
	mono func() time.Duration

	mu     sync.Mutex
	begun  time.Duration // since when this process has listened without a pause
	looked time.Duration // when runs was last called
	since  time.Duration // start of the period for which pauses are stored
	pauses []pause       // the oldest first
	eras   []era         // at least one, the oldest first
}

// pause is a period in which this process was suspended, by the counter.
type pause struct{ from, to time.Duration }

// New returns a Clock that begins now.
func New() *Clock {
	begun := time.Now()
	return Of(func() time.Time { return time.Now().Round(0) }, func() time.Duration { return time.Since(begun) })
}

// Of returns a Clock of two sources: wall returns the wall clock's time without a monotonic reading, and mono the time since
// some fixed moment.
func Of(wall func() time.Time, mono func() time.Duration) *Clock {
	c := &Clock{wall: wall, mono: mono, begun: mono()}
	c.looked, c.since = c.begun, c.begun
	c.eras = []era{{since: c.begun, offset: wall().Add(-c.begun)}}
	return c
}

// Elapsed returns the counter: the time since some fixed moment.
func (c *Clock) Elapsed() time.Duration { return c.mono() }

// Up returns for how long this process has listened without a pause. The time begins with New, with Listening, or with
// the end of the last suspension.
func (c *Clock) Up() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.mono()
	c.runs(now)
	return now - c.begun
}

// Listening marks the moment at which this process starts to listen: Up counts from it, and earlier pauses are dropped.
func (c *Clock) Listening() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = c.mono()
	c.looked, c.since, c.pauses = c.begun, c.begun, nil
}

// Listened returns for how much of the last d this process has listened. It does not count pauses and the time before New or Listening.
func (c *Clock) Listened(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.mono()
	c.runs(now)
	from := max(now-d, c.since)
	listened := now - from
	for _, p := range c.pauses {
		listened -= max(0, p.to-max(p.from, from))
	}
	return listened
}

// runs records that this process is running at the time now. If the last call was longer ago than frozen, the
// process was suspended in between (stopped, frozen, out of memory) and received nothing. The caller holds mu.
func (c *Clock) runs(now time.Duration) {
	if now-c.looked > frozen {
		c.begun = now
		c.pauses = append(c.pauses, pause{c.looked, now})
		if len(c.pauses) > kept {
			c.since = c.pauses[0].to
			c.pauses = slices.Delete(c.pauses, 0, 1)
		}
	}
	c.looked = now
}

// Look reads both clocks, and returns the step of the wall clock since the last call. It returns false if there was no step.
func (c *Clock) Look() (Step, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, shown := c.mono(), c.wall()
	c.runs(now)
	e := c.eras[len(c.eras)-1]
	s := Step{From: e.offset.Add(now), To: shown}
	if s.By().Abs() <= tolerance {
		return Step{}, false
	}
	if len(c.eras) == kept {
		c.eras = append(c.eras[:0], c.eras[1:]...)
	}
	c.eras = append(c.eras, era{since: now, offset: shown.Add(-now)})
	return s, true
}

// Run calls Look every second until ctx ends, and calls stepped for each step. If Run is not running and the clocks are
// not read for longer than frozen, this time counts as a suspension.
func (c *Clock) Run(ctx context.Context, stepped func(context.Context, Step)) error {
	for Sleep(ctx, every) == nil {
		if s, ok := c.Look(); ok {
			stepped(ctx, s)
		}
	}
	return nil
}

// Left returns the rest of a wait of length d. The wait began when the wall clock showed began. Time that was skipped by
// setting the clock does not count as waited. If began is in the future, another clock has shown it, and Left returns 0.
func (c *Clock) Left(began time.Time, d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.mono()
	at := began.Sub(c.eras[0].offset) // if the wait began before this process, calculate as if the clock was never set
	for i := len(c.eras) - 1; i >= 0; i-- {
		e := c.eras[i]
		if t := began.Sub(e.offset); t >= e.since-slack && t <= now+slack {
			at = t
			break
		}
	}
	waited := now - at
	if waited < -slack || d-waited <= slack {
		return 0
	}
	return min(d-waited, d)
}

// Sleep waits for d and returns nil. If ctx ends first, it returns ctx's cause.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
