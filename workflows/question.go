package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// questions asks the operator one question at a time, for a run or an operation.
type questions struct {
	asker  string            // "run" or "operation", for error messages
	log    func() log.Logger // returns the asker's logger
	open   *inventory.Question
	answer *contract.Decision
}

// newQuestions registers the handlers that accept decisions by update and by signal.
func newQuestions(ctx workflow.Context, asker string, log func() log.Logger) (*questions, error) {
	q := &questions{asker: asker, log: log}
	err := workflow.SetUpdateHandlerWithOptions(ctx, UpdateDecide,
		func(_ workflow.Context, d contract.Decision) error { q.answer = &d; return nil },
		workflow.UpdateHandlerOptions{Validator: q.validateUpdate, Description: "Answers the open question of the " + asker})
	if err != nil {
		return nil, err
	}

	decide := workflow.GetSignalChannelWithOptions(ctx, SignalDecide,
		workflow.SignalChannelOptions{Description: "The operator's decision"})
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var d contract.Decision
			decide.Receive(ctx, &d)
			if q.validate(d) == nil {
				q.answer = &d
			}
		}
	})
	return q, nil
}

// validate returns an error if the decision does not answer the open question.
func (q *questions) validate(d contract.Decision) error {
	switch {
	case q.open == nil:
		return fmt.Errorf("the %s has no open question", q.asker)
	case q.answer != nil:
		return errors.New("the question has already been answered")
	case d.Question != q.open.ID:
		return fmt.Errorf("the decision is for question %q, but the %s asks question %q", d.Question, q.asker, q.open.ID)
	case !slices.Contains(q.open.Choices, d.Choice):
		return fmt.Errorf("invalid choice %q; must be one of %v", d.Choice, q.open.Choices)
	}
	return nil
}

// validateUpdate does what validate does, and also refuses a disk selector that selects no disk of the question. It is for updates
// only, which Temporal does not validate again in a replay. A signal may have such a selector, because recorded histories contain
// such signals; the run then asks again.
func (q *questions) validateUpdate(d contract.Decision) error {
	if err := q.validate(d); err != nil || d.DiskSelector == nil {
		return err
	}
	switch {
	case len(q.open.Disks) == 0:
		return fmt.Errorf("question %q is not about a disk: decide without a disk", q.open.ID)
	case d.Choice != contract.Retry:
		return fmt.Errorf("choice %q uses no disk: decide without a disk", d.Choice)
	}
	if _, reason := d.DiskSelector.Choose(q.open.Disks); reason != "" {
		return fmt.Errorf("%s; the machine has %s; if the disks have changed, choose %s without a disk to list them again",
			reason, nameDisks(q.open.Disks), contract.Retry)
	}
	return nil
}

// nameDisks lists disks as text, each with the serial number or WWN that selects it.
func nameDisks(disks []action.Disk) string {
	names := make([]string, len(disks))
	for i, d := range disks {
		switch {
		case d.Serial != "":
			names[i] = fmt.Sprintf("%s serial %q", d.Path, d.Serial)
		case d.WWN != "":
			names[i] = fmt.Sprintf("%s wwn %q", d.Path, d.WWN)
		default:
			names[i] = d.Path + " without a serial number"
		}
		if d.ReadOnly {
			names[i] += " (read-only)"
		}
	}
	return strings.Join(names, ", ")
}

// A prompt is a question with the functions that show it in the record.
type prompt struct {
	inventory.Question
	// show writes the open question to the record.
	show func() error
	// hide writes to the record that the question is closed. After an answer, hide must use a regular activity: the operator's
	// update is durable only once its workflow task completes, and until then the question must stay open in the record.
	hide func(answered bool) error
	// withdrawn reports whether the question is no longer needed. If withdrawn is nil, the question stays open until it is
	// answered.
	withdrawn func() bool
}

// ask shows a question until the operator answers it. The decision is nil if the question was withdrawn first. If the choice is
// Abort, ask also returns errAborted.
func (q *questions) ask(ctx workflow.Context, p prompt) (*contract.Decision, error) {
	p.Since = workflow.Now(ctx)
	q.open, q.answer = &p.Question, nil
	if err := p.show(); err != nil {
		return nil, err
	}

	withdrawn := func() bool { return p.withdrawn != nil && p.withdrawn() }
	if err := workflow.Await(ctx, func() bool { return q.answer != nil || withdrawn() }); err != nil {
		return nil, err
	}

	d := q.answer
	q.open, q.answer = nil, nil
	if d == nil {
		q.log().Info("question withdrawn", "question", p.ID)
		return nil, p.hide(false)
	}

	q.log().Info("decided", "question", p.ID, "choice", d.Choice, "by", d.By)
	if err := p.hide(true); err != nil {
		return nil, err
	}

	if d.Choice == contract.Abort {
		return d, errAborted
	}
	return d, nil
}
