package workflows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/history/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// requests collects the activities that a workflow requests.
type requests struct {
	interceptor.WorkerInterceptorBase
	installed []activities.InstalledRequest
	records   []inventory.Operation
	queues    map[string]string // task queue by activity type
}

func (r *requests) InterceptWorkflow(
	_ workflow.Context,
	next interceptor.WorkflowInboundInterceptor,
) interceptor.WorkflowInboundInterceptor {
	return &inbound{WorkflowInboundInterceptorBase: interceptor.WorkflowInboundInterceptorBase{Next: next}, r: r}
}

type inbound struct {
	interceptor.WorkflowInboundInterceptorBase
	r *requests
}

func (i *inbound) Init(next interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&outbound{WorkflowOutboundInterceptorBase: interceptor.WorkflowOutboundInterceptorBase{Next: next}, r: i.r})
}

type outbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	r *requests
}

func (o *outbound) ExecuteActivity(ctx workflow.Context, kind string, args ...any) workflow.Future {
	if o.r.queues == nil {
		o.r.queues = map[string]string{}
	}
	o.r.queues[kind] = workflow.GetActivityOptions(ctx).TaskQueue
	return o.Next.ExecuteActivity(ctx, kind, args...)
}

func (o *outbound) ExecuteLocalActivity(ctx workflow.Context, kind string, args ...any) workflow.Future {
	switch x := args[0].(type) {
	case inventory.Operation:
		o.r.records = append(o.r.records, x)
	case activities.InstalledRequest:
		o.r.installed = append(o.r.installed, x)
	}
	return o.Next.ExecuteLocalActivity(ctx, kind, args...)
}

// TestResetKeepsTheTimeOfTheStart: Temporal copies the start event into the execution that a reset
// creates, and runs the first task now. Everything that the operation installed before the reset
// must count as installed.
func TestResetKeepsTheTimeOfTheStart(t *testing.T) {
	h := readHistory(t, "testdata/histories/recover-success.json")
	for _, e := range h.Events[1:] {
		e.EventTime = timestamppb.New(e.EventTime.AsTime().Add(time.Hour))
	}
	seen := &requests{}
	require.NoError(
		t,
		intercepted(t, seen).ReplayWorkflowHistoryWithOptions(nil, h, worker.ReplayWorkflowHistoryOptions{OriginalExecution: execution(t, h)}),
	)
	require.NotEmpty(t, seen.installed)
	for _, q := range seen.installed {
		require.WithinDuration(t, h.Events[0].EventTime.AsTime(), q.Since, 0)
	}
	require.Equal(t, workflows.WaitQueue, seen.queues["AwaitRun"], "what waits takes no place from what acts")
}

// TestResetOfAContinuedRecovery: the record of the first execution may be final and would not
// change any more. The reset execution has its own record.
func TestResetOfAContinuedRecovery(t *testing.T) {
	for name, c := range map[string]struct {
		original, record string
	}{
		"continued": {original: "this", record: "first"},
		"reset":     {original: "another", record: "this"},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := converter.GetDefaultDataConverter().
				ToPayloads(contract.RecoverInput{Name: "rack", Machines: []string{"m1"}, Continued: &contract.RecoverState{
					Run: "first", Seq: 7, Groups: []int{1}, Machines: []contract.RecoverMachine{{Machine: "m1", State: inventory.StepPending}},
				}})
			require.NoError(t, err)
			seen := &requests{}
			h := &history.History{Events: []*history.HistoryEvent{
				{
					EventId:   1,
					EventType: enums.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
					EventTime: timestamppb.Now(),
					Attributes: &history.HistoryEvent_WorkflowExecutionStartedEventAttributes{
						WorkflowExecutionStartedEventAttributes: &history.WorkflowExecutionStartedEventAttributes{
							WorkflowType: &commonpb.WorkflowType{Name: inventory.TypeRecover}, WorkflowId: contract.RecoverID("rack"), Input: in,
							TaskQueue: &taskqueuepb.TaskQueue{Name: workflows.TaskQueue}, OriginalExecutionRunId: c.original, ContinuedExecutionRunId: "before",
						},
					},
				},
				{
					EventId:   2,
					EventType: enums.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
					EventTime: timestamppb.Now(),
					Attributes: &history.HistoryEvent_WorkflowTaskScheduledEventAttributes{
						WorkflowTaskScheduledEventAttributes: &history.WorkflowTaskScheduledEventAttributes{
							TaskQueue: &taskqueuepb.TaskQueue{Name: workflows.TaskQueue},
						},
					},
				},
				{
					EventId:   3,
					EventType: enums.EVENT_TYPE_WORKFLOW_TASK_STARTED,
					EventTime: timestamppb.Now(),
					Attributes: &history.HistoryEvent_WorkflowTaskStartedEventAttributes{
						WorkflowTaskStartedEventAttributes: &history.WorkflowTaskStartedEventAttributes{ScheduledEventId: 2},
					},
				},
				{
					EventId:   4,
					EventType: enums.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
					EventTime: timestamppb.Now(),
					Attributes: &history.HistoryEvent_WorkflowTaskCompletedEventAttributes{
						WorkflowTaskCompletedEventAttributes: &history.WorkflowTaskCompletedEventAttributes{ScheduledEventId: 2, StartedEventId: 3},
					},
				},
			}}
			// The history ends before the first record: the replay requests the record and waits.
			require.NoError(t, intercepted(t, seen).ReplayWorkflowHistoryWithOptions(nil, h, worker.ReplayWorkflowHistoryOptions{
				OriginalExecution: workflow.Execution{ID: contract.RecoverID("rack"), RunID: "this"},
			}))
			require.NotEmpty(t, seen.records)
			require.Equal(t, c.record, seen.records[0].Run)
			require.Equal(t, c.record == "first", seen.records[0].Execution == "this")
		})
	}
}

