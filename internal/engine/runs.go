package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// Runs starts and changes runs, and finds their records. It remembers each run that it has started until the run has
// written its first record, which takes a while if the worker is busy or unavailable.
type Runs struct {
	store     WorkflowStore
	keyed     KeyedRequestStore
	temporal  Temporal
	namespace string
	converter converter.DataConverter
	now       func() time.Time
	changed   *Notifier // notified when a run is started

	mu      sync.Mutex
	fresh   map[string]inventory.Workflow // runs without a record, by run id
	started map[string]bool               // machines whose runs this process has started since the last TakeStarted
}

const (
	maxFresh = 1000
	freshFor = time.Hour
)

// A Start is a request to start a workflow.
type Start struct {
	ID, Type          string
	Machine, Template string // "" for an operation
	Image             string
	Input             any
	// Once means that at most one run of this workflow id may ever exist. If one exists, open or ended, the error is a
	// BusyError.
	Once bool
}

// ErrUncertain means that Temporal did not answer a request to start a workflow. The workflow may or may not have
// started.
var ErrUncertain = errors.New("Temporal did not answer, and the run may have started: check before you start it again")

// A BusyError means that a workflow was not started, because a run with its workflow id is open. With Start.Once, an
// ended run has the same effect.
type BusyError struct{ ID, Run string }

func (b *BusyError) Error() string {
	return fmt.Sprintf("workflow %s already exists as run %s", b.ID, b.Run)
}

// Is reports whether target is inventory.ErrConflict.
func (b *BusyError) Is(target error) bool { return target == inventory.ErrConflict }

// Client returns the Temporal client, or inventory.ErrUnavailable while Temporal is not ready.
func (r *Runs) Client() (client.Client, error) {
	if tc, ok := r.temporal(); ok {
		return tc, nil
	}
	return nil, inventory.Hint{
		Err: fmt.Errorf("workflows cannot be started or changed until Temporal is back; "+
			"inventory, DHCP and metadata work without Temporal: %w", inventory.ErrUnavailable),
		Next: "ingot status",
	}
}

// ask calls do with the Temporal client and a context that ends after TemporalTimeout.
func (r *Runs) ask(ctx context.Context, do func(ctx context.Context, tc client.Client) error) error {
	tc, err := r.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
	defer cancel()
	return do(ctx, tc)
}

// Execute starts a workflow and returns its run id and its input as JSON. If a run with the workflow id is open, the
// error is a BusyError; with Once, also if such a run has ended. If Temporal does not answer, the error is ErrUncertain.
func (r *Runs) Execute(ctx context.Context, w Start) (run string, input json.RawMessage, err error) {
	tc, err := r.Client()
	if err != nil {
		return "", nil, err
	}
	input, err = json.Marshal(w.Input)
	if err != nil {
		return "", nil, fmt.Errorf("encoding the input of %q: %w", w.ID, err)
	}
	var attrs []temporal.SearchAttributeUpdate
	if w.Machine != "" {
		attrs = append(attrs, temporal.NewSearchAttributeKeyKeyword(workflows.AttrMachine).ValueSet(w.Machine))
	}
	if w.Template != "" {
		attrs = append(attrs, temporal.NewSearchAttributeKeyKeyword(workflows.AttrTemplate).ValueSet(w.Template))
	}

	ctx, cancel := context.WithTimeout(ctx, 2*TemporalTimeout)
	defer cancel()
	memo, err := r.prepareKeyed(ctx, tc, w.ID)
	if err != nil {
		return "", nil, err
	}
	reuse := enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
	if w.Once {
		reuse = enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
	}
	handle, err := tc.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:        w.ID,
		TaskQueue: workflows.TaskQueue,
		// Both of these are needed: otherwise the SDK returns the open run instead of an error.
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		WorkflowIDReusePolicy:                    reuse,
		TypedSearchAttributes:                    temporal.NewSearchAttributes(attrs...),
		Memo:                                     memo,
		// A worker in this process gets the first workflow task with the answer, and does not have to poll for it.
		EnableEagerStart: w.Machine != "",
	}, w.Type, w.Input)
	if busy, ok := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](err); ok {
		return r.takeKeyed(ctx, tc, w.ID, busy.RunId, input)
	}
	if isAway(err) {
		return "", nil, inventory.Hint{Err: fmt.Errorf("starting %q: %w: %w", w.ID, ErrUncertain, err), Next: "ingot workflow list --open"}
	}
	if err != nil {
		return "", nil, fmt.Errorf("starting %q: %w", w.ID, err)
	}

	return handle.GetRunID(), input, nil
}

