package engine

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/workflows"
)

// pump runs a Pump until the test ends.
func (s *site) startPump() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Pump.Run(ctx) }()
	s.T.Cleanup(func() {
		cancel()
		require.NoError(s.T, <-done)
	})
}

// pumpOnce signals what may be sent now.
func (s *site) pumpOnce() error {
	_, err := s.Pump.begin(s.T.Context(), s.Temporal)
	s.Pump.sending.Wait()
	return errors.Join(err, s.Pump.takeProblem())
}

// arrivals waits for n requests to Temporal.
func (s *site) arrivals(n int) {
	s.T.Helper()
	for range n {
		select {
		case <-s.Temporal.Arrived:
		case <-time.After(30 * time.Second):
			s.T.Fatal("no signal came")
		}
	}
}

// drained waits until nothing is left to signal.
func (s *site) drained() {
	s.T.Helper()
	ch, cancel := s.Store.Changes.Subscribe()
	defer cancel()
	deadline := time.After(30 * time.Second)
	for {
		es, err := s.Store.Events.Unsignalled(s.T.Context(), 0, 100)
		require.NoError(s.T, err)
		if len(es) == 0 {
			return
		}
		select {
		case <-ch:
		case <-deadline:
			s.T.Fatalf("%d events are not signalled", len(es))
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
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o) // before the pump starts: it sends what is there
	s.startPump()
	k := s.Assign(o)
	long := action.Result{
		Key:      k,
		ID:       "abc",
		State:    action.Failed,
		ExitCode: 3,
		Message:  string(make([]byte, 5000)),
		Output:   map[string]string{"secret": "yes"},
	}
	s.reports(o, long)
	s.drained()

	_, kept := s.Temporal.Requests()
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
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	es, err := s.Store.Events.Unsignalled(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, es, 1)
	for range 3 { // it died each time before it could mark
		require.NoError(t, signal(t.Context(), s.Temporal, converter.GetDefaultDataConverter(), "default", "machine/m1", es[0]))
	}
	sent, kept := s.Temporal.Requests()
	require.Len(t, sent, 3)
	require.Len(t, kept, 1)
}

// TestPumpLetsNoRunWaitForAnother: while Temporal takes its time to accept a signal of one run, others are signalled.
func TestPumpLetsNoRunWaitForAnother(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	o1, o2 := s.Arm("m1", "r1"), s.Arm("m2", "r2")
	started, gate := make(chan struct{}), make(chan struct{})
	s.Temporal.Refuse = func(r *workflowservice.SignalWorkflowExecutionRequest) error {
		if r.WorkflowExecution.RunId == "r1" {
			s.Temporal.Mu.Unlock()
			close(started)
			<-gate
			s.Temporal.Mu.Lock()
		}
		return nil
	}
	happens := func(o inventory.Owner) {
		require.NoError(t, s.Store.Events.AppendEvents(t.Context(), []inventory.Event{
			{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: inventory.EventDHCP, At: s.Clock.Now()},
		}))
	}
	happens(o1)
	s.startPump()
	<-started
	happens(o2)
	s.arrivals(1)
	_, kept := s.Temporal.Requests()
	require.Equal(t, "r2", kept[0].WorkflowExecution.RunId)
	close(gate)
	s.drained()
}

// TestPumpSendsReportsFirst: when more runs have events than are signalled at once, one with a report goes before those that boot,
// also when the report is behind another event of its run.
func TestPumpSendsReportsFirst(t *testing.T) {
	t.Parallel()
	event := func(seq int64, run, kind string) inventory.Event {
		return inventory.Event{Seq: seq, Run: run, Kind: kind}
	}
	now := time.Now()
	p := &Pump{
		queue: map[string][]inventory.Event{
			"boots":   {event(1, "boots", inventory.EventDHCP)},
			"later":   {event(5, "later", inventory.EventDHCP)},
			"reports": {event(3, "reports", inventory.EventAgentIdle), event(4, "reports", inventory.EventActionDone)},
			"waits":   {event(2, "waits", inventory.EventActionDone)},
			"busy":    {event(0, "busy", inventory.EventActionDone)},
		},
		waits: map[string]retry{"waits": {at: now.Add(time.Second)}},
		busy:  map[string]bool{"busy": true},
	}
	var order []string
	for {
		run, es, next := p.takeDue(now)
		if run == "" {
			require.Equal(t, time.Second, next)
			break
		}
		require.NotEmpty(t, es)
		order = append(order, run)
	}
	require.Equal(t, []string{"reports", "boots", "later"}, order)
}

func TestPumpOutlivesNotFound(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	o1, o2 := s.Arm("m1", "r1"), s.Arm("m2", "r2")
	refuse := true
	s.Temporal.Refuse = func(r *workflowservice.SignalWorkflowExecutionRequest) error {
		if refuse && r.WorkflowExecution.RunId == "r1" {
			return serviceerror.NewNotFound("not yet")
		}
		return nil
	}
	seen := func(o inventory.Owner, kind string) {
		require.NoError(
			t,
			s.Store.Events.AppendEvents(
				t.Context(),
				[]inventory.Event{{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: kind, At: s.Clock.Now(), Count: 1}},
			),
		)
	}
	seen(o1, inventory.EventDHCP)
	seen(o1, inventory.EventLoader)
	seen(o2, inventory.EventDHCP)
	s.startPump()
	s.arrivals(2) // r1 once, for its later event waits behind the first; r2 once
	sent, kept := s.Temporal.Requests()
	require.Len(t, sent, 2)
	require.Len(t, kept, 1)
	require.Equal(t, "r2", kept[0].WorkflowExecution.RunId)

	s.Temporal.Mu.Lock()
	refuse = false
	s.Temporal.Mu.Unlock()
	s.drained()
	_, kept = s.Temporal.Requests()
	require.Len(t, kept, 3)
	require.Equal(t, inventory.EventDHCP, payload[workflows.Event](t, kept[1]).Kind)
	require.Equal(t, inventory.EventLoader, payload[workflows.Event](t, kept[2]).Kind)
}

func TestPumpDropsOnlyWhatTheGrantEnded(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
	s.startPump()
	s.arrivals(1)
	es, err := s.Store.Events.Unsignalled(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, es, 1, "NotFound does not say that a run has ended")
	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
	s.drained()
}

func TestPumpWaitsForTemporal(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.Temporal.Down = true
	s.startPump()
	s.welcome(o)
	n, err := s.Store.Events.PendingSignals(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	fails := 1
	s.Temporal.Mu.Lock()
	s.Temporal.Refuse = func(*workflowservice.SignalWorkflowExecutionRequest) error {
		if fails--; fails >= 0 {
			return serviceerror.NewUnavailable("starting")
		}
		return nil
	}
	s.Temporal.Down = false
	s.Temporal.Mu.Unlock()
	s.drained()
}

func TestPumpDoesNotChokeOnWhatCannotBeSent(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	require.NoError(t, s.Store.Events.AppendEvents(t.Context(), []inventory.Event{
		{
			Machine: "m1",
			Run:     "r1",
			Epoch:   o.Epoch,
			Boot:    1,
			Kind:    inventory.EventActionDone,
			Key:     "x",
			At:      s.Clock.Now(),
			Detail:  json.RawMessage(`"nonsense"`),
		},
		{Machine: "m1", Run: "r1", Epoch: o.Epoch, Boot: 1, Kind: inventory.EventDHCP, At: s.Clock.Now()},
	}))
	s.startPump()
	s.drained()
	_, kept := s.Temporal.Requests()
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
			s.AddMachine("m1", fakesite.MAC)
			o := s.Arm("m1", "r1")
			s.welcome(o)
			require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
			g, err := s.Store.Grants.Grant(t.Context(), "m1")
			require.NoError(t, err)
			require.Equal(t, o, g.Owner, "a run that is running keeps its grant")

			s.Temporal.End("r1", c.status, c.result)
			require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
			g, err = s.Store.Grants.Grant(t.Context(), "m1")
			require.NoError(t, err)
			require.Empty(t, g.Run)
			require.False(t, g.NetbootOpen(s.Clock.Now()))
			require.False(t, g.SecretsOpen(s.Clock.Now()))
			sum := sha256.Sum256([]byte(tokenOf(o)))
			_, err = s.Store.Agents.AgentByToken(t.Context(), sum[:])
			require.ErrorIs(t, err, inventory.ErrFenced)
			got, err := s.Store.Workflows.Workflow(t.Context(), "r1")
			require.NoError(t, err)
			require.Equal(t, c.state, got.State)
			require.Equal(t, c.message, got.Message)
			require.Equal(t, apitypes.Repairs{GrantsEnded: 1, RecordsRepaired: 1}, s.Reconciler.Counts())
		})
	}
}

