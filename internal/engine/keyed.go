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

// A keyed request is a request with an Idempotency-Key. If the server is killed after the request took effect in Temporal
// and before its answer was stored, a repetition must not take effect again. Therefore each run has a memo with the id of
// the request that started it. Signals and updates carry the id of their request, too: Temporal accepts each id only once.

// prepareKeyed stores, for StartedBy, the workflow id that the keyed request of ctx is about to start, and the newest run that
// has this workflow id already. It returns the memo of the new run. If ctx has no keyed request, it does nothing and returns nil.
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

// takeKeyed is called after a workflow could not be started because a run with its id exists; open is the id of that run. If an earlier
// attempt of the keyed request of ctx has started that run, takeKeyed returns its run id and input. Otherwise the error is a BusyError.
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

// isOf reports whether the run that info describes was started by the keyed request with the id key.
func (r *Runs) isOf(info *workflowpb.WorkflowExecutionInfo, key string) bool {
	p, ok := info.GetMemo().GetFields()[workflows.MemoKeyedRequest]
	if !ok {
		return false
	}
	var of string
	err := r.converter.FromPayload(p, &of)
	return err == nil && of == key
}

// firstRun returns the run id of the first execution of a workflow. It stays the same when the workflow continues as
// new.
func firstRun(info *workflowpb.WorkflowExecutionInfo) string {
	return cmp.Or(info.GetFirstRunId(), info.GetExecution().GetRunId())
}

// StartedBy returns the run that a keyed request without a stored answer has started, or "" if it has started none. The
// two cases cannot be told apart if another run of the workflow id was started since, or if Temporal no longer has a
// run. The error is then inventory.ErrConflict: the request may have been carried out and must not be carried out twice.
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
			Err: fmt.Errorf("an earlier attempt of this request got no final answer, and Temporal no longer has a run of %s: check whether "+
				"the request was carried out before you send it with another Idempotency-Key: %w", k.Workflow, inventory.ErrConflict),
			Next: "ingot workflow list",
		}
	}
	return "", inventory.Hint{
		Err: fmt.Errorf("an earlier attempt of this request got no final answer (only 5xx, or none), and run %s of %s was started "+
			"since: check whether the request was carried out before you send it with another Idempotency-Key: %w", last, k.Workflow,
			inventory.ErrConflict),
		Next: "ingot workflow list",
	}
}

// Recall remembers an open run that an earlier process has started for a machine, and that has no record yet. From then on,
// Find returns this run. A client that has repeated its request needs this, because it reads the run next.
func (r *Runs) Recall(ctx context.Context, id, run string) error {
	machine, ok := strings.CutPrefix(id, workflows.MachineID(""))
	if !ok {
		return nil
	}
	if _, err := r.Find(ctx, run); !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	return r.ask(ctx, func(ctx context.Context, tc client.Client) error {
		d, err := tc.DescribeWorkflowExecution(ctx, id, run)
		if err != nil {
			return fmt.Errorf("asking Temporal for run %q: %w", run, err)
		}
		info := d.GetWorkflowExecutionInfo()
		if info.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING { // otherwise the run has ended, and its record was deleted
			r.remember(inventory.Workflow{
				Run: run, ID: id, Type: info.GetType().GetName(), Machine: machine, Started: info.GetStartTime().AsTime(),
			})
		}
		return nil
	})
}

// signalPoweredOn sends a signal to a run: its machine was switched on. Temporal accepts the signal once for each keyed request.
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
