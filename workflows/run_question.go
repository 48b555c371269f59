package workflows

import (
	"fmt"
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// questionID returns the id of a question: the epoch and the parts, joined by dots.
func (r *machineRun) questionID(parts ...any) string {
	id := fmt.Sprint(r.grant.owner.Epoch)
	for _, p := range parts {
		id += fmt.Sprint(".", p)
	}
	return id
}

// ask waits until the operator has decided. In the meantime the netboot window is closed and
// the global timeout is paused.
func (r *machineRun) ask(ctx workflow.Context, id, text string, choices ...string) (Decision, error) {
	d, err := r.askUnless(ctx, nil, inventory.Question{ID: id, Text: text, Choices: choices})
	if d == nil {
		d = &Decision{}
	}
	return *d, err
}

// askUnless is ask for a question that may become unnecessary: once withdrawn returns true,
// the question is withdrawn and the decision is nil. A decision that arrived before that
// counts.
func (r *machineRun) askUnless(ctx workflow.Context, withdrawn func() bool, q inventory.Question) (*Decision, error) {
	r.correctBudget(ctx)
	r.budget.pause(workflow.Now(ctx))
	defer func() { r.budget.resume(workflow.Now(ctx)) }()
	if r.grant.armed {
		if err := r.grant.closeNetboot(ctx); err != nil && !lostMachine(err) {
			return nil, err
		}
	}

	if withdrawn != nil && withdrawn() {
		return nil, nil
	}

	skip := r.skippable && slices.Contains(q.Choices, Retry) && !slices.Contains(q.Choices, Skip)
	if skip {
		q.Choices = append(slices.Clone(q.Choices), Skip)
	}

	phase, message := r.record.Phase, r.record.Message
	d, err := r.questions.ask(ctx, prompt{
		Question: q, withdrawn: withdrawn,
		show: func() error {
			r.record.Question = r.questions.open
			r.record.Next = fmt.Sprintf("ingot workflow decide %s --question %s --choice %s", r.grant.owner.Machine, q.ID, q.Choices[0])
			if len(q.Disks) > 0 {
				r.record.Next += " --disk-serial SERIAL" // a placeholder: serial numbers are text of the machine
			}
			return r.record.showPhase(ctx, inventory.PhaseWaiting, "%s", q.Text)
		},
		hide: func(answered bool) error {
			r.record.Question, r.record.Next = nil, ""
			if err := r.record.setPhase(ctx, phase, "%s", message); err != nil {
				return err
			}
			if answered {
				return r.record.writeAnswer(ctx)
			}
			return r.record.writeRecord(ctx) // withdrawn by a signal, and signals are never lost
		},
	})

	if err == nil && skip && d != nil && d.Choice == Skip {
		err = errSkipped
	}
	return d, err
}

// correctBudget checks whether a passed global timeout is real, because the clock may have
// been set. Otherwise what the question writes off would be lost.
func (r *machineRun) correctBudget(ctx workflow.Context) {
	b := &r.budget
	if left, limited := b.remaining(workflow.Now(ctx)); !limited || left > 0 {
		return
	}
	known, err := r.evidence(ctx, action.Key{}, activities.Wait{Began: b.since, For: b.left})
	if err == nil && known.Left > 0 {
		b.left, b.since = known.Left, workflow.Now(ctx)
	}
}
