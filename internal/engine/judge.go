package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// judgeGrant ends the grant of a run that has ended, and repairs the record of the run. A run releases its grant before
// Temporal closes the run. So if Temporal reports that the run has ended, and the grant is still there when it is read
// afterwards, the run will never release it.
func (r *Reconciler) judgeGrant(ctx context.Context, tc client.Client, g inventory.Grant) error {
	e, err := describe(ctx, tc, g.Workflow, g.Run)
	if err != nil || !r.hasEnded(g.Run, e) {
		return err
	}
	now, err := r.stores.Grants.Grant(ctx, g.Machine)
	if err != nil {
		return err
	}

	if now.Owner == g.Owner {
		if err := r.stores.Grants.EndGrant(ctx, g.Owner); err != nil {
			return fmt.Errorf("ending the grant of machine %q: %w", g.Machine, err)
		}
		r.log.With(g.LogKeys(g.Boot)...).Warn("ended the grant of a run that had already ended", "as", e.String())
		r.repairs.count(func(c *apitypes.Repairs) { c.GrantsEnded++ })
	}

	return r.repair(ctx, tc, g.Run, e)
}

// judgeRecord repairs the record of a run that has ended. It also sends a signal to an open run that has
// lost its grant: the run would otherwise find out only at its next side effect or deadline. It sends no
// signal to a run that waits for the operator, or to a run with epoch 0, which never had a grant.
//
// A run that is about to end has released its grant, too. But until Temporal closes the run, a workflow
// task or an activity of it is pending. Therefore the grant is read first, and Temporal is asked
// afterwards: if the run then has no grant and nothing pending, it waits for events that cannot come.
func (r *Reconciler) judgeRecord(ctx context.Context, tc client.Client, w inventory.Workflow) error {
	g, err := r.stores.Grants.Grant(ctx, w.Machine)
	if err != nil {
		return err
	}
	e, err := describe(ctx, tc, w.ID, w.Run)
	switch {
	case err != nil:
		return err
	case r.hasEnded(w.Run, e):
		return r.repair(ctx, tc, w.Run, e)
	case !e.resting || g.Run == w.Run || w.Epoch == 0 || w.Phase == inventory.PhaseWaiting:
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
	defer cancel()
	lost := workflows.Event{Kind: r.lostGrantKind(w.Run), Epoch: w.Epoch}
	if err := tc.SignalWorkflow(ctx, w.ID, w.Run, workflows.SignalEvent, lost); err != nil {
		return fmt.Errorf("signalling to run %q that it has lost its machine: %w", w.Run, err)
	}
	r.log.With(w.LogKeys()...).Warn("signalled to a run that it has lost its machine", "because", lost.Kind)
	r.repairs.count(func(c *apitypes.Repairs) { c.RunsFenced++ })

	return nil
}

// lostGrantKind returns the kind of event that informs a run that it has lost its grant: inventory.EventHeld
// for a run that was open when the server was restored from a backup, otherwise inventory.EventFenced.
func (r *Reconciler) lostGrantKind(run string) string {
	if slices.ContainsFunc(r.held(), func(h inventory.HeldRun) bool { return h.Run == run }) {
		return inventory.EventHeld
	}
	return inventory.EventFenced
}

// cancelHeld cancels those runs in r.held, held since a restore from a backup, that are open in Temporal but not
// in the restored inventory. Either they ended shortly before the backup, and the backup's copy of Temporal's
// database is a little older; or they began after the backup, in a Temporal cluster that was not restored. Such
// a run would ask the operator about a machine that is free, and block the workflow id of that machine.
func (r *Reconciler) cancelHeld(ctx context.Context, tc client.Client) error {
	var unreadable []error
	for _, h := range r.held() {
		if r.settled[h.Run] {
			continue
		}
		asks, err := r.recordedOpen(ctx, h)
		if err != nil {
			unreadable = append(unreadable, err)
			continue
		}
		if asks {
			continue // the record is open: judgeRecord signals a machine's run, and an operation finds out at its next step
		}
		e, err := describe(ctx, tc, h.Workflow, h.Run)
		if err != nil {
			return err
		}
		if e.known && !r.hasEnded(h.Run, e) {
			if err := cancel(ctx, tc, h.Workflow, h.Run); err != nil {
				return fmt.Errorf("cancelling run %q of workflow %q: %w", h.Run, h.Workflow, err)
			}
			r.log.With(inventory.Owner{Machine: h.Machine, Run: h.Run}.LogKeys(0)...).Warn(
				"cancelled a held run that is open in Temporal but not in the inventory", "workflow", h.Workflow)
			continue
		}
		r.settled[h.Run] = true
	}

	return errors.Join(unreadable...)
}

// recordedOpen reports whether the restored inventory has an open record of the held run h. For an operation
// it looks for the workflow id, because the record has the run id of the operation's first execution.
func (r *Reconciler) recordedOpen(ctx context.Context, h inventory.HeldRun) (bool, error) {
	if h.Later {
		return false, nil // the run began after the backup: any record of it was written after the restore
	}
	if h.Machine == "" {
		open, err := r.stores.Operations.Operations(ctx, inventory.OperationFilter{ID: h.Workflow, Open: true, Limit: 1})
		return len(open) > 0, err
	}
	w, err := r.stores.Workflows.Workflow(ctx, h.Run)
	if errors.Is(err, inventory.ErrNotFound) {
		return false, nil
	}
	return err == nil && !inventory.Final(w.State), err
}

// hasEnded reports whether a run has ended. A run that Temporal does not know counts as ended only after unknownAfter.
func (r *Reconciler) hasEnded(run string, e execution) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !e.known {
		now := r.elapsed()
		since, seen := r.recentlyUnknown[run]
		if !seen {
			r.recentlyUnknown[run] = now
		}
		return seen && now-since > unknownAfter
	}

	delete(r.recentlyUnknown, run)
	switch e.status {
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED,
		enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED,
		enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT, enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
		return true
	}

	return false
}