func TestReconcileBelievesUnknownOnlyWhenOld(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	s.Arm("m1", "r1")
	s.Temporal.Mu.Lock()
	delete(s.Temporal.Runs, "r1")
	s.Temporal.Mu.Unlock()
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Zero(t, s.Reconciler.Counts())
	s.Clock.Move(31 * time.Second)
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Equal(t, apitypes.Repairs{GrantsEnded: 1, RecordsRepaired: 1}, s.Reconciler.Counts())
}

func TestReconcileRepairsARecordWithoutGrant(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Equal(t, apitypes.Repairs{RunsFenced: 1}, s.Reconciler.Counts(), "it is running yet")
	s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, nil)
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Equal(t, apitypes.Repairs{RunsFenced: 1, RecordsRepaired: 1}, s.Reconciler.Counts())
}

// TestReconcileTellsARunThatLostItsMachine: a running run that has lost its machine is
// signaled until it waits for an operator.
func TestReconcileTellsARunThatLostItsMachine(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	rec, err := s.Store.Workflows.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	rec.Epoch = o.Epoch
	rec.Seq++
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), rec))
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Empty(t, s.Temporal.Signals, "it owns its machine")

	require.NoError(t, s.Store.Grants.DisarmByHand(t.Context(), "m1", "ann", true))
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Equal(t, []string{workflows.SignalEvent}, s.Temporal.Signals)

	rec.Phase = inventory.PhaseWaiting
	rec.Seq++
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), rec))
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Len(t, s.Temporal.Signals, 1, "it has noticed")
}

