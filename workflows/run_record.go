package workflows

import (
	"fmt"
	"slices"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// runRecord is the record of a run, with the values that its search attributes already have.
type runRecord struct {
	inventory.Workflow
	input    any               // input of the run's workflow
	logger   func() log.Logger // returns a logger with the run's keys
	named    bool
	template string
}

var (
	attrMachine  = temporal.NewSearchAttributeKeyKeyword(AttrMachine)
	attrTemplate = temporal.NewSearchAttributeKeyKeyword(AttrTemplate)
	attrPhase    = temporal.NewSearchAttributeKeyKeyword(AttrPhase)
)

// briefPhases are phases that wait for nothing outside this server. They are left out of the search attributes, because each change
// of a search attribute costs a write to Temporal's visibility store.
var briefPhases = []string{inventory.PhaseArm, inventory.PhaseBind, inventory.PhaseDisarm}

// showPhase sets the run's phase and message, in the search attributes and in the details that Temporal shows, and
// stores the record.
func (w *runRecord) showPhase(ctx workflow.Context, phase, format string, args ...any) error {
	if err := w.setPhase(ctx, phase, format, args...); err != nil {
		return err
	}
	return w.writeRecord(ctx)
}

// setPhase does what showPhase does, but does not store the record.
func (w *runRecord) setPhase(ctx workflow.Context, phase, format string, args ...any) error {
	same := w.Phase == phase
	w.Phase, w.Message = phase, fmt.Sprintf(format, args...)
	if !same {
		w.logger().Info("a phase begins", "message", w.Message)
	}
	if same || slices.Contains(briefPhases, phase) {
		return nil
	}

	updates := []temporal.SearchAttributeUpdate{attrPhase.ValueSet(phase)}
	if !w.named {
		updates = append(updates, attrMachine.ValueSet(w.Machine))
		w.named = true
	}

	if w.template != w.Template {
		updates = append(updates, attrTemplate.ValueSet(w.Template))
		w.template = w.Template
	}
	return workflow.UpsertTypedSearchAttributes(ctx, updates...)
}

// writeRecord stores the record. A late write cannot overwrite a newer record, because the
// store compares Seq.
func (w *runRecord) writeRecord(ctx workflow.Context) error {
	w.stamp(ctx)
	return executeLocal(ctx, nil, do.Record, w.Workflow, w.input)
}

// writeAnswer stores the record as writeRecord does, but by a regular activity. It is for use after a decision; see prompt.hide.
func (w *runRecord) writeAnswer(ctx workflow.Context) error {
	w.stamp(ctx)
	return execute(ctx, quick, nil, do.Record, w.Workflow, w.input)
}

// stamp sets the record's time and next sequence number, and updates the details that Temporal shows.
func (w *runRecord) stamp(ctx workflow.Context) {
	w.Updated = workflow.Now(ctx)
	w.Seq++
	details := fmt.Sprintf("**%s** %s", w.Phase, w.Message)
	for _, a := range w.Actions {
		if a.State == action.Running {
			details += fmt.Sprintf("\n\naction %s, attempt %d", a.Name, a.Attempt)
		}
	}
	workflow.SetCurrentDetails(ctx, details)
}

// firstUndone returns the index of the first action in Actions[:last] that has not succeeded, or -1. See
// markSeedsUndone.
func (w *runRecord) firstUndone(last int) int {
	return slices.IndexFunc(w.Actions[:last], func(a inventory.ActionRecord) bool { return a.State != action.Success })
}

// markSeedsUndone sets to pending all actions that have written cloud-init's instance id in an earlier boot. Since that boot, the
// machine may have booted from its disk, and cloud-init handles an instance id only once.
func (w *runRecord) markSeedsUndone(plan []activities.PlannedAction, boot int) {
	for i, planned := range plan {
		if a := &w.Actions[i]; planned.Seed && a.State == action.Success {
			a.State, a.Message = action.Pending, fmt.Sprintf("to be done again by the agent of boot %d", boot)
		}
	}
}

// resetActions sets Actions[from:] to pending.
func (w *runRecord) resetActions(from int) {
	for i := range w.Actions[from:] {
		a := &w.Actions[from+i]
		a.State, a.Message, a.Seconds = action.Pending, "", 0
	}
}

// attemptKey returns the key of the present attempt of Actions[i].
func (w *runRecord) attemptKey(i int) action.Key {
	return action.Key{Epoch: w.Epoch, Action: i, Attempt: w.Actions[i].Attempt}
}

// beginAttempt starts the next attempt of Actions[i] and returns its key.
func (w *runRecord) beginAttempt(ctx workflow.Context, i int) action.Key {
	a := &w.Actions[i]
	a.Attempt++
	a.State, a.StartedAt, a.Message, a.Seconds = action.Running, workflow.Now(ctx), "", 0
	return w.attemptKey(i)
}
