package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/workflows"
)

// hungTemporal accepts every request and answers none.
type hungTemporal struct{ client.Client }

func (hungTemporal) DescribeWorkflowExecution(
	ctx context.Context,
	_, _ string,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hungTemporal) ListWorkflow(
	ctx context.Context,
	_ *workflowservice.ListWorkflowExecutionsRequest,
) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hungTemporal) CountWorkflow(
	ctx context.Context,
	_ *workflowservice.CountWorkflowExecutionsRequest,
) (*workflowservice.CountWorkflowExecutionsResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// busyStore is an inventory with many runs; the agent of the first has work and
// is silent.
type busyStore struct {
	fakesite.Inventory // of no store
	runs               int

	mu     sync.Mutex
	passes int
	lost   []inventory.Event
}

func (b *busyStore) grant(i int) inventory.Grant {
	name := fmt.Sprintf("m%03d", i)
	return inventory.Grant{Owner: inventory.Owner{Machine: name, Run: "r-" + name, Epoch: 1}, Workflow: workflows.MachineID(name)}
}

func (b *busyStore) Grants(context.Context) (gs []inventory.Grant, err error) {
	for i := range b.runs {
		gs = append(gs, b.grant(i))
	}
	return gs, nil
}

func (b *busyStore) Workflows(context.Context, inventory.WorkflowFilter) ([]inventory.Workflow, error) {
	return nil, nil
}

func (b *busyStore) Operations(context.Context, inventory.OperationFilter) ([]inventory.Operation, error) {
	return nil, nil
}

func (b *busyStore) Intake(context.Context) (string, error) { return "", nil }

func (b *busyStore) Agent(_ context.Context, o inventory.Owner) (inventory.Agent, error) {
	if o != b.grant(0).Owner {
		return inventory.Agent{}, inventory.ErrNotFound
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.passes++
	return inventory.Agent{Owner: o, Boot: 1}, nil
}

func (b *busyStore) NextAssignment(_ context.Context, o inventory.Owner) (inventory.Assignment, error) {
	return inventory.Assignment{Owner: o, Key: action.Key{Epoch: 1, Attempt: 1}}, nil
}

func (b *busyStore) AppendEvents(_ context.Context, es []inventory.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = append(b.lost, es...)
	return nil
}

func (b *busyStore) reconciler(t *testing.T, tc client.Client) *Reconciler {
	t.Helper()
	began := time.Now()
	up := func() time.Duration { return time.Since(began) }
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	return New(Config{
		Stores: storesOf(b), Temporal: func() (client.Client, bool) { return tc, true }, Guard: guard.New(log), Log: log, Elapsed: up, Up: up,
	}).Reconciler
}

// TestReconcileGivesUpOnAHungTemporal: a pass over 500 grants ends after about
// one time-out, and not after one for each of them.
func TestReconcileGivesUpOnAHungTemporal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &busyStore{runs: 500}
		began := time.Now()
		err := b.reconciler(t, hungTemporal{}).CheckRuns(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(began), reconcileEvery)
	})
}

// listing is a Temporal in which all runs are running. It lists those of each page, or fails if there is none.
type listing struct {
	hungTemporal
	pages [][]string

	mu    sync.Mutex
	asked []string
}

func (l *listing) ListWorkflow(
	_ context.Context,
	q *workflowservice.ListWorkflowExecutionsRequest,
) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	page := len(q.GetNextPageToken())
	if page >= len(l.pages) {
		return nil, serviceerror.NewUnavailable("the visibility store is away")
	}
	out := &workflowservice.ListWorkflowExecutionsResponse{}
	for _, run := range l.pages[page] {
		out.Executions = append(out.Executions, &workflowpb.WorkflowExecutionInfo{
			Execution: &commonpb.WorkflowExecution{RunId: run},
		})
	}
	if page+1 < len(l.pages) {
		out.NextPageToken = make([]byte, page+1)
	}
	return out, nil
}

func (l *listing) DescribeWorkflowExecution(
	_ context.Context,
	_, run string,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, run)
	return &workflowservice.DescribeWorkflowExecutionResponse{
		WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{Status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING},
	}, nil
}

