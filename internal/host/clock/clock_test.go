package clock

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// hands are a wall clock that can be set and a counter that cannot.
type hands struct {
	at   time.Time
	mono time.Duration
}

func (h *hands) pass(d time.Duration) { h.at, h.mono = h.at.Add(d), h.mono+d }
func (h *hands) set(d time.Duration)  { h.at = h.at.Add(d) }

func made(t *testing.T) (*hands, *Clock) {
	t.Helper()
	h := &hands{at: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), mono: 5 * time.Hour}
	return h, Of(func() time.Time { return h.at }, func() time.Duration { return h.mono })
}

// look lets time pass as it does for a process that runs.
func (h *hands) look(c *Clock, d time.Duration) {
	for range d / time.Second {
		h.pass(time.Second)
		c.Look()
	}
}

func TestUpCountsOnlyListening(t *testing.T) {
	h, c := made(t)
	h.look(c, time.Minute)
	require.Equal(t, time.Minute, c.Up())
	h.pass(frozen)
	require.Equal(t, time.Minute+frozen, c.Up(), "a busy moment")

	c.Listening()
	require.Zero(t, c.Up(), "the database was opened, and the server did not listen")
	h.look(c, time.Minute)
	require.Equal(t, time.Minute, c.Up())

	h.pass(10 * time.Minute)
	require.Zero(t, c.Up(), "asked at once after a thaw, before the next look")
	h.look(c, 20*time.Second)
	require.Equal(t, 20*time.Second, c.Up())

	began := h.at
	h.pass(10 * time.Minute)
	_, stepped := c.Look()
	require.False(t, stepped, "the clock was not set")
	h.look(c, 3*time.Second)
	require.Equal(t, 3*time.Second, c.Up(), "from the look that noticed")
	require.Zero(t, c.Left(began, 10*time.Minute), "what does not need this server has passed")
	require.Equal(t, h.mono, c.Elapsed())
}

// A pause takes its own length from what was listened to, and no more.
func TestListenedLeavesPausesOut(t *testing.T) {
	h, c := made(t)
	h.look(c, time.Minute)
	require.Equal(t, time.Minute, c.Listened(time.Hour), "before New, nothing was listened to")
	h.pass(10 * time.Second)
	require.Equal(t, time.Minute, c.Listened(time.Hour))
	h.look(c, time.Minute)
	require.Equal(t, 2*time.Minute, c.Listened(time.Hour))
	require.Equal(t, time.Minute, c.Listened(time.Minute))
	require.Equal(t, time.Minute, c.Listened(65*time.Second), "a pause that began before")
	require.Equal(t, 65*time.Second, c.Listened(75*time.Second))

	for range kept {
		h.pass(10 * time.Second)
		c.Look()
	}
	require.Equal(t, time.Minute, c.Listened(time.Hour), "the oldest pause is forgotten with what was before it")
	c.Listening()
	h.look(c, time.Second)
	require.Equal(t, time.Second, c.Listened(time.Hour))
}

func TestStepsAreSeenOnceAndSlewingIsNone(t *testing.T) {
	h, c := made(t)
	h.pass(time.Hour)
	h.set(2 * time.Second)
	_, ok := c.Look()
	require.False(t, ok)
	h.set(24 * time.Hour)
	s, ok := c.Look()
	require.True(t, ok)
	require.Equal(t, 24*time.Hour+2*time.Second, s.By(), "small ones add up")
	require.Equal(t, h.at, s.To)
	_, ok = c.Look()
	require.False(t, ok)
}

func TestLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(h *hands, c *Clock)
		left time.Duration
	}{
		"waited":                    {func(h *hands, _ *Clock) { h.pass(12 * time.Minute) }, 0},
		"a day forward in mid-wait": {func(h *hands, c *Clock) { h.pass(2 * time.Minute); h.set(24 * time.Hour); c.Look() }, 10 * time.Minute},
		"and waited on after that": {func(h *hands, c *Clock) {
			h.pass(2 * time.Minute)
			h.set(24 * time.Hour)
			c.Look()
			h.pass(4 * time.Minute)
		}, 6 * time.Minute},
		"a step that was not seen": {func(h *hands, _ *Clock) { h.pass(2 * time.Minute); h.set(24 * time.Hour) }, 10 * time.Minute},
		"five minutes forward twice": {func(h *hands, c *Clock) {
			for range 2 {
				h.pass(time.Minute)
				h.set(5 * time.Minute)
				c.Look()
			}
		}, 10 * time.Minute},
		"an hour backward": {func(h *hands, c *Clock) {
			h.pass(2 * time.Minute)
			h.set(-time.Hour)
			c.Look()
			h.pass(10 * time.Minute)
		}, 0},
		"forward and back": {func(h *hands, c *Clock) {
			h.set(24 * time.Hour)
			c.Look()
			h.pass(time.Minute)
			h.set(-24 * time.Hour)
			c.Look()
		}, 11 * time.Minute},
		"a step before it":  {nil, 0},
		"almost waited out": {func(h *hands, _ *Clock) { h.pass(12*time.Minute - time.Second) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h, c := made(t)
			began := h.at
			if tc.do == nil {
				h.set(24 * time.Hour)
				c.Look()
				h.pass(time.Hour)
				began = h.at
				h.pass(12 * time.Minute)
			} else {
				tc.do(h, c)
			}
			require.Equal(t, tc.left, c.Left(began, 12*time.Minute))
		})
	}
	h, c := made(t)
	require.Zero(t, c.Left(h.at.Add(time.Hour), 12*time.Minute), "a wait that begins in the future is of another clock")
	h.pass(time.Minute)
	require.Zero(t, c.Left(h.at.Add(-time.Hour), 12*time.Minute), "before this process began")
}

func TestRunTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set atomic.Int64
		begun := time.Now()
		c := Of(func() time.Time { return time.Now().Add(time.Duration(set.Load())) }, func() time.Duration { return time.Since(begun) })
		ctx, cancel := context.WithCancel(t.Context())
		steps := make(chan Step, 1)
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx, func(_ context.Context, s Step) { steps <- s }) }()
		synctest.Wait()
		set.Store(int64(-time.Hour))
		require.Equal(t, -time.Hour, (<-steps).By())
		cancel()
		require.NoError(t, <-done)
	})
}
