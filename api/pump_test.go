package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// pump runs the pump until the test ends.
func (s *site) pump() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.server.Pump().Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		require.NoError(s.t, <-done)
	})
}

// arrivals waits for n requests to Temporal.
func (s *site) arrivals(n int) {
	s.t.Helper()
	for range n {
		select {
		case <-s.temporal.arrived:
		case <-time.After(30 * time.Second):
			s.t.Fatal("no signal came")
		}
	}
}

// drained waits until nothing is left to signal.
func (s *site) drained() {
	s.t.Helper()
	ch, cancel := s.store.Subscribe()
	defer cancel()
	deadline := time.After(30 * time.Second)
	for {
		es, err := s.store.Unsignalled(s.t.Context(), 100)
		require.NoError(s.t, err)
		if len(es) == 0 {
			return
		}
		select {
		case <-ch:
		case <-deadline:
			s.t.Fatalf("%d events are not signalled", len(es))
		}
	}
}

func payload[T any](t *testing.T, r *workflowservice.SignalWorkflowExecutionRequest) T {
	t.Helper()
	var v T
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(r.Input, &v))
	return v
}

func TestPumpSignalsInOrderWithRunAndRequestID(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	w := s.welcome(o, nonceA) // before the pump starts: it sends what is there
	s.pump()
	k := s.assign(o)
	long := action.Result{Key: k, ID: "abc", State: action.Failed, ExitCode: 3, Message: string(make([]byte, 5000)), Output: map[string]string{"secret": "yes"}}
	require.Equal(t, http.StatusNoContent, send(t, s.agent, http.MethodPost, "/agent/v1/report", long, bearer(w.Token)).Code)
	s.drained()

	_, kept := s.temporal.requests()
	require.Len(t, kept, 2)
	for _, r := range kept {
		require.Equal(t, "default", r.Namespace)
		require.Equal(t, "r1", r.WorkflowExecution.RunId)
		require.Equal(t, "machine/m1", r.WorkflowExecution.WorkflowId)
		require.NotEmpty(t, r.RequestId)
	}
	require.NotEqual(t, kept[0].RequestId, kept[1].RequestId)
	require.Equal(t, workflows.SignalEvent, kept[0].SignalName)
	hello := payload[workflows.Event](t, kept[0])
	require.Equal(t, inventory.EventHello, hello.Kind)
	require.Equal(t, 1, hello.Boot)
	require.Equal(t, workflows.SignalActionCompleted, kept[1].SignalName)
	done := payload[workflows.ActionCompleted](t, kept[1])
	require.Equal(t, k, done.Key)
	require.Equal(t, action.Failed, done.State)
	require.Equal(t, 3, done.ExitCode)
	require.LessOrEqual(t, len(done.Message), maxSignal)
	require.NotContains(t, kept[1].Input.String(), "secret")
}

func TestPumpSendsAgainWithTheSameRequestID(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	s.welcome(o, nonceA)
	es, err := s.store.Unsignalled(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, es, 1)
	for range 3 { // it died each time before it could mark
		require.NoError(t, s.server.pump.signal(t.Context(), s.temporal, "machine/m1", es[0]))
	}
	sent, kept := s.temporal.requests()
	require.Len(t, sent, 3)
	require.Len(t, kept, 1)
}

func TestPumpOutlivesNotFound(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	s.addMachine("m2", "52:54:00:00:00:0b")
	o1, o2 := s.armed("m1", "r1"), s.armed("m2", "r2")
	refuse := true
	s.temporal.unsigned = func(r *workflowservice.SignalWorkflowExecutionRequest) error {
		if refuse && r.WorkflowExecution.RunId == "r1" {
			return serviceerror.NewNotFound("not yet")
		}
		return nil
	}
	seen := func(o inventory.Owner, kind string) {
		require.NoError(t, s.store.AppendEvents(t.Context(), []inventory.Event{{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: kind, At: s.clock.now(), Count: 1}}))
	}
	seen(o1, inventory.EventDHCP)
	seen(o1, inventory.EventLoader)
	seen(o2, inventory.EventDHCP)
	s.pump()
	s.arrivals(2) // r1 once, for its later event waits behind the first; r2 once
	sent, kept := s.temporal.requests()
	require.Len(t, sent, 2)
	require.Len(t, kept, 1)
	require.Equal(t, "r2", kept[0].WorkflowExecution.RunId)

	s.temporal.mu.Lock()
	refuse = false
	s.temporal.mu.Unlock()
	s.drained()
	_, kept = s.temporal.requests()
	require.Len(t, kept, 3)
	require.Equal(t, inventory.EventDHCP, payload[workflows.Event](t, kept[1]).Kind)
	require.Equal(t, inventory.EventLoader, payload[workflows.Event](t, kept[2]).Kind)
}