// Input reads the input of a run from Temporal's history and decodes it into in, a pointer.
func (r *Runs) Input(ctx context.Context, id, run string, in any) error {
	return r.ask(ctx, func(ctx context.Context, tc client.Client) error {
		first, err := tc.GetWorkflowHistory(ctx, id, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT).Next()
		if err != nil {
			return fmt.Errorf("reading the input of run %q: %w", run, err)
		}
		return r.converter.FromPayloads(first.GetWorkflowExecutionStartedEventAttributes().GetInput(), in)
	})
}

// Start starts a run of a machine, remembers it, and returns its run id. It returns the errors of Execute.
func (r *Runs) Start(ctx context.Context, w Start) (run string, err error) {
	began := r.now()
	run, input, err := r.Execute(ctx, w)
	if busy, ok := errors.AsType[*BusyError](err); ok && !w.Once && r.awaitClosed(ctx, busy) {
		run, input, err = r.Execute(ctx, w)
	}
	if err != nil {
		return "", err
	}

	r.remember(inventory.Workflow{
		Run: run, ID: w.ID, Type: w.Type, Machine: w.Machine, Template: w.Template, Image: w.Image, Input: input, Started: began,
		By: inventory.StartedBy(input),
	})
	return run, nil
}

// awaitClosed waits until Temporal closes a run whose record is already final, which takes a moment. It returns false
// if the record is not final or Temporal does not close the run in time.
func (r *Runs) awaitClosed(ctx context.Context, busy *BusyError) bool {
	record, err := r.store.Workflow(ctx, busy.Run)
	if err != nil || !inventory.Final(record.State) {
		return false
	}
	return r.ask(ctx, func(ctx context.Context, tc client.Client) error {
		_ = tc.GetWorkflow(ctx, busy.ID, busy.Run).Get(ctx, nil) // the result of the run does not matter
		return ctx.Err()
	}) == nil
}

// remember keeps a run that has no record yet in memory. The caller sets the ids and Started of the run; remember sets the state.
func (r *Runs) remember(w inventory.Workflow) {
	w.State, w.Phase, w.Message = inventory.StatePreparing, inventory.PhasePlan, "waiting for a worker"
	w.Actions, w.Updated = []inventory.ActionRecord{}, w.Started
	defer r.changed.Notify()
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.fresh, func(_ string, old inventory.Workflow) bool {
		return w.Started.Sub(old.Started) > freshFor
	})
	if len(r.fresh) < maxFresh {
		r.fresh[w.Run] = w
	}
	r.started[w.Machine] = true
}

// TakeStarted returns the machines whose runs this process has started since the last call.
func (r *Runs) TakeStarted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := slices.Collect(maps.Keys(r.started))
	clear(r.started)

	return names
}

// Forget removes a run from memory. It is called when the record of the run exists.
func (r *Runs) Forget(run string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.fresh, run)
}

// Unrecorded returns, by machine, the newest run in memory, which may have no record yet. BMC jobs are left out.
func (r *Runs) Unrecorded() map[string]inventory.Workflow {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]inventory.Workflow{}
	for _, w := range r.fresh {
		old, ok := out[w.Machine]
		if w.Type != inventory.TypeBMCJob && (!ok || w.Started.After(old.Started)) {
			out[w.Machine] = w
		}
	}

	return out
}

// UnrecordedWithID returns the newest run in memory with this workflow id, or false if there is none. The run may have
// no record yet.
func (r *Runs) UnrecordedWithID(id string) (newest inventory.Workflow, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.fresh {
		if w.ID == id && (!ok || w.Started.After(newest.Started)) {
			newest, ok = w, true
		}
	}
	return newest, ok
}

// Find returns the record of a run. For a run in memory that has no record yet, it returns what is known about it.
func (r *Runs) Find(ctx context.Context, run string) (inventory.Workflow, error) {
	w, err := r.store.Workflow(ctx, run)
	switch {
	case err == nil:
		r.Forget(run)
		return w, nil
	case !errors.Is(err, inventory.ErrNotFound):
		return w, err
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.fresh[run]; ok {
		return w, nil
	}
	return w, inventory.Hint{
		Err: fmt.Errorf("workflow run %q: %w", run, inventory.ErrNotFound), Next: "ingot workflow list",
	}
}

// Latest returns the run that determines the state of a machine: the open run or, if none is open, the latest run that
// installed or wiped the machine.
func (r *Runs) Latest(ctx context.Context, machine string) (inventory.Workflow, error) {
	w, err := r.store.LatestWorkflow(ctx, machine)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return w, err
	}
	f, ok := r.Unrecorded()[machine]
	if !ok || err == nil && !f.Started.After(w.Started) {
		return w, err
	}
	if stored, err := r.store.Workflow(ctx, f.Run); err == nil {
		r.Forget(f.Run)
		if inventory.Final(stored.State) && !stored.IsOrder() {
			return w, err
		}
		return stored, nil
	}

	return f, nil
}

