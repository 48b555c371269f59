package workflows

import (
	"fmt"
	"slices"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// runRecord is the record of a run and the values that the search attributes already have.
type runRecord struct {
	inventory.Workflow
	input    any // the input of the run
	named    bool
	template string
}

var (
	attrMachine  = temporal.NewSearchAttributeKeyKeyword(AttrMachine)
	attrTemplate = temporal.NewSearchAttributeKeyKeyword(AttrTemplate)
	attrPhase    = temporal.NewSearchAttributeKeyKeyword(AttrPhase)
)

// briefPhases wait for nothing outside this server. They are left out of the search
// attributes, because each change costs a write to Temporal's visibility store.
var briefPhases = []string{inventory.PhaseArm, inventory.PhaseBind, inventory.PhaseDisarm}

// showPhase sets the run's phase in the record, the search attribute and the current
// details.
func (r *machineRun) showPhase(ctx workflow.Context, phase, format string, args ...any) error {
	if err := r.setPhase(ctx, phase, format, args...); err != nil {
		return err
	}
	return r.writeRecord(ctx)
}

// setPhase is showPhase without writing the record.
func (r *machineRun) setPhase(ctx workflow.Context, phase, format string, args ...any) error {
	w := &r.record
	same := w.Phase == phase
	w.Phase, w.Message = phase, fmt.Sprintf(format, args...)
	if !same {
		r.logger().Info("a phase begins", "message", w.Message)
	}
	if same || slices.Contains(briefPhases, phase) {
		return nil
	}

	updates := []temporal.SearchAttributeUpdate{attrPhase.ValueSet(phase)}
	if !w.named {
		updates = append(updates, attrMachine.ValueSet(r.owner.Machine))
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
func (r *machineRun) writeRecord(ctx workflow.Context) error {
	r.stampRecord(ctx)
	return executeLocal(ctx, nil, do.Record, r.record.Workflow, r.record.input)
}

// writeAnswer is writeRecord after a decision, as a regular activity; see prompt.
func (r *machineRun) writeAnswer(ctx workflow.Context) error {
	r.stampRecord(ctx)
	return execute(ctx, quick, nil, do.Record, r.record.Workflow, r.record.input)
}

// stampRecord gives the record the next sequence number.
func (r *machineRun) stampRecord(ctx workflow.Context) {
	w := &r.record
	w.Updated = workflow.Now(ctx)
	w.Seq++
	w.Epoch = r.owner.Epoch
	details := fmt.Sprintf("**%s** %s", w.Phase, w.Message)
	for _, a := range w.Actions {
		if a.State == action.Running {
			details += fmt.Sprintf("\n\naction %s, attempt %d", a.Name, a.Attempt)
		}
	}
	workflow.SetCurrentDetails(ctx, details)
}