func TestPumpDropsOnlyWhatTheGrantEnded(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	s.welcome(o, nonceA)
	s.temporal.end("r1", enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
	s.pump()
	s.arrivals(1)
	es, err := s.store.Unsignalled(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, es, 1, "NotFound does not say that a run is over")
	require.NoError(t, s.store.EndGrant(t.Context(), o))
	s.drained()
}

func TestPumpWaitsForTemporal(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	s.temporal.down = true
	s.pump()
	s.welcome(o, nonceA)
	n, err := s.store.PendingSignals(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	fails := 1
	s.temporal.mu.Lock()
	s.temporal.unsigned = func(*workflowservice.SignalWorkflowExecutionRequest) error {
		if fails--; fails >= 0 {
			return serviceerror.NewUnavailable("starting")
		}
		return nil
	}
	s.temporal.down = false
	s.temporal.mu.Unlock()
	s.drained()
}

func TestPumpDoesNotChokeOnWhatCannotBeSent(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	require.NoError(t, s.store.AppendEvents(t.Context(), []inventory.Event{
		{Machine: "m1", Run: "r1", Epoch: o.Epoch, Boot: 1, Kind: inventory.EventActionDone, Key: "x", At: s.clock.now(), Detail: json.RawMessage(`"nonsense"`)},
		{Machine: "m1", Run: "r1", Epoch: o.Epoch, Boot: 1, Kind: inventory.EventDHCP, At: s.clock.now()},
	}))
	s.pump()
	s.drained()
	_, kept := s.temporal.requests()
	require.Len(t, kept, 1)
}

func TestReconcileEndsWhatWasTerminated(t *testing.T) {
	for name, c := range map[string]struct {
		status  enumspb.WorkflowExecutionStatus
		result  any
		state   string
		message string
	}{
		"terminated": {enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil, inventory.StateFailed, "terminated from outside"},
		"cancelled":  {enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, nil, inventory.StateCancelled, "cancelled"},
		"completed":  {enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, workflows.Outcome{State: inventory.StateSuccess}, inventory.StateSuccess, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.addMachine("m1", mac)
			o := s.armed("m1", "r1")
			w := s.welcome(o, nonceA)
			require.NoError(t, s.server.Reconciler().Runs(t.Context()))
			g, err := s.store.Grant(t.Context(), "m1")
			require.NoError(t, err)
			require.Equal(t, o, g.Owner, "a run that is running keeps its grant")

			s.temporal.end("r1", c.status, c.result)
			require.NoError(t, s.server.Reconciler().Runs(t.Context()))
			g, err = s.store.Grant(t.Context(), "m1")
			require.NoError(t, err)
			require.Empty(t, g.Run)
			require.False(t, g.NetbootOpen(s.clock.now()))
			require.False(t, g.SecretsOpen(s.clock.now()))
			require.Equal(t, http.StatusGone, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(w.Token)).Code)
			got, err := s.store.Workflow(t.Context(), "r1")
			require.NoError(t, err)
			require.Equal(t, c.state, got.State)
			require.Equal(t, c.message, got.Message)
			require.Equal(t, Counts{GrantsEnded: 1, RecordsRepaired: 1}, s.server.Reconciler().Counts())
		})
	}
}

func TestReconcileBelievesUnknownOnlyWhenOld(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	s.armed("m1", "r1")
	s.temporal.mu.Lock()
	delete(s.temporal.runs, "r1")
	s.temporal.mu.Unlock()
	require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	require.Zero(t, s.server.Reconciler().Counts())
	s.clock.move(31 * time.Second)
	require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	require.Equal(t, Counts{GrantsEnded: 1, RecordsRepaired: 1}, s.server.Reconciler().Counts())
}

