package sqlite

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestWindowsMoveWithTheClock: windows keep their duration when the clock is set.
func TestWindowsMoveWithTheClock(t *testing.T) {
	const left = 17 * time.Minute
	for name, step := range map[string]time.Duration{
		"a day forward": 24 * time.Hour, "an hour forward": time.Hour,
		"an hour backward": -time.Hour, "a day backward": -24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			s := newWorld(t)
			o := s.take("run-1")
			ctx := t.Context()
			from := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			_, err := s.Grants.AllowBoot(ctx, o, 1, from.Add(left))
			require.NoError(t, err)
			require.NoError(t, s.Grants.OpenSecrets(ctx, o, from.Add(left)))
			to := from.Add(step)
			n, err := s.Grants.ShiftWindows(ctx, from, to)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			g, err := s.Grants.Grant(ctx, o.Machine)
			require.NoError(t, err)
			require.Equal(t, left, g.NetbootUntil.Sub(to), "the window neither closes early nor stays open longer")
			require.Equal(t, left, g.SecretsUntil.Sub(to))
		})
	}
	for name, step := range map[string]time.Duration{"forward": 24 * time.Hour, "backward": -24 * time.Hour} {
		t.Run("what is closed stays closed/"+name, func(t *testing.T) {
			s := newWorld(t)
			o := s.take("run-1")
			from := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			_, err := s.Grants.AllowBoot(t.Context(), o, 1, from.Add(-time.Minute))
			require.NoError(t, err)
			to := from.Add(step)
			_, err = s.Grants.ShiftWindows(t.Context(), from, to)
			require.NoError(t, err)
			g, err := s.Grants.Grant(t.Context(), o.Machine)
			require.NoError(t, err)
			require.False(t, g.NetbootOpen(to))
			require.Zero(t, g.SecretsUntil)
		})
	}
	t.Run("what was opened with the new time stays", func(t *testing.T) {
		s := newWorld(t)
		o := s.take("run-1")
		from := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		to := from.Add(24 * time.Hour)
		_, err := s.Grants.AllowBoot(t.Context(), o, 1, to.Add(left))
		require.NoError(t, err)
		_, err = s.Grants.ShiftWindows(t.Context(), from, to)
		require.NoError(t, err)
		g, err := s.Grants.Grant(t.Context(), o.Machine)
		require.NoError(t, err)
		require.Equal(t, left, g.NetbootUntil.Sub(to))
	})
}

// TestEachPhaseAppendsAnEvent: the event is written once, in the same transaction, with the
// duration of the previous phase in seconds.
func TestEachPhaseAppendsAnEvent(t *testing.T) {
	s := newWorld(t)
	o := s.take("run-1")
	ctx := t.Context()
	begun := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w := inventory.Workflow{Run: o.Run, Machine: o.Machine, Epoch: o.Epoch, State: inventory.StatePending, Started: begun}
	for i, p := range []struct {
		phase string
		after time.Duration
	}{
		{inventory.PhaseDHCP, 0},
		{inventory.PhaseDHCP, time.Minute},
		{inventory.PhaseLoader, 90 * time.Second},
		{inventory.PhaseAgent, 2 * time.Minute},
		{inventory.PhaseDHCP, 3 * time.Minute},
	} {
		w.Phase, w.Seq, w.Updated, w.Message = p.phase, int64(i+1), begun.Add(p.after), "waiting"
		for range 2 { // the activity ran twice
			require.NoError(t, s.Workflows.PutWorkflow(ctx, w))
		}
	}
	late := w
	late.Phase, late.Seq = inventory.PhasePower, 2
	require.NoError(t, s.Workflows.PutWorkflow(ctx, late), "a late record is not an event")
	es, err := s.Events.Events(ctx, inventory.EventFilter{Run: o.Run})
	require.NoError(t, err)
	var got []inventory.PhaseChange
	for _, e := range es {
		if e.Kind != inventory.EventPhase {
			continue
		}
		var c inventory.PhaseChange
		require.NoError(t, json.Unmarshal(e.Detail, &c))
		require.Equal(t, c.Phase+": waiting", e.Message)
		got = append(got, c)
	}
	require.Equal(t, []inventory.PhaseChange{
		{Phase: "dhcp", Began: begun},
		{Phase: "loader", Began: begun.Add(90 * time.Second), Before: "dhcp", Seconds: 90},
		{Phase: "agent", Began: begun.Add(2 * time.Minute), Before: "loader", Seconds: 30},
		{Phase: "dhcp", Began: begun.Add(3 * time.Minute), Before: "agent", Seconds: 60},
	}, got)
	left, err := s.Events.Unsignalled(ctx, 0, 10)
	require.NoError(t, err)
	require.Empty(t, left, "a run gets no signal about its own phases")
}
