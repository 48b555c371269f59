package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/ingotmetal/ingot/workflows"
)

// model is the ordered contents of a history.
type model []string

const (
	doSignal   = "signal"
	doReport   = "report" // also a signal
	doActivity = "activity"
	doLocal    = "local"
	doTimer    = "timer"
	doCancel   = "cancel"
	doUpsert   = "upsert"
)

func (m model) signals() (n int) {
	for _, what := range m {
		if what == doSignal || what == doReport {
			n++
		}
	}
	return n
}

func modelOf(ctx context.Context, t *testing.T, c client.Client, id, run string) (m model) {
	t.Helper()
	kinds := map[enumspb.EventType]string{
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:              doSignal,
		enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:                  doActivity,
		enumspb.EVENT_TYPE_MARKER_RECORDED:                          doLocal,
		enumspb.EVENT_TYPE_TIMER_STARTED:                            doTimer,
		enumspb.EVENT_TYPE_TIMER_CANCELED:                           doCancel,
		enumspb.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:        doUpsert,
		enumspb.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED:             "",
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:      "",
		enumspb.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "",
	}
	for _, e := range historyOf(ctx, t, c, id, run).Events {
		what, ok := kinds[e.EventType]
		require.True(t, !ok || what != "", "the bare workflow cannot do %s", e.EventType)
		if a, ok := e.Attributes.(*historypb.HistoryEvent_WorkflowExecutionSignaledEventAttributes); ok &&
			a.WorkflowExecutionSignaledEventAttributes.SignalName == workflows.SignalActionCompleted {
			what = doReport
		}
		if what != "" {
			m = append(m, what)
		}
	}
	return m
}

// count adds the events of the workflow's history, and the tasks for which a worker polled.
func (f *fleet) count(ctx context.Context, t *testing.T, c client.Client, id, run string) {
	t.Helper()
	for _, e := range historyOf(ctx, t, c, id, run).Events {
		f.events++
		// If a signal arrives during a workflow task, the answer to its completion contains the next task, and no worker polls for it.
		if a := e.GetWorkflowTaskStartedEventAttributes(); a != nil && a.RequestId != "request-from-RespondWorkflowTaskCompleted" {
			f.polled++
		}
	}
}

// milestone is a point that a run reaches once.
type milestone struct {
	reached chan struct{}
	reach   func()
}

// newMilestones makes k milestones for each of n runs.
func newMilestones(n, k int) [][]milestone {
	out := make([][]milestone, n)
	for i := range out {
		for range k {
			ch := make(chan struct{})
			out[i] = append(out[i], milestone{ch, sync.OnceFunc(func() { close(ch) })})
		}
	}
	return out
}

// afterTask calls each function when the workflow task has ended during which it was added.
type afterTask struct {
	mu    sync.Mutex
	calls map[string][]func() // by workflow
}

func (a *afterTask) add(workflow string, f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[workflow] = append(a.calls[workflow], f)
}

// intercept watches a worker's requests. The functions are called even if a request fails: its answer may be lost.
func (a *afterTask) intercept(ctx context.Context, method string, request, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	err := invoke(ctx, method, request, reply, c, opts...)
	if r, ok := request.(*workflowservice.RespondWorkflowTaskCompletedRequest); ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		workflow := strings.TrimPrefix(r.ResourceId, "workflow:")
		for _, f := range a.calls[workflow] {
			f()
		}
		delete(a.calls, workflow)
	}
	return err
}