func TestReconcileRepairsARecordWithoutGrant(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	require.NoError(t, s.store.EndGrant(t.Context(), o))
	require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	require.Equal(t, Counts{RunsFenced: 1}, s.server.Reconciler().Counts(), "it is running yet")
	s.temporal.end("r1", enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, nil)
	require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	require.Equal(t, Counts{RunsFenced: 1, RecordsRepaired: 1}, s.server.Reconciler().Counts())
}

// TestReconcileTellsARunThatLostItsMachine: somebody took the machine from a
// run that goes on; it is told until it waits for a person.
func TestReconcileTellsARunThatLostItsMachine(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	rec, err := s.store.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	rec.Epoch = o.Epoch
	rec.Seq++
	require.NoError(t, s.store.PutWorkflow(t.Context(), rec))
	require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	require.Empty(t, s.temporal.signals, "it owns its machine")

	require.NoError(t, s.store.DisarmByHand(t.Context(), "m1", "ann", true))
	require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	require.Equal(t, []string{workflows.SignalEvent}, s.temporal.signals)

	rec.Phase = inventory.PhaseWaiting
	rec.Seq++
	require.NoError(t, s.store.PutWorkflow(t.Context(), rec))
	require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	require.Len(t, s.temporal.signals, 1, "it has noticed")
}

// lateGrants answers with the grants of a moment ago: a run has taken its own
// since.
type lateGrants struct{ reconcileStore }

func (lateGrants) Grants(context.Context) ([]inventory.Grant, error) { return nil, nil }

// TestReconcileDoesNotFenceARunThatJustArmed: with two hundred runs a pass
// takes seconds, and every one that arms meanwhile would be told that somebody
// else has its machine.
func TestReconcileDoesNotFenceARunThatJustArmed(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	rec, err := s.store.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	rec.Epoch = o.Epoch
	rec.Seq++
	require.NoError(t, s.store.PutWorkflow(t.Context(), rec))
	r := s.server.Reconciler()
	r.Store = lateGrants{r.Store}
	require.NoError(t, r.Runs(t.Context()))
	require.Empty(t, s.temporal.signals)
}

func TestReconcileClosesAPersonsWindowWithoutTemporal(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	s.temporal.down = true
	require.Equal(t, http.StatusOK, s.do(http.MethodPost, "/v1/machines/m1/netboot", `{"arm":true,"for":"10m"}`).Code)
	s.clock.move(9 * time.Minute)
	require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	require.Zero(t, s.server.Reconciler().Counts())
	s.clock.move(2 * time.Minute)
	require.NoError(t, s.server.Reconciler().Runs(t.Context()))
	require.Equal(t, Counts{PersonsExpired: 1}, s.server.Reconciler().Counts())
	g, err := s.store.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.Empty(t, g.Run)
}

func TestLostAgentIsToldOncePerSilence(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	w := s.welcome(o, nonceA)
	lost := func() int {
		require.NoError(t, s.server.Reconciler().Agents(t.Context()))
		return s.events(inventory.EventFilter{Run: "r1"})[inventory.EventAgentLost]
	}
	s.clock.move(2 * time.Minute)
	require.Zero(t, lost(), "it was given no work")
	require.Equal(t, http.StatusNoContent, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(w.Token)).Code)
	k := s.assign(o)
	require.Zero(t, lost())
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(w.Token)).Code)
	s.clock.move(59 * time.Second)
	require.Zero(t, lost())
	s.clock.move(2 * time.Second)
	require.Equal(t, 1, lost())
	s.clock.move(time.Minute)
	require.Equal(t, 1, lost())
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{}, bearer(w.Token)).Code)
	s.clock.move(2 * time.Minute)
	require.Equal(t, 2, lost())

	es, err := s.store.Unsignalled(t.Context(), 10)
	require.NoError(t, err)
	name, out, err := signalOf(es[len(es)-1])
	require.NoError(t, err)
	require.Equal(t, workflows.SignalEvent, name)
	require.Equal(t, &k, out.(workflows.Event).Key)
}

