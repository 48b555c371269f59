package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/ingotmetal/ingot/action"
	process "github.com/ingotmetal/ingot/internal/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// TestAgentsAreNotLostWhenTheClockIsSet: silence goes by the clock that nobody
// sets, whatever the database says of the last sign of life.
func TestAgentsAreNotLostWhenTheClockIsSet(t *testing.T) {
	real := &clock{t: time.Unix(0, 0)}
	s := newSite(t, func(c *Config) { c.Elapsed = func() time.Duration { return real.now().Sub(time.Unix(0, 0)) } })
	pass := func(d time.Duration) { s.clock.move(d); real.move(d) }
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	w := s.welcome(o, nonceA)
	s.assign(o)
	pass(2 * time.Minute)
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{}, bearer(w.Token)).Code)
	require.NoError(t, s.server.agents.flush(t.Context())) // the database shows the same moment
	lost := func() int {
		require.NoError(t, s.server.Reconciler().Agents(t.Context()))
		return s.events(inventory.EventFilter{Run: "r1"})[inventory.EventAgentLost]
	}
	for _, step := range []time.Duration{24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		s.clock.move(step)
		require.Zero(t, lost(), step)
	}
	ago, ok := s.server.Heard(o, 1)
	require.True(t, ok)
	require.Zero(t, ago)
	pass(59 * time.Second)
	require.Zero(t, lost())
	pass(2 * time.Second)
	require.Equal(t, 1, lost(), "silence is silence")
	ago, _ = s.server.Heard(o, 1)
	require.Equal(t, 61*time.Second, ago)
	_, ok = s.server.Heard(o, 2)
	require.False(t, ok, "nobody has come under that boot")
}

// TestAgentsAreNotLostWhenNobodyListened: a server that was frozen, or that
// began to listen late, has heard nobody and knows nothing of their silence.
func TestAgentsAreNotLostWhenNobodyListened(t *testing.T) {
	real := &clock{t: time.Unix(0, 0)}
	passed := func() time.Duration { return real.now().Sub(time.Unix(0, 0)) }
	c := process.Of(real.now, passed)
	s := newSite(t, func(cfg *Config) { cfg.Elapsed, cfg.Up = c.Elapsed, c.Up })
	runs := func(d time.Duration) {
		for range d / time.Second {
			s.clock.move(time.Second)
			real.move(time.Second)
			c.Look()
		}
	}
	freeze := func(d time.Duration) { s.clock.move(d); real.move(d) }
	s.addMachine("m1", mac)
	s.addMachine("m2", "52:54:00:00:00:0b")
	o, restarted := s.armed("m1", "r1"), s.armed("m2", "r2")
	w := s.welcome(o, nonceA)
	hello := s.hello(restarted, 1, nonceA)
	hello.MAC = "52:54:00:00:00:0b"
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/claim", hello).Code)
	s.assign(o)
	s.assign(restarted)
	beat := func() {
		require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{}, bearer(w.Token)).Code)
	}
	lost := func() int64 {
		require.NoError(t, s.server.Reconciler().Agents(t.Context()))
		return s.server.Reconciler().Counts().AgentsLost
	}
	beat()
	require.NoError(t, s.server.agents.flush(t.Context()))
	delete(s.server.agents.machines, "m2") // known from the database only

	runs(50 * time.Second)
	c.Listening() // a migration took as long
	runs(50 * time.Second)
	require.Zero(t, lost(), "late listening")

	freeze(10 * time.Minute)
	require.Zero(t, lost(), "at once after the thaw, before the next look")
	ago, ok := s.server.Heard(o, 1)
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

// TestUnknownRunIsNotOverWhenTheClockIsSet: a grant that was taken this moment
// is a day old by the wall.
func TestUnknownRunIsNotOverWhenTheClockIsSet(t *testing.T) {
	s := newSite(t, func(c *Config) { c.Elapsed = func() time.Duration { return time.Minute } })
	s.addMachine("m1", mac)
	s.armed("m1", "r1")
	s.temporal.mu.Lock()
	delete(s.temporal.runs, "r1")
	s.temporal.mu.Unlock()
	for range 3 {
		s.clock.move(24 * time.Hour)
		require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	}
	require.Zero(t, s.server.Reconciler().Counts())
}