func (*listing) CountWorkflow(
	context.Context,
	*workflowservice.CountWorkflowExecutionsRequest,
) (*workflowservice.CountWorkflowExecutionsResponse, error) {
	return &workflowservice.CountWorkflowExecutionsResponse{}, nil
}

// TestReconcileAsksOnlyForRunsThatTemporalDoesNotList: a request for each of a thousand runs would be most of what Temporal does.
func TestReconcileAsksOnlyForRunsThatTemporalDoesNotList(t *testing.T) {
	var all []string
	for i := range judgeEach + 1 {
		all = append(all, (&busyStore{}).grant(i).Run)
	}
	for name, c := range map[string]struct {
		runs  int
		pages [][]string
		asked []string
	}{
		"all but one are listed": {len(all), [][]string{all[:60], all[61:]}, all[60:61]},
		"the list cannot be had": {len(all), nil, all},
		"few runs":               {judgeEach, nil, all[:judgeEach]},
	} {
		t.Run(name, func(t *testing.T) {
			l := &listing{pages: c.pages}
			b := &busyStore{runs: c.runs}
			require.NoError(t, b.reconciler(t, l).CheckRuns(t.Context()))
			require.ElementsMatch(t, c.asked, l.asked)
		})
	}
}

// TestAgentsAreWatchedWhileTemporalHangs: a lost agent is detected as fast as usual.
func TestAgentsAreWatchedWhileTemporalHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &busyStore{runs: 500}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+2*agentsEvery)
		defer cancel()
		require.NoError(t, b.reconciler(t, hungTemporal{}).Run(ctx))
		b.mu.Lock()
		defer b.mu.Unlock()
		require.GreaterOrEqual(t, b.passes, int(time.Minute/agentsEvery))
		require.Len(t, b.lost, 1)
		require.Equal(t, inventory.EventAgentLost, b.lost[0].Kind)
	})
}

// earlierView answers with outdated grants and open records, like those that a long pass
// read at its start.
type earlierView struct {
	fakesite.Inventory
	grants  []inventory.Grant
	records []inventory.Workflow
	ops     []inventory.Operation
}

func viewNow(t *testing.T, s *sqlite.Store) earlierView {
	t.Helper()
	gs, err := s.Grants.Grants(t.Context())
	require.NoError(t, err)
	ws, err := s.Workflows.Workflows(t.Context(), inventory.WorkflowFilter{Open: true, Limit: MaxOpen})
	require.NoError(t, err)
	ops, err := s.Operations.Operations(t.Context(), inventory.OperationFilter{Open: true, Limit: MaxOpen})
	require.NoError(t, err)
	return earlierView{fakesite.InventoryOf(s), gs, ws, ops}
}

func (v earlierView) Grants(context.Context) ([]inventory.Grant, error) { return v.grants, nil }

func (v earlierView) Workflows(context.Context, inventory.WorkflowFilter) ([]inventory.Workflow, error) {
	return v.records, nil
}

func (v earlierView) Operations(context.Context, inventory.OperationFilter) ([]inventory.Operation, error) {
	return v.ops, nil
}

// TestReconcileLeavesRunsThatEndedDuringThePass: with a thousand runs, many end normally
// between the read of the inventory and the request to Temporal.
func TestReconcileLeavesRunsThatEndedDuringThePass(t *testing.T) {
	for name, endedBefore := range map[string]func(earlierView) earlierView{
		"with its grant":    func(v earlierView) earlierView { return v },
		"without its grant": func(v earlierView) earlierView { v.grants = nil; return v },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.AddMachine("m1", fakesite.MAC)
			o := s.Arm("m1", "r1")
			require.NoError(t, s.Store.Operations.PutOperation(t.Context(), inventory.Operation{
				Run: "o1", ID: "recover/x", Type: inventory.TypeRecover, Name: "x", State: inventory.StateRunning, Started: s.Clock.Now(),
			}))
			s.Temporal.Open("recover/x", "o1")
			r := s.Reconciler
			r.stores = storesOf(endedBefore(viewNow(t, s.Store)))

			require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
			rec, err := s.Store.Workflows.Workflow(t.Context(), "r1")
			require.NoError(t, err)
			rec.State, rec.Phase, rec.Message, rec.Ended = inventory.StateSuccess, inventory.PhaseDone, "installed", s.Clock.Now()
			rec.Seq++
			require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), rec))
			s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, workflows.Outcome{State: inventory.StateSuccess})
			op, err := s.Store.Operations.Operation(t.Context(), "o1")
			require.NoError(t, err)
			op.State, op.Message, op.Ended = inventory.StateSuccess, "all are installed", s.Clock.Now()
			op.Seq++
			require.NoError(t, s.Store.Operations.PutOperation(t.Context(), op))
			s.Temporal.End("o1", enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, nil)

			require.NoError(t, r.CheckRuns(t.Context()))
			require.Zero(t, r.Counts())
			after, err := s.Store.Workflows.Workflow(t.Context(), "r1")
			require.NoError(t, err)
			require.Equal(t, "installed", after.Message)
			require.Empty(t, after.Next)
			again, err := s.Store.Operations.Operation(t.Context(), "o1")
			require.NoError(t, err)
			require.Equal(t, "all are installed", again.Message)
		})
	}
}