// TestAgentThatDiesBeforeItFetchesItsWorkIsLost: for example while a person was
// asked over night.
func TestAgentThatDiesBeforeItFetchesItsWorkIsLost(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	s.welcome(o, nonceA)
	s.assign(o)
	s.clock.move(61 * time.Second)
	require.NoError(t, s.server.Reconciler().Agents(t.Context()))
	require.Equal(t, 1, s.events(inventory.EventFilter{Run: "r1"})[inventory.EventAgentLost])
}

func TestSilenceCountsFromTheServersStart(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	w := s.welcome(o, nonceA)
	s.assign(o)
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(w.Token)).Code)
	s.clock.move(time.Hour) // the server was away
	cfg := s.server.cfg
	cfg.Up = nil // a process of its own
	again, err := New(cfg)
	require.NoError(t, err)
	s.clock.move(59 * time.Second)
	require.NoError(t, again.Reconciler().Agents(t.Context()))
	require.Zero(t, again.Reconciler().Counts())
	s.clock.move(time.Second)
	require.NoError(t, again.Reconciler().Agents(t.Context()))
	require.Equal(t, Counts{AgentsLost: 1}, again.Reconciler().Counts())
}

func TestIdleAgentIsToldAtGrowingIntervals(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	w := s.welcome(o, nonceA)
	idle := func(d time.Duration) int {
		s.clock.move(d)
		require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{Idle: true}, bearer(w.Token)).Code)
		s.hears()
		require.NoError(t, s.server.Reconciler().Agents(t.Context()))
		return s.events(inventory.EventFilter{Run: "r1"})[inventory.EventAgentIdle]
	}
	require.Equal(t, []int{0, 0, 1, 1, 2, 2, 3}, []int{idle(0), idle(9 * time.Second), idle(time.Second), idle(9 * time.Second), idle(time.Second), idle(19 * time.Second), idle(time.Second)})
	rec, err := s.store.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	rec.Phase = inventory.PhaseWaiting
	require.NoError(t, s.store.PutWorkflow(t.Context(), rec))
	require.Equal(t, 3, idle(time.Hour), "a person is awaited")
}

// errStore fails where it is told to.
type errStore struct {
	Store
	touch error
}

func (e *errStore) TouchAgents(ctx context.Context, seen []inventory.AgentSeen) error {
	if e.touch != nil {
		return e.touch
	}
	return e.Store.TouchAgents(ctx, seen)
}

func TestSignsOfLifeSurviveAFailedFlush(t *testing.T) {
	e := &errStore{touch: errors.New("disk full")}
	s := newSite(t, func(c *Config) { e.Store, c.Store = c.Store, e })
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	w := s.welcome(o, nonceA)
	s.clock.move(time.Minute)
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{Wrote: true}, bearer(w.Token)).Code)
	require.Error(t, s.server.agents.flush(t.Context()))
	e.touch = nil
	require.NoError(t, s.server.agents.flush(t.Context()))
	a, err := s.store.Agent(t.Context(), o)
	require.NoError(t, err)
	require.True(t, a.Wrote)
	require.Equal(t, s.clock.now(), a.LastSeen)
}

// What an installer says of its end reaches the run with its words; what was
// merely seen does not.
func TestAnInstallersWordsAreInTheSignal(t *testing.T) {
	long := strings.Repeat("x", maxSignal+1)
	for _, c := range []struct{ kind, message, want string }{
		{inventory.EventInstallFailed, "no disk", "no disk"},
		{inventory.EventInstalled, "done", "done"},
		{inventory.EventInstallFailed, long, head(long, maxSignal)},
		{inventory.EventPayload, "rootfs was delivered whole", ""},
		{inventory.EventDHCP, "by hand", ""},
	} {
		name, out, err := signalOf(inventory.Event{Kind: c.kind, Epoch: 3, Boot: 2, Message: c.message})
		require.NoError(t, err)
		require.Equal(t, workflows.SignalEvent, name)
		require.Equal(t, workflows.Event{Kind: c.kind, Epoch: 3, Boot: 2, Message: c.want}, out)
	}
}