// TestWindowsAreMovedWhenTheClockIsSet: a machine that boots does not find its
// window closed.
func TestWindowsAreMovedWhenTheClockIsSet(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	from := s.clock.now()
	s.clock.move(24 * time.Hour)
	g, err := s.store.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.False(t, g.NetbootOpen(s.clock.now()))
	s.server.Reconciler().Stepped(t.Context(), from, s.clock.now())
	g, err = s.store.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.True(t, g.NetbootOpen(s.clock.now()))
	s.welcome(o, nonceA)
	require.Equal(t, Counts{ClockSteps: 1}, s.server.Reconciler().Counts())
	require.Contains(t, s.do(http.MethodGet, "/v1/status", nil).Body.String(), `"clockSteps":1`)
}

// TestPumpGivesUpOnWhatIsRefusedForEver: a run whose events Temporal refuses
// holds up no other, is tried again for a bounded number of times, and shows.
func TestPumpGivesUpOnWhatIsRefusedForEver(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	s.addMachine("m2", "52:54:00:00:00:0b")
	o1, o2 := s.armed("m1", "r1"), s.armed("m2", "r2")
	s.temporal.unsigned = func(r *workflowservice.SignalWorkflowExecutionRequest) error {
		if r.WorkflowExecution.RunId == "r1" {
			return serviceerror.NewResourceExhausted(0, "the history is full")
		}
		return nil
	}
	var es []inventory.Event
	for i := range pumpBatch + 10 { // more than one look takes in
		es = append(es, inventory.Event{Machine: "m1", Run: "r1", Epoch: o1.Epoch, Boot: i, Kind: inventory.EventAgentIdle, At: s.clock.now()})
	}
	es = append(es, inventory.Event{Machine: "m2", Run: "r2", Epoch: o2.Epoch, Boot: 1, Kind: inventory.EventDHCP, At: s.clock.now()})
	require.NoError(t, s.store.AppendEvents(t.Context(), es))
	p := s.server.Pump()
	p.waits = map[string]retryAt{}
	_, err := p.pass(t.Context(), s.temporal)
	require.NoError(t, err, "one run's trouble is none of Temporal")
	_, kept := s.temporal.requests()
	require.Len(t, kept, 1)
	require.Equal(t, "r2", kept[0].WorkflowExecution.RunId)
	require.Equal(t, 1, p.waits["r1"].tries)

	p.waits["r1"] = retryAt{tries: maxTries} // an hour later
	left, err := s.store.Unsignalled(t.Context(), 10000)
	require.NoError(t, err)
	_, err = p.pass(t.Context(), s.temporal)
	require.NoError(t, err)
	after, err := s.store.Unsignalled(t.Context(), 10000)
	require.NoError(t, err)
	require.Len(t, after, len(left)-1, "it was given up, and those behind it have their own tries")
	require.Equal(t, Counts{SignalsRefused: 1}, s.server.Reconciler().Counts())
}

// TestWhatIsTriedAgainIsShown: the record cannot say so when the database
// cannot be written.
func TestWhatIsTriedAgainIsShown(t *testing.T) {
	s := newSite(t, func(c *Config) {
		c.Retrying = func(run string) []string { return []string{"Record of " + run + " failed 7 times: disk full"} }
	})
	s.addMachine("m1", mac)
	s.armed("m1", "r1")
	require.Contains(t, s.do(http.MethodGet, "/v1/workflows/r1", nil).Body.String(), "Record of r1 failed 7 times")
	require.Contains(t, s.do(http.MethodGet, "/v1/status", nil).Body.String(), "m1: Record of r1 failed 7 times")
	rec, err := s.store.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	rec.State, rec.Phase = inventory.StateSuccess, inventory.PhaseDone
	rec.Seq++
	require.NoError(t, s.store.PutWorkflow(t.Context(), rec))
	require.NotContains(t, s.do(http.MethodGet, "/v1/workflows/r1", nil).Body.String(), "disk full", "it is over")
}