// TestReconcileLeavesARunThatIsEnding: the run has released its grant, and its last record
// waits behind the tasks of a thousand other runs.
func TestReconcileLeavesARunThatIsEnding(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
	for _, busy := range []string{"task", "activity"} {
		s.Temporal.Mu.Lock()
		s.Temporal.Runs["r1"].Busy = busy
		s.Temporal.Mu.Unlock()
		require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
		require.Empty(t, s.Temporal.Signals, busy)
		require.Zero(t, s.Reconciler.Counts(), busy)
	}
	s.Temporal.Mu.Lock()
	s.Temporal.Runs["r1"].Busy = ""
	s.Temporal.Mu.Unlock()
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.Equal(t, []string{workflows.SignalEvent}, s.Temporal.Signals, "it waits, and has no grant")
	require.Equal(t, apitypes.Repairs{RunsFenced: 1}, s.Reconciler.Counts())
}

// TestIdleAgentOfARunThatIsBehindIsNotTold: the pump is behind, so the run has not received
// its agent's reports and cannot have assigned more work.
func TestIdleAgentOfARunThatIsBehindIsNotTold(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	idle := func() int {
		s.beats(o, action.Heartbeat{Idle: true})
		require.NoError(t, s.Reconciler.CheckAgents(t.Context()))
		return s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventAgentIdle]
	}
	for range 10 {
		require.Zero(t, idle(), "hello waits for the pump")
		s.Clock.Move(10 * time.Second)
	}
	require.Zero(t, idle())
	require.NotZero(t, s.hears())
	s.Clock.Move(9 * time.Second)
	require.Zero(t, idle(), "it has received a report just now")
	s.Clock.Move(time.Second)
	require.Equal(t, 1, idle())
}

// hears acts as the pump for listening runs, and counts the events.
func (s *site) hears() (n int) {
	s.T.Helper()
	es, err := s.Store.Events.Unsignalled(s.T.Context(), 0, 100)
	require.NoError(s.T, err)
	for _, e := range es {
		require.NoError(s.T, s.Store.Events.MarkSignalled(s.T.Context(), []int64{e.Seq}))
	}
	return len(es)
}

// TestReconcileNamesTheRetryOfTheOperation: the run of an operation ProvisionTogether is not retried alone.
func TestReconcileNamesTheRetryOfTheOperation(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	s.Arm("m1", "r1")
	w, err := s.Store.Workflows.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	w.Input, w.Seq = []byte(`{"machine":"m1","parent":"together/k3s"}`), w.Seq+1
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), w))
	require.NoError(t, s.Store.Operations.PutOperation(t.Context(), inventory.Operation{
		Run: "o1", ID: "together/k3s", Type: inventory.TypeTogether, Name: "k3s", State: inventory.StateRunning, Started: s.Clock.Now(),
	}))
	s.Temporal.Open("together/k3s", "o1")
	s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
	s.Temporal.End("o1", enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	w, err = s.Store.Workflows.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, inventory.StateFailed, w.State)
	require.Equal(t, "ingot together retry k3s", w.Next)
	o, err := s.Store.Operations.Operation(t.Context(), "o1")
	require.NoError(t, err)
	require.Equal(t, inventory.StateFailed, o.State)
	require.Equal(t, "ingot together retry k3s", o.Next)
}
