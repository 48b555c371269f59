package workflows

import (
	"cmp"
	"fmt"
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// questionID returns the id of a question: the epoch and the parts, joined by dots.
func (r *machineRun) questionID(parts ...any) string {
	id := fmt.Sprint(r.grant.owner.Epoch)
	for _, p := range parts {
		id += fmt.Sprint(".", p)
	}
	return id
}

// ask asks the operator and returns the decision. While it waits, network boot is not allowed and the global timeout is paused. If
// the choice is Abort, ask returns errAborted.
func (r *machineRun) ask(ctx workflow.Context, id, text string, choices ...string) (contract.Decision, error) {
	d, err := r.askUnless(ctx, nil, inventory.Question{ID: id, Text: text, Choices: choices})
	return *cmp.Or(d, &contract.Decision{}), err
}

// askUnless does what ask does, for a question that may become unnecessary: once withdrawn returns true, the question is closed and
// the decision is nil. A decision that arrived earlier counts. If the run is skippable and the choice is Skip, askUnless returns
// errSkipped.
func (r *machineRun) askUnless(ctx workflow.Context, withdrawn func() bool, q inventory.Question) (*contract.Decision, error) {
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

	skip := r.skippable && slices.Contains(q.Choices, contract.Retry) && !slices.Contains(q.Choices, contract.Skip)
	if skip {
		q.Choices = append(slices.Clone(q.Choices), contract.Skip)
	}

	phase, message := r.record.Phase, r.record.Message
	d, err := r.questions.ask(ctx, prompt{
		Question: q, withdrawn: withdrawn,
		show: func() error {
			r.record.Question = r.questions.open
			r.record.Next = fmt.Sprintf("ingot workflow decide %s --question %s --choice %s", r.grant.owner.Machine, q.ID, q.Choices[0])
			if len(q.Disks) > 0 {
				r.record.Next += " --disk-serial SERIAL" // a placeholder: a serial number is text from the machine, and unsafe in a command
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
			return r.record.writeRecord(ctx) // a signal has withdrawn the question, and Temporal never loses signals
		},
	})

	if err == nil && skip && d != nil && d.Choice == contract.Skip {
		err = errSkipped
	}
	return d, err
}

// correctBudget corrects a global timeout that has passed only because the clock was set. Otherwise, when a question pauses the
// timeout, this loss of time would become permanent.
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
