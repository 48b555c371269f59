package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// A keyed request has an Idempotency-Key. Its effect in Temporal can be committed without its answer being stored: the
// server may be killed in between. A run is therefore found again by a memo with the id of the request, and Temporal
// itself counts the id once for a signal and an update.

// prepareKeyed records that the keyed request of ctx is about to start a workflow, and the newest run of its id, by
// which StartedBy finds out whether it was started. It returns the memo of the new run. Without a keyed request it does
// nothing.
func (r *Runs) prepareKeyed(ctx context.Context, tc client.Client, id string) (map[string]any, error) {
	key := inventory.KeyedRequestOf(ctx)
	if key == "" {
		return nil, nil
	}
	before, err := newest(ctx, tc, id)
	if err != nil {
		return nil, err
	}
	if err := r.keyed.SetKeyedWorkflow(ctx, key, id, before.GetExecution().GetRunId()); err != nil {
		return nil, err
	}
	return map[string]any{workflows.MemoKeyedRequest: key}, nil
}

// takeKeyed returns the open run that prevented a start if the keyed request of ctx has started that run, because
// Temporal took an earlier attempt late. Otherwise the error is a BusyError.
func (r *Runs) takeKeyed(
	ctx context.Context, tc client.Client, id, open string, input json.RawMessage,
) (string, json.RawMessage, error) {
	if key := inventory.KeyedRequestOf(ctx); key != "" {
		info, err := newest(ctx, tc, id)
		if err != nil {
			return "", nil, err
		}
		if r.isOf(info, key) {
			return firstRun(info), input, nil
		}
	}
	return "", nil, &BusyError{id, open}
}

// isOf reports whether the keyed request has started a run.
func (r *Runs) isOf(info *workflowpb.WorkflowExecutionInfo, key string) bool {
	p, ok := info.GetMemo().GetFields()[workflows.MemoKeyedRequest]
	if !ok {
		return false
	}
	var of string
	err := r.converter.FromPayload(p, &of)
	return err == nil && of == key
}

// firstRun is the run id by which a workflow that continues as new is known.
func firstRun(info *workflowpb.WorkflowExecutionInfo) string {
	return cmp.Or(info.GetFirstRunId(), info.GetExecution().GetRunId())
}

// StartedBy returns the run that a keyed request started, whose answer was lost, or "" if it started none. If
// another run of the same workflow id was started since, the error is inventory.ErrConflict: an order that may have been
// carried out is not carried out a second time.
func (r *Runs) StartedBy(ctx context.Context, k inventory.KeyedRequest) (run string, err error) {
	tc, err := r.Client()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
	defer cancel()
	info, err := newest(ctx, tc, k.Workflow)
	if err != nil {
		return "", err
	}

	last := info.GetExecution().GetRunId()
	switch {
	case r.isOf(info, k.ID):
		return firstRun(info), nil
	case last == k.Before:
		return "", nil
	case last == "":
		return "", inventory.Hint{
			Err: fmt.Errorf("this request has no final answer, and Temporal no longer knows a run of %s: look whether the request "+
				"was carried out before you send it with another key: %w", k.Workflow, inventory.ErrConflict),
			Next: "ingot workflow list",
		}
	}
	return "", inventory.Hint{
		Err: fmt.Errorf("this request has no final answer (it was lost, or 5xx), and run %s of %s was started since: "+
			"look whether the request was carried out before you send it with another key: %w", last, k.Workflow, inventory.ErrConflict),
		Next: "ingot workflow list",
	}
}

// Recall remembers a machine's run that was started before this process was, if the run has no record yet: the client
// that repeats its request asks for the run next.
func (r *Runs) Recall(ctx context.Context, id, run string) error {
	machine, ok := strings.CutPrefix(id, workflows.MachineID(""))
	if !ok {
		return nil
	}
	if _, err := r.Find(ctx, run); !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	tc, err := r.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
	defer cancel()
	d, err := tc.DescribeWorkflowExecution(ctx, id, run)
	if err != nil {
		return fmt.Errorf("asking for run %q: %w", run, err)
	}

	info := d.GetWorkflowExecutionInfo()
	if info.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return nil // its record was deleted
	}
	r.remember(inventory.Workflow{
		Run: run, ID: id, Type: info.GetType().GetName(), Machine: machine, Started: info.GetStartTime().AsTime(),
	})
	return nil
}

// signalPoweredOn signals that a machine was switched on, once for each keyed request.
func (r *Runs) signalPoweredOn(ctx context.Context, tc client.Client, w inventory.Workflow) error {
	key := inventory.KeyedRequestOf(ctx)
	if key == "" {
		return tc.SignalWorkflow(ctx, w.ID, w.Run, workflows.SignalPoweredOn, nil)
	}
	_, err := tc.WorkflowService().SignalWorkflowExecution(ctx, &workflowservice.SignalWorkflowExecutionRequest{
		Namespace:         r.namespace,
		WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: w.ID, RunId: w.Run},
		SignalName:        workflows.SignalPoweredOn,
		Identity:          "ingot-api",
		RequestId:         key,
	})
	return err
}