// lateGrants answers with outdated grants: a run has taken its grant since.
type lateGrants struct{ GrantStore }

func (lateGrants) Grants(context.Context) ([]inventory.Grant, error) { return nil, nil }

// TestReconcileDoesNotFenceARunThatJustArmed: with two hundred runs a pass takes seconds. A
// run that arms during the pass must not be told that it has lost its machine.
func TestReconcileDoesNotFenceARunThatJustArmed(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	rec, err := s.Store.Workflows.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	rec.Epoch = o.Epoch
	rec.Seq++
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), rec))
	r := s.Reconciler
	r.stores.Grants = lateGrants{r.stores.Grants}
	require.NoError(t, r.CheckRuns(t.Context()))
	require.Empty(t, s.Temporal.Signals)
}

func TestReconcileClosesAnOperatorsWindowWithoutTemporal(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	s.Temporal.Down = true
	_, err := s.Store.Grants.ArmByHand(t.Context(), "m1", "ann", s.Clock.Now().Add(10*time.Minute))
	require.NoError(t, err)
	s.Clock.Move(9 * time.Minute)
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Zero(t, s.Reconciler.Counts())
	s.Clock.Move(2 * time.Minute)
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Equal(t, apitypes.Repairs{OperatorWindowsExpired: 1}, s.Reconciler.Counts())
	g, err := s.Store.Grants.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.Empty(t, g.Run)
}

func TestLostAgentIsToldOncePerSilence(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	lost := func() int {
		require.NoError(t, s.Reconciler.CheckAgents(t.Context()))
		return s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventAgentLost]
	}
	s.Clock.Move(2 * time.Minute)
	require.Zero(t, lost(), "it was given no work")
	s.fetches(o)
	k := s.Assign(o)
	require.Zero(t, lost())
	s.fetches(o)
	s.Clock.Move(59 * time.Second)
	require.Zero(t, lost())
	s.Clock.Move(2 * time.Second)
	require.Equal(t, 1, lost())
	s.Clock.Move(time.Minute)
	require.Equal(t, 1, lost())
	s.beats(o, action.Heartbeat{})
	s.Clock.Move(2 * time.Minute)
	require.Equal(t, 2, lost())

	es, err := s.Store.Events.Unsignalled(t.Context(), 0, 10)
	require.NoError(t, err)
	name, out, err := signalOf(es[len(es)-1])
	require.NoError(t, err)
	require.Equal(t, workflows.SignalEvent, name)
	require.Equal(t, &k, out.(workflows.Event).Key)
}

