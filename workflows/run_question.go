package workflows

import (
	"fmt"
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// questionID names a question: the epoch and the parts, with dots between them.
func (r *machineRun) questionID(parts ...any) string {
	id := fmt.Sprint(r.owner.Epoch)
	for _, p := range parts {
		id += fmt.Sprint(".", p)
	}
	return id
}

// ask stops until the operator has decided. The netboot window is closed meanwhile
// and the global timeout rests.
func (r *machineRun) ask(ctx workflow.Context, id, text string, choices ...string) (Decision, error) {
	d, err := r.askUnless(ctx, nil, inventory.Question{ID: id, Text: text, Choices: choices})
	if d == nil {
		d = &Decision{}
	}
	return *d, err
}

// askUnless is ask about something that may settle itself: the question is
// withdrawn, and the decision nil, once withdrawn says so. A decision that was
// taken before counts.
func (r *machineRun) askUnless(ctx workflow.Context, withdrawn func() bool, q inventory.Question) (*Decision, error) {
	r.correctBudget(ctx)
	r.budget.pause(workflow.Now(ctx))
	defer func() { r.budget.resume(workflow.Now(ctx)) }()
	if r.boot.armed {
		if err := r.closeNetboot(ctx); err != nil && !lostMachine(err) {
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
			r.record.Next = fmt.Sprintf("ingot workflow decide %s --question %s --choice %s", r.owner.Machine, q.ID, q.Choices[0])
			return r.showPhase(ctx, inventory.PhaseWaiting, "%s", q.Text)
		},
		hide: func(answered bool) error {
			r.record.Question, r.record.Next = nil, ""
			if err := r.setPhase(ctx, phase, "%s", message); err != nil {
				return err
			}
			if answered {
				return r.writeAnswer(ctx)
			}
			return r.writeRecord(ctx) // a signal withdrew it, and signals are never lost
		},
	})

	if err == nil && skip && d != nil && d.Choice == Skip {
		err = errSkipped
	}
	return d, err
}

// correctBudget looks whether a global timeout that has passed really has: what
// the question writes off would be gone, and the clock may have been set.
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