func intercepted(t *testing.T, i interceptor.WorkerInterceptor) worker.WorkflowReplayer {
	t.Helper()
	r, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{Interceptors: []interceptor.WorkerInterceptor{i}})
	require.NoError(t, err)
	workflows.Register(r)
	return r
}

// TestResetOfAGenesisInstallsNothingAgain resets a finished Genesis to the read of its table, to
// each task that started a child, and to its end. It checks the state and repeats nothing. A reset
// to before the read of the table is like a new Genesis, which is refused.
func TestResetOfAGenesisInstallsNothingAgain(t *testing.T) {
	h := newHouse(t)
	var first *workflows.Tape
	var began time.Time
	h.before = func(env *workflows.Environment) {
		first, began = workflows.NewTape(env, "before"), env.Now()
	}
	_, err := h.run(workflows.GenesisInput{Name: "home"})
	require.NoError(t, err)
	require.Equal(t, wantEffects, h.did)
	points := []int{first.Index("ReadLab"), len(first.Ended)}
	for i, e := range first.Ended {
		if e.Name == "Installed" || e.Name == "MovedTo" {
			points = append(points, i) // the task that started a child is repeated
		}
	}
	require.Len(t, points, 2+len(wantEffects)-1)
	for _, to := range points {
		h.before = func(env *workflows.Environment) {
			env.SetStartTime(began) // a reset copies the start event
			workflows.NewTape(env, fmt.Sprint("after-", to)).ResetTo(first, to)
		}
		o, err := h.run(workflows.GenesisInput{Name: "home"})
		require.NoError(t, err, "after %d activities", to)
		require.Equal(t, allDone(), states(o))
		require.Equal(t, wantEffects, h.did, "after %d activities", to)
	}
}

// TestChildStartsInTheTaskThatChecks: a reset to a task repeats its local activities, but not
// activities that ended before it. A local activity of the task that starts a child must therefore
// check whether the child was already started.
func TestChildStartsInTheTaskThatChecks(t *testing.T) {
	for _, name := range []string{"recover-success", "together-success", "genesis-success", "genesis-undone"} {
		h := readHistory(t, "testdata/histories/"+name+".json")
		checks := map[int64]int{} // by workflow task
		children := 0
		for _, e := range h.Events {
			if m := e.GetMarkerRecordedEventAttributes(); m.GetMarkerName() == "LocalActivity" {
				var la struct{ ActivityType string }
				require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(m.Details["data"], &la))
				if la.ActivityType == "Installed" || la.ActivityType == "MovedTo" {
					checks[m.WorkflowTaskCompletedEventId]++
				}
			}
			child := e.GetStartChildWorkflowExecutionInitiatedEventAttributes()
			if child == nil || child.WorkflowType.Name == inventory.TypeBMCJob {
				continue
			}
			children++
			checks[child.WorkflowTaskCompletedEventId]--
			require.GreaterOrEqual(t, checks[child.WorkflowTaskCompletedEventId], 0, "%s: %s was started without a check", name, child.WorkflowId)
		}
		require.GreaterOrEqual(t, children, 2)
	}
}