// TestAgentThatDiesBeforeItFetchesItsWorkIsLost: for example while an operator was asked
// overnight.
func TestAgentThatDiesBeforeItFetchesItsWorkIsLost(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	s.Assign(o)
	s.Clock.Move(61 * time.Second)
	require.NoError(t, s.Reconciler.CheckAgents(t.Context()))
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventAgentLost])
}

func TestSilenceCountsFromTheServersStart(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	s.Assign(o)
	s.fetches(o)
	s.Clock.Move(time.Hour) // the server was down
	again := New(s.config)  // a new process
	s.Clock.Move(59 * time.Second)
	require.NoError(t, again.Reconciler.CheckAgents(t.Context()))
	require.Zero(t, again.Reconciler.Counts())
	s.Clock.Move(time.Second)
	require.NoError(t, again.Reconciler.CheckAgents(t.Context()))
	require.Equal(t, apitypes.Repairs{AgentsLost: 1}, again.Reconciler.Counts())
}

func TestIdleAgentIsToldAtGrowingIntervals(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	idle := func(d time.Duration) int {
		s.Clock.Move(d)
		s.beats(o, action.Heartbeat{Idle: true})
		s.hears()
		require.NoError(t, s.Reconciler.CheckAgents(t.Context()))
		return s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventAgentIdle]
	}
	require.Equal(
		t,
		[]int{0, 0, 1, 1, 2, 2, 3},
		[]int{
			idle(0),
			idle(9 * time.Second),
			idle(time.Second),
			idle(9 * time.Second),
			idle(time.Second),
			idle(19 * time.Second),
			idle(time.Second),
		},
	)
	rec, err := s.Store.Workflows.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	rec.Phase = inventory.PhaseWaiting
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), rec))
	require.Equal(t, 3, idle(time.Hour), "an operator is awaited")
}

// errStore fails where it is told to.
type errStore struct {
	AgentStore
	touch error
}

func (e *errStore) TouchAgents(ctx context.Context, seen []inventory.AgentSeen) error {
	if e.touch != nil {
		return e.touch
	}
	return e.AgentStore.TouchAgents(ctx, seen)
}

func TestSignsOfLifeSurviveAFailedFlush(t *testing.T) {
	e := &errStore{touch: errors.New("disk full")}
	s := newSite(t, func(c *Config) { e.AgentStore, c.Stores.Agents = c.Stores.Agents, e })
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	s.Clock.Move(time.Minute)
	s.beats(o, action.Heartbeat{Wrote: true})
	require.Error(t, s.Agents.Flush(t.Context()))
	e.touch = nil
	require.NoError(t, s.Agents.Flush(t.Context()))
	a, err := s.Store.Agents.Agent(t.Context(), o)
	require.NoError(t, err)
	require.True(t, a.Wrote)
	require.Equal(t, s.Clock.Now(), a.LastSeen)
}

// An installer's own end message reaches the run as text; messages of other events do not.
func TestAnInstallersWordsAreInTheSignal(t *testing.T) {
	long := strings.Repeat("x", maxSignal+1)
	for _, c := range []struct{ kind, message, want string }{
		{inventory.EventInstallFailed, "no disk", "no disk"},
		{inventory.EventInstalled, "done", "done"},
		{inventory.EventInstallFailed, long, plaintext.Head(long, maxSignal)},
		{inventory.EventPayload, "rootfs was delivered whole", ""},
		{inventory.EventDHCP, "by hand", ""},
	} {
		name, out, err := signalOf(inventory.Event{Kind: c.kind, Epoch: 3, Boot: 2, Message: c.message})
		require.NoError(t, err)
		require.Equal(t, workflows.SignalEvent, name)
		require.Equal(t, workflows.Event{Kind: c.kind, Epoch: 3, Boot: 2, Message: c.want}, out)
	}
}
