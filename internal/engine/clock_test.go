package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	process "github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

// TestAgentsAreNotLostWhenTheClockIsSet: silence is measured by the monotonic clock,
// whatever the database says of the last sign of life.
func TestAgentsAreNotLostWhenTheClockIsSet(t *testing.T) {
	real := fakesite.NewClock(time.Unix(0, 0))
	s := newSite(t, func(c *Config) { c.Elapsed = func() time.Duration { return real.Now().Sub(time.Unix(0, 0)) } })
	pass := func(d time.Duration) { s.Clock.Move(d); real.Move(d) }
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	s.Assign(o)
	pass(2 * time.Minute)
	s.beats(o, action.Heartbeat{})
	require.NoError(t, s.Agents.Flush(t.Context())) // the database shows the same moment
	lost := func() int {
		require.NoError(t, s.Reconciler.CheckAgents(t.Context()))
		return s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventAgentLost]
	}
	for _, step := range []time.Duration{24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		s.Clock.Move(step)
		require.Zero(t, lost(), step)
	}
	ago, ok := s.Agents.Silence(o, 1)
	require.True(t, ok)
	require.Zero(t, ago)
	pass(59 * time.Second)
	require.Zero(t, lost())
	pass(2 * time.Second)
	require.Equal(t, 1, lost(), "silence is silence")
	ago, _ = s.Agents.Silence(o, 1)
	require.Equal(t, 61*time.Second, ago)
	_, ok = s.Agents.Silence(o, 2)
	require.False(t, ok, "no agent has come under that boot")
}

// TestAgentsAreNotLostWhenTheServerDidNotListen: a server that was frozen, or that started to
// listen late, cannot tell that agents were silent.
func TestAgentsAreNotLostWhenTheServerDidNotListen(t *testing.T) {
	real := fakesite.NewClock(time.Unix(0, 0))
	passed := func() time.Duration { return real.Now().Sub(time.Unix(0, 0)) }
	c := process.Of(real.Now, passed)
	s := newSite(t, func(cfg *Config) { cfg.Elapsed, cfg.Up = c.Elapsed, c.Up })
	runs := func(d time.Duration) {
		for range d / time.Second {
			s.Clock.Move(time.Second)
			real.Move(time.Second)
			c.Look()
		}
	}
	freeze := func(d time.Duration) { s.Clock.Move(d); real.Move(d) }
	s.AddMachine("m1", fakesite.MAC)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	o, restarted := s.Arm("m1", "r1"), s.Arm("m2", "r2")
	s.welcome(o)
	s.welcome(restarted)
	s.Assign(o)
	s.Assign(restarted)
	beat := func() {
		s.beats(o, action.Heartbeat{})
	}
	lost := func() int64 {
		require.NoError(t, s.Reconciler.CheckAgents(t.Context()))
		return s.Reconciler.Counts().AgentsLost
	}
	beat()
	require.NoError(t, s.Agents.Flush(t.Context()))
	delete(s.Agents.byMachine, "m2") // known from the database only

	runs(50 * time.Second)
	c.Listening() // a migration took as long
	runs(50 * time.Second)
	require.Zero(t, lost(), "late listening")

	freeze(10 * time.Minute)
	require.Zero(t, lost(), "at once after the thaw, before the next look")
	ago, ok := s.Agents.Silence(o, 1)
	require.True(t, ok)
	require.Greater(t, ago, 10*time.Minute, "that is what it is")
	runs(59 * time.Second)
	require.Zero(t, lost())
	beat()
	runs(2 * time.Second)
	require.EqualValues(t, 1, lost(), "m2 is silent; m1 lives")
	runs(time.Minute)
	require.EqualValues(t, 2, lost())
}

// TestUnknownRunIsNotOverWhenTheClockIsSet: a grant that was just taken is a day old by the
// wall clock.
func TestUnknownRunIsNotOverWhenTheClockIsSet(t *testing.T) {
	s := newSite(t, func(c *Config) { c.Elapsed = func() time.Duration { return time.Minute } })
	s.AddMachine("m1", fakesite.MAC)
	s.Arm("m1", "r1")
	s.Temporal.Mu.Lock()
	delete(s.Temporal.Runs, "r1")
	s.Temporal.Mu.Unlock()
	for range 3 {
		s.Clock.Move(24 * time.Hour)
		require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	}
	require.Zero(t, s.Reconciler.Counts())
}

// TestWindowsAreMovedWhenTheClockIsSet: the window of a booting machine stays open.
func TestWindowsAreMovedWhenTheClockIsSet(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	from := s.Clock.Now()
	s.Clock.Move(24 * time.Hour)
	g, err := s.Store.Grants.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.False(t, g.NetbootOpen(s.Clock.Now()))
	s.Reconciler.ClockSet(t.Context(), from, s.Clock.Now())
	g, err = s.Store.Grants.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.True(t, g.NetbootOpen(s.Clock.Now()))
	s.welcome(o)
	require.Equal(t, apitypes.Repairs{ClockSteps: 1}, s.Reconciler.Counts())
}

// TestPumpGivesUpOnWhatIsRefusedForEver: a run whose events Temporal refuses does not delay
// others, is retried a limited number of times, and is counted.
func TestPumpGivesUpOnWhatIsRefusedForEver(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	o1, o2 := s.Arm("m1", "r1"), s.Arm("m2", "r2")
	s.Temporal.Refuse = func(r *workflowservice.SignalWorkflowExecutionRequest) error {
		if r.WorkflowExecution.RunId == "r1" {
			return serviceerror.NewResourceExhausted(0, "the history is full")
		}
		return nil
	}
	var es []inventory.Event
	for i := range pumpBatch + 10 { // more than one look takes in
		es = append(es, inventory.Event{Machine: "m1", Run: "r1", Epoch: o1.Epoch, Boot: i, Kind: inventory.EventAgentIdle, At: s.Clock.Now()})
	}
	es = append(es, inventory.Event{Machine: "m2", Run: "r2", Epoch: o2.Epoch, Boot: 1, Kind: inventory.EventDHCP, At: s.Clock.Now()})
	require.NoError(t, s.Store.Events.AppendEvents(t.Context(), es))
	p := s.Pump
	require.NoError(t, s.pumpOnce(), "one run's trouble is none of Temporal")
	_, kept := s.Temporal.Requests()
	require.Len(t, kept, 1)
	require.Equal(t, "r2", kept[0].WorkflowExecution.RunId)
	require.Equal(t, 1, p.waits["r1"].tries)

	p.waits["r1"] = retry{tries: maxTries} // an hour later
	left, err := s.Store.Events.Unsignalled(t.Context(), 0, 10000)
	require.NoError(t, err)
	require.NoError(t, s.pumpOnce())
	after, err := s.Store.Events.Unsignalled(t.Context(), 0, 10000)
	require.NoError(t, err)
	require.Len(t, after, len(left)-1, "it was given up, and those behind it have their own tries")
	require.Equal(t, apitypes.Repairs{SignalsRefused: 1}, s.Reconciler.Counts())
}
