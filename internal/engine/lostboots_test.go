package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

// TestBootsLostByARestart: a boot that was under way when the server was started, and whose machine is silent since
// then, is reported once. No other is.
func TestBootsLostByARestart(t *testing.T) {
	const before, after = -time.Minute, time.Second // when the last request came, from the server's start
	for name, c := range map[string]struct {
		kinds []string // of the boot's requests, oldest first
		last  time.Duration
		asked bool // since the start
		spent bool
		up    time.Duration
		want  int
	}{
		"in its firmware":           {kinds: []string{inventory.EventDHCP}, last: before, want: 1},
		"in its loader":             {kinds: []string{inventory.EventDHCP, inventory.EventLoader}, last: before, want: 1},
		"in its script":             {kinds: []string{inventory.EventDHCP, inventory.EventLoader, inventory.EventScript}, last: before, want: 1},
		"in its kernel":             {kinds: []string{inventory.EventScript, inventory.EventKernel}, last: before, want: 1},
		"booted again":              {kinds: []string{inventory.EventInitrd, inventory.EventDHCP}, last: before, want: 1},
		"its initramfs was loaded":  {kinds: []string{inventory.EventScript, inventory.EventKernel, inventory.EventInitrd}, last: before},
		"its system has an address": {kinds: []string{inventory.EventDHCP, inventory.EventOS}, last: before},
		"in its self-test":          {},
		"asks again":                {kinds: []string{inventory.EventDHCP}, last: after},
		"loads a file":              {kinds: []string{inventory.EventDHCP}, last: before, asked: true},
		"its agent has said hello":  {kinds: []string{inventory.EventDHCP}, last: before, spent: true},
		"not listened long enough":  {kinds: []string{inventory.EventDHCP}, last: before, up: bootSilence - time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			up := time.Duration(0)
			s := newSite(t, func(x *Config) {
				x.Up = func() time.Duration { return up }
				x.IsBooting = func(context.Context, string, time.Time) (bool, error) { return c.asked, nil }
			})
			s.AddMachine("m1", fakesite.MAC)
			o := s.Arm("m1", "r1")
			started := s.Clock.Now().Add(2 * time.Minute)
			for n, kind := range c.kinds {
				require.NoError(t, s.Store.Events.AppendEvents(t.Context(), []inventory.Event{{
					Machine: "m1", Run: "r1", Epoch: o.Epoch, Boot: 1, Kind: kind, Count: 1,
					At: started.Add(c.last - time.Duration(len(c.kinds)-1-n)*time.Second),
				}}))
			}
			if c.spent {
				s.welcome(o)
			}
			up = bootSilence
			if c.up > 0 {
				up = c.up
			}
			s.Clock.Move(2*time.Minute + up)
			lost := func() int { return s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventBootLost] }
			for range 2 {
				require.NoError(t, s.Reconciler.CheckBoots(t.Context()))
				require.Equal(t, c.want, lost())
			}
			up += time.Minute
			s.Clock.Move(time.Minute)
			require.NoError(t, s.Reconciler.CheckBoots(t.Context()))
			if c.up == 0 {
				require.Equal(t, c.want, lost(), "it is judged once")
			}
		})
	}
}

// TestBootIsReportedOnce: while the boots of other machines cannot be judged, all are judged again. A boot that was reported
// is not reported again.
func TestBootIsReportedOnce(t *testing.T) {
	up, broken := time.Duration(0), true
	s := newSite(t, func(x *Config) {
		x.Up = func() time.Duration { return up }
		x.IsBooting = func(_ context.Context, machine string, _ time.Time) (bool, error) {
			if machine == "m2" && broken {
				return false, errors.New("the database is locked")
			}
			return false, nil
		}
	})
	for machine, mac := range map[string]string{"m1": fakesite.MAC, "m2": "02:00:00:00:00:02"} {
		s.AddMachine(machine, mac)
		o := s.Arm(machine, "run-"+machine)
		require.NoError(t, s.Store.Events.AppendEvents(t.Context(), []inventory.Event{{
			Machine: machine, Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: inventory.EventDHCP, Count: 1, At: s.Clock.Now(),
		}}))
	}
	lost := func(run string) int { return s.Events(inventory.EventFilter{Run: run})[inventory.EventBootLost] }
	s.Clock.Move(time.Minute + bootSilence)
	up = bootSilence
	for range 2 {
		require.ErrorContains(t, s.Reconciler.CheckBoots(t.Context()), "the database is locked")
		require.Equal(t, []int{1, 0}, []int{lost("run-m1"), lost("run-m2")})
		s.Clock.Move(5*time.Second + 700*time.Millisecond) // the two clocks are not read at the same moment
		up += 5 * time.Second
	}
	broken = false
	require.NoError(t, s.Reconciler.CheckBoots(t.Context()))
	require.Equal(t, []int{1, 1}, []int{lost("run-m1"), lost("run-m2")})
}