// Cancel requests the cancellation of a run. It returns nil if the run has ended.
func (r *Runs) Cancel(ctx context.Context, id, run string) error {
	tc, err := r.Client()
	if err == nil {
		err = cancel(ctx, tc, id, run)
	}
	return err
}

// CancelOperation requests the cancellation of an operation's current execution.
func (r *Runs) CancelOperation(ctx context.Context, o inventory.Operation) error {
	tc, err := r.Client()
	if err != nil {
		return err
	}
	if err := cancel(ctx, tc, o.ID, executionOf(o)); err != nil {
		return err
	}

	ctx, stop := context.WithTimeout(ctx, TemporalTimeout)
	defer stop()
	d, err := tc.DescribeWorkflowExecution(ctx, o.ID, executionOf(o))
	if isNotFound(err) {
		return nil
	}
	if err == nil && d.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
		// The execution had continued as new before the request, and the record does not name the new execution yet.
		return cancel(ctx, tc, o.ID, "")
	}

	return err
}

// ReportPoweredOn tells a run, by a signal, that its machine was switched on by hand.
func (r *Runs) ReportPoweredOn(ctx context.Context, w inventory.Workflow) error {
	return r.ask(ctx, func(ctx context.Context, tc client.Client) error {
		if err := r.signalPoweredOn(ctx, tc, w); err != nil {
			return fmt.Errorf("signalling to run %q that the power is on: %w", w.Run, err)
		}
		return nil
	})
}

// Decide sends an operator's decision to a run. It uses a Temporal update, so that the operator gets an error for an
// invalid decision. show is the command that shows the run, for error messages.
func (r *Runs) Decide(ctx context.Context, id, run string, d contract.Decision, show string) error {
	return r.update(ctx, id, run, workflows.UpdateDecide, d, fmt.Sprintf("deciding question %q of run %q", d.Question, run), show)
}

// SetOperationPaused pauses the current execution of an operation, or lets it go on. show is the command that shows the operation,
// for error messages.
func (r *Runs) SetOperationPaused(ctx context.Context, o inventory.Operation, p contract.PauseOrder, show string) error {
	what := fmt.Sprintf("pausing or resuming run %q", o.Run)
	err := r.update(ctx, o.ID, executionOf(o), workflows.UpdatePause, p, what, show)
	if isNotFound(err) {
		// The execution has continued as new, and the record may not name the new execution yet.
		err = r.update(ctx, o.ID, "", workflows.UpdatePause, p, what, show)
	}
	return err
}

// update sends an update to a run and waits until it is handled. what describes the update, and show is the command that shows the
// run; both are for error messages.
func (r *Runs) update(ctx context.Context, id, run, name string, arg any, what, show string) error {
	tc, err := r.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
	defer cancel()
	h, err := tc.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		// Temporal accepts an update id once per run. For "" the SDK creates an id.
		UpdateID:   inventory.KeyedRequestOf(ctx),
		WorkflowID: id, RunID: run, UpdateName: name, Args: []any{arg},
		WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err == nil {
		err = h.Get(ctx, nil)
	}

	var refused *temporal.ApplicationError
	var late *client.WorkflowUpdateServiceTimeoutOrCanceledError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return inventory.Hint{Err: inventory.Invalid("", "", "%s", refused.Message()), Next: show}
	case ctx.Err() != nil || errors.As(err, &late):
		return inventory.Hint{Err: fmt.Errorf("no worker processed the request within %s; "+
			"check whether it was accepted before you send it again: %w", TemporalTimeout, inventory.ErrUnavailable), Next: show}
	}

	return fmt.Errorf("%s: %w", what, err)
}

// DecideOperation sends an operator's decision to the current execution of an operation, as Decide does to a run.
func (r *Runs) DecideOperation(ctx context.Context, o inventory.Operation, d contract.Decision, show string) error {
	return r.Decide(ctx, o.ID, executionOf(o), d, show)
}