// repair writes the final state of a run that has ended, unless its record is already final. The caller must ask Temporal
// first: a run writes its last record before Temporal closes the run, so the record read here cannot change any more.
func (r *Reconciler) repair(ctx context.Context, tc client.Client, run string, e execution) error {
	w, err := r.stores.Workflows.Workflow(ctx, run)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the record of run %q: %w", run, err)
	}
	if inventory.Final(w.State) {
		return nil
	}

	setEnd(ctx, tc, &w, e)
	now := r.now()
	w.Question, w.Ended, w.Updated = nil, now, now
	w.Next = r.nextCommand(ctx, w)
	w.Actions = slices.Clone(w.Actions)
	for i := range w.Actions {
		if a := &w.Actions[i]; a.State == action.Running {
			a.State, a.Message = action.Failed, "the run ended while this action was running"
		}
	}
	if err := r.stores.Workflows.PutWorkflow(ctx, w); err != nil {
		return fmt.Errorf("repairing the record of run %q: %w", w.Run, err)
	}
	r.log.With(w.LogKeys()...).Warn("repaired the record of a run that had already ended", "as", e.String())
	r.repairs.count(func(c *apitypes.Repairs) { c.RecordsRepaired++ })

	return nil
}

// setEnd sets the final state, the phase and the message of a run according to its end in Temporal.
func setEnd(ctx context.Context, tc client.Client, w *inventory.Workflow, e execution) {
	w.State, w.Phase, w.Message = inventory.StateFailed, inventory.PhaseFailed, "terminated from outside"
	switch {
	case !e.known:
		w.Message = "this run no longer exists in Temporal"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:
		w.State, w.Phase, w.Message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		w.State, w.Message = inventory.StateTimeout, "the run exceeded a time-out that was set from outside"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_FAILED:
		w.Message = "the run failed without recording a reason"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
		w.Message = "the run continues under another run id"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
		w.Message = "the run ended without recording its state"
		ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
		defer cancel()
		var out workflows.Outcome
		if err := tc.GetWorkflow(ctx, w.ID, w.Run).Get(ctx, &out); err != nil || !inventory.Final(out.State) {
			return
		}
		w.State, w.Message = out.State, out.Message
		switch out.State {
		case inventory.StateSuccess:
			w.Phase = inventory.PhaseDone
		case inventory.StateCancelled:
			w.Phase = inventory.PhaseCancelled
		}
	}
}

// nextCommand returns the command that helps after a run was ended from outside.
func (r *Reconciler) nextCommand(ctx context.Context, w inventory.Workflow) string {
	var in contract.ProvisionInput
	attempted := slices.ContainsFunc(w.Actions, func(a inventory.ActionRecord) bool { return a.Attempt > 0 })
	switch {
	case w.State == inventory.StateSuccess || w.Type == inventory.TypeBMCJob: // neither can be retried
		return ""
	case w.Type == inventory.TypeProvision && json.Unmarshal(w.Input, &in) == nil && in.Together():
		return contract.RetryTogether(in.Parent)
	case attempted && r.stores.Workflows.Resumable(ctx, w.Run) == nil:
		return RetryCommand(w.Run, contract.FromFailedStep)
	}
	return RetryCommand(w.Run, contract.FromStart)
}

// RetryCommand returns the command that retries a run from contract.FromStart or
// contract.FromFailedStep.
func RetryCommand(run, from string) string { return "ingot workflow retry " + run + " --from " + from }
