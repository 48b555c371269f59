package workflows

import (
	"fmt"
	"slices"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// runRecord is the record of a run, with what search attributes say already.
type runRecord struct {
	inventory.Workflow
	input    any // as the run was started with
	named    bool
	template string
}

var (
	attrMachine  = temporal.NewSearchAttributeKeyKeyword(AttrMachine)
	attrTemplate = temporal.NewSearchAttributeKeyKeyword(AttrTemplate)
	attrPhase    = temporal.NewSearchAttributeKeyKeyword(AttrPhase)
)

// briefPhases wait for nothing outside this server. Search attributes leave them
// out: each change costs Temporal's visibility store a write.
var briefPhases = []string{inventory.PhaseArm, inventory.PhaseBind, inventory.PhaseDisarm}

// showPhase moves the run to a phase: record, search attribute, current details.
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

// writeRecord records the run. A record that comes late cannot overtake a later
// one: the store compares Seq.
func (r *machineRun) writeRecord(ctx workflow.Context) error {
	r.stampRecord(ctx)
	return executeLocal(ctx, nil, do.Record, r.record.Workflow, r.record.input)
}

// writeAnswer is writeRecord after a decision, as a regular activity; see prompt.
func (r *machineRun) writeAnswer(ctx workflow.Context) error {
	r.stampRecord(ctx)
	return execute(ctx, quick, nil, do.Record, r.record.Workflow, r.record.input)
}

// stampRecord makes the record newer than any before.
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