// benchBare runs n workflows with the model's history on the task queue. It returns an error if one of them fails. Its worker
// runs until the test ends: without one, Temporal would forward tasks that are left in the queue during later fleets.
func (s *Site) benchBare(ctx context.Context, t *testing.T, queue string, n int, m model) (fleet, error) {
	t.Helper()
	after := &afterTask{calls: map[string][]func(){}}
	c, err := client.DialContext(ctx, client.Options{
		HostPort: s.Temporal, Logger: silent(), ConnectionOptions: client.ConnectionOptions{
			GrpcCompression: &client.GrpcCompressionNone{},
			DialOptions:     []grpc.DialOption{grpc.WithChainUnaryInterceptor(after.intercept)},
		},
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	w := worker.New(c, queue, worker.Options{ // as in ingot serve
		MaxConcurrentWorkflowTaskPollers: 8, MaxConcurrentActivityTaskPollers: 8, StickyScheduleToStartTimeout: 10 * time.Second,
	})
	told, ended := newMilestones(n, m.signals()), newMilestones(n, m.signals())
	// The last local activity before a signal tells its agent, which sends the signal when the workflow task has ended: an agent
	// of Ingot's reads and carries out its assignment before it reports. A signal without a local activity before it is sent
	// together with the previous one.
	tells, kinds, last, next := make([]int, len(m)), []string{}, -1, 0
	for j, what := range m {
		tells[j] = -1
		switch what {
		case doLocal:
			last = j
		case doSignal, doReport:
			if last >= 0 {
				tells[last] = next
			} else {
				for i := range n {
					told[i][next].reach()
					ended[i][next].reach()
				}
			}
			kinds, last = append(kinds, what), -1
			next++
		}
	}
	nothing := func(context.Context) error { return nil }
	tell := func(ctx context.Context, i, j int) error {
		if j >= 0 {
			told[i][j].reach()
			after.add(activity.GetInfo(ctx).WorkflowExecution.ID, ended[i][j].reach)
		}
		return ctx.Err()
	}
	attr := temporal.NewSearchAttributeKeyKeyword(workflows.AttrPhase)
	bare := func(ctx workflow.Context, i int) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
		cancel := func() {}
		for j, what := range m {
			var err error
			switch what {
			case doSignal, doReport:
				workflow.GetSignalChannel(ctx, "signal").Receive(ctx, nil)
			case doActivity:
				err = workflow.ExecuteActivity(ctx, "nothing").Get(ctx, nil)
			case doLocal:
				err = workflow.ExecuteLocalActivity(ctx, tell, i, tells[j]).Get(ctx, nil)
			case doTimer:
				var timed workflow.Context
				timed, cancel = workflow.WithCancel(ctx)
				workflow.NewTimer(timed, time.Hour)
			case doCancel:
				cancel()
			case doUpsert:
				err = workflow.UpsertTypedSearchAttributes(ctx, attr.ValueSet(strconv.Itoa(j)))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	w.RegisterWorkflowWithOptions(bare, workflow.RegisterOptions{Name: "bare"})
	w.RegisterActivityWithOptions(nothing, activity.RegisterOptions{Name: "nothing"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)

	runs := make([]client.WorkflowRun, n)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range n {
		g.Go(func() (err error) {
			runs[i], err = c.ExecuteWorkflow(gctx, client.StartWorkflowOptions{ID: fmt.Sprintf("%s-%d", queue, i), TaskQueue: queue}, "bare", i)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fleet{}, err
	}
	for i := range n {
		select {
		case <-ended[i][0].reached:
		case <-ctx.Done():
			return fleet{}, ctx.Err()
		}
	}

	out := fleet{cpu: map[string]float64{}}
	spent := s.cpu(t)
	began := time.Now()
	var mu sync.Mutex
	g, gctx = errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error {
			var waits []time.Duration
			for j, what := range kinds {
				select {
				case <-ended[i][j].reached:
				case <-gctx.Done():
					return gctx.Err()
				}
				sent := time.Now()
				if err := c.SignalWorkflow(gctx, runs[i].GetID(), runs[i].GetRunID(), "signal", nil); err != nil {
					return err
				}
				if what == doReport && j+1 < len(kinds) {
					select {
					case <-told[i][j+1].reached:
					case <-gctx.Done():
						return gctx.Err()
					}
					waits = append(waits, time.Since(sent))
				}
			}
			mu.Lock()
			out.waits = append(out.waits, waits...)
			mu.Unlock()
			return runs[i].Get(gctx, nil)
		})
	}
	if err := g.Wait(); err != nil {
		return fleet{}, err
	}
	out.wall = time.Since(began)
	out.since(s.cpu(t), spent)
	delete(out.cpu, "ingot serve") // idle
	for _, r := range runs {
		out.count(ctx, t, c, r.GetID(), r.GetRunID())
	}
	return out, nil
}
