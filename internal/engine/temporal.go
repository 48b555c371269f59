package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// Temporal returns a connected client, or false while Temporal is not ready.
type Temporal func() (client.Client, bool)

// TemporalTimeout limits the time of a request to Temporal. It also limits the update with an operator's decision,
// which a worker must handle.
const TemporalTimeout = 5 * time.Second

// askedAtOnce limits the parallel requests to Temporal.
const askedAtOnce = 16

// isNotFound reports whether err is Temporal's NotFound. Temporal returns it for an unknown run, and for a signal or
// cancellation of a run that has ended.
func isNotFound(err error) bool {
	var gone *serviceerror.NotFound
	return errors.As(err, &gone)
}

// isAway reports whether Temporal could not be reached or did not answer in time.
func isAway(err error) bool {
	var unavailable *serviceerror.Unavailable
	var late *serviceerror.DeadlineExceeded
	var cancelled *serviceerror.Canceled

	return errors.As(err, &unavailable) || errors.As(err, &late) || errors.As(err, &cancelled) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// OpenRuns lists the running workflows of Ingot's task queue. Temporal's list may be some seconds old.
func OpenRuns(ctx context.Context, tc client.Client) (all []*workflowpb.WorkflowExecutionInfo, err error) {
	query := &workflowservice.ListWorkflowExecutionsRequest{
		Query: fmt.Sprintf("TaskQueue = '%s' AND ExecutionStatus = 'Running'", workflows.TaskQueue),
	}
	for {
		ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
		page, err := tc.ListWorkflow(ctx, query)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("listing open workflows: %w", err)
		}
		all = append(all, page.GetExecutions()...)
		if query.NextPageToken = page.GetNextPageToken(); len(query.NextPageToken) == 0 {
			return all, nil
		}
	}
}

// execution is the state of a run in Temporal.
type execution struct {
	known   bool
	status  enumspb.WorkflowExecutionStatus
	resting bool // running, with neither a workflow task nor an activity pending
}

func (e execution) String() string {
	if !e.known {
		return "unknown"
	}
	return e.status.String()
}

// describe returns the state of a run in Temporal. If Temporal is healthy but does not know the run, known is false. In
// all other cases without a state, describe returns an error.
func describe(ctx context.Context, tc client.Client, id, run string) (execution, error) {
	ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
	defer cancel()
	d, err := tc.DescribeWorkflowExecution(ctx, id, run)
	if isNotFound(err) {
		if _, err := tc.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
			return execution{}, fmt.Errorf("asking Temporal for its health: %w", err)
		}
		return execution{}, nil
	}
	if err != nil {
		return execution{}, fmt.Errorf("asking Temporal for run %q of workflow %q: %w", run, id, err)
	}

	status := d.GetWorkflowExecutionInfo().GetStatus()
	resting := status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING &&
		d.GetPendingWorkflowTask() == nil && len(d.GetPendingActivities()) == 0

	return execution{true, status, resting}, nil
}

// newest returns the newest run of a workflow id, or nil if there is none.
func newest(ctx context.Context, tc client.Client, id string) (*workflowpb.WorkflowExecutionInfo, error) {
	d, err := tc.DescribeWorkflowExecution(ctx, id, "")
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking Temporal for the newest run of workflow %q: %w", id, err)
	}
	return d.GetWorkflowExecutionInfo(), nil
}

// cancel requests the cancellation of a run. It returns nil if the run has ended; the Reconciler then repairs the
// record if necessary.
func cancel(ctx context.Context, tc client.Client, id, run string) error {
	ctx, stop := context.WithTimeout(ctx, TemporalTimeout)
	defer stop()
	err := tc.CancelWorkflow(ctx, id, run)
	if isNotFound(err) {
		return nil
	}
	return err
}

// executionOf returns the run id of an operation's current execution. A recovery (Recover) continues as new
// when its history becomes too long. The Run of its record is always the run id of the first execution.
func executionOf(o inventory.Operation) string { return cmp.Or(o.Execution, o.Run) }
