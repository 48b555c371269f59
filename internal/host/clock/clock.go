// Package clock compares the wall clock, which people and NTP set, with a counter
// that cannot be set. A wait that has ended by the wall clock may not have ended.
package clock

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// every is the pause between two looks at both clocks.
	every = time.Second
	// tolerance is how far the wall clock may move against the counter before
	// it counts as a step. What is slewed by NTP moves both.
	tolerance = 3 * time.Second
	// slack bounds the error when a time of the wall clock is found on the counter.
	slack = tolerance + 2*every
	// frozen is the pause between two looks from which on this process counts as
	// having stood still: it looks every second.
	frozen = 5 * time.Second
	// kept is how many steps, and how many pauses, are remembered.
	kept = 64
)

// A Step is a change of the wall clock: it showed From and then To.
type Step struct{ From, To time.Time }

// By is how far the clock went, negative when backward.
func (s Step) By() time.Duration { return s.To.Sub(s.From) }

// era is a time in which wall and counter went alike.
type era struct {
	since  time.Duration // by the counter
	offset time.Time     // what the wall would have shown when the counter was 0
}

// Clock knows by how much the wall clock has been set while this process
// lived. Make one with New.
type Clock struct {
	wall func() time.Time
	mono func() time.Duration

	mu     sync.Mutex
	begun  time.Duration // since when this process has listened without a break
	looked time.Duration // the last time that it was seen to run
	since  time.Duration // since when pauses are known
	pauses []pause       // in which it stood still, the oldest first
	eras   []era         // at least one, the oldest first
}

// pause is a time in which this process stood still, by the counter.
type pause struct{ from, to time.Duration }

// New returns the clock of this process, which begins now.
func New() *Clock {
	begun := time.Now()
	return Of(func() time.Time { return time.Now().Round(0) }, func() time.Duration { return time.Since(begun) })
}

// Of returns a clock of two sources: what the wall shows, without a monotonic
// reading, and the time since some fixed moment.
func Of(wall func() time.Time, mono func() time.Duration) *Clock {
	c := &Clock{wall: wall, mono: mono, begun: mono()}
	c.looked, c.since = c.begun, c.begun
	c.eras = []era{{since: c.begun, offset: wall().Add(-c.begun)}}
	return c
}

// Elapsed returns the time since some fixed moment by the counter.
func (c *Clock) Elapsed() time.Duration { return c.mono() }

// Up returns for how long this process has listened without a break: since
// New, Listening, or the last time that it stood still.
func (c *Clock) Up() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.mono()
	c.runs(now)
	return now - c.begun
}

// Listening makes Up count from now: what came before was not listening.
func (c *Clock) Listening() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = c.mono()
	c.looked, c.since, c.pauses = c.begun, c.begun, nil
}

// Listened returns for how long this process has listened in the last d: without the time before New or
// Listening, and without the pauses in which it stood still.
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

// runs notes that this process runs now. After a pause that is too long, it stood
// still (stopped, frozen, out of memory), and received nothing in that time.
// The caller holds mu.
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

// Look compares the two clocks and returns the step since the last look, if
// there was one.
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

// Run looks every second until ctx is done, and calls stepped for each step. While it
// does not run, every pause between two looks counts as standing still.
func (c *Clock) Run(ctx context.Context, stepped func(context.Context, Step)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if s, ok := c.Look(); ok {
				stepped(ctx, s)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// Left returns what remains of a wait of length d that began when the wall
// clock showed began: what was skipped by setting the clock has not been
// waited. Nothing remains of a wait that began in the future: the time is from
// another clock.
func (c *Clock) Left(began time.Time, d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.mono()
	at := began.Sub(c.eras[0].offset) // before this process: as if nothing was set
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

// Sleep waits for d. If ctx ends first, it returns ctx's cause.
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
