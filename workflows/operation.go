package workflows

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// A step is one step of an operation. The list of its steps, from top to bottom, is what the operation does.
type step struct {
	name, machine string
	// does, waits and undoes describe the functions do, ready and undo to the operator. If undo is nil, undoes is "none: " followed
	// by the reason.
	does, waits, undoes string
	// budget is how long the step may take before the operator is asked.
	budget time.Duration
	// do carries out the step. It may run more than once, so it checks the state first.
	do func(ctx workflow.Context, s *inventory.OperationStep) error
	// ready waits until the result of do works, at most for the duration within. If ready is nil, the success of do is sufficient.
	ready func(ctx workflow.Context, within time.Duration) error
	// undo reverts what do has changed, even if do did not finish. If undo is nil, the step cannot be undone.
	undo func(ctx workflow.Context) error
	// must means that the step cannot be skipped, because later steps would do harm without it.
	must bool
}

// lastLook returns how long one more probe may take after the budget has passed: one minute, or the budget if that is shorter. This
// probe is needed because after an outage all timers fire late and at once, so that a passed deadline alone proves nothing.
func lastLook(budget time.Duration) time.Duration {
	if budget <= 0 {
		return time.Minute
	}
	return min(time.Minute, budget)
}

// An operation holds what every workflow for several machines needs: its record and its questions to the operator.
type operation struct {
	*questions
	log    log.Logger
	input  any
	record inventory.Operation
	asked  int
	kept   string // appended to the message after a cancellation: which steps stay done
	next   string // the command with which an operator can continue after a failure
	// ownSince, if set, means that open runs that began earlier are not the operation's: they carry out the request of an earlier
	// operation of the same name.
	ownSince time.Time
}

// newOperation returns an operation with a new record, which is not stored yet. It returns an error if the
// workflow does not have the id that its type and name require.
func newOperation(ctx workflow.Context, typ, id, name string, input any) (*operation, error) {
	info := workflow.GetInfo(ctx)
	if info.WorkflowExecution.ID != id || name == "" {
		return nil, newError(activities.TypeInvalid,
			"invalid workflow id %q; a %s named %q must run under the id %q", info.WorkflowExecution.ID, typ, name, id)
	}

	// After a reset to the first task, the workflow still has its old start time, so machines installed before the reset count as
	// installed.
	o := &operation{
		log: workflow.GetLogger(ctx), input: input,
		record: inventory.Operation{
			Run: info.WorkflowExecution.RunID, ID: id, Type: typ, Name: name,
			State: inventory.StateRunning, Started: info.WorkflowStartTime, Steps: []inventory.OperationStep{},
		},
	}

	status := func() (inventory.Operation, error) { return o.record, nil }
	err := workflow.SetQueryHandlerWithOptions(ctx, QueryStatus, status,
		workflow.QueryHandlerOptions{Description: "The state of the operation"})
	if err != nil {
		return nil, err
	}

	o.questions, err = newQuestions(ctx, "operation", func() log.Logger { return o.log })
	return o, err
}

// writeRecord stores the record.
func (o *operation) writeRecord(ctx workflow.Context) error {
	return executeLocal(ctx, nil, do.RecordOperation, o.nextRecord(ctx), o.input)
}

// commitRecord stores the record as writeRecord does, but by a regular activity. That is necessary where a repeated workflow task
// could decide differently: after an answer of the operator (see prompt.hide), and at the end, because a final record never
// changes.
func (o *operation) commitRecord(ctx workflow.Context) error {
	return execute(ctx, quick, nil, do.RecordOperation, o.nextRecord(ctx), o.input)
}

// nextRecord increments the record's sequence number and returns a copy of the record, because other coroutines
// may change it during the write.
func (o *operation) nextRecord(ctx workflow.Context) inventory.Operation {
	o.record.Updated = workflow.Now(ctx)
	o.record.Seq++
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** %s", o.record.Step, o.record.Message))
	rec := o.record
	rec.Steps = slices.Clone(rec.Steps)
	return rec
}

// showStep sets the present step and the message in the record, and stores the record.
func (o *operation) showStep(ctx workflow.Context, name, format string, args ...any) error {
	if err := o.setStep(ctx, name, format, args...); err != nil {
		return err
	}
	return o.writeRecord(ctx)
}

// setStep does what showStep does, but does not store the record.
func (o *operation) setStep(ctx workflow.Context, name, format string, args ...any) error {
	same := o.record.Step == name
	o.record.Step, o.record.Message = name, fmt.Sprintf(format, args...)
	if same {
		return nil
	}
	return workflow.UpsertTypedSearchAttributes(ctx, attrPhase.ValueSet(name))
}

// recordTable adds the steps to the record. The steps in finished were done by an earlier operation of this name.
func (o *operation) recordTable(steps []step, finished map[string]bool) {
	for _, s := range steps {
		row := inventory.OperationStep{
			Name: s.name, Machine: s.machine, Does: s.does, Waits: s.waits, Undo: s.undoes, Budget: s.budget,
			State: inventory.StepPending,
		}
		if finished[s.name] {
			row.Message = "done by an earlier run; this run checks the result again"
		}
		o.record.Steps = append(o.record.Steps, row)
	}
}

// runSteps carries out the steps in order. A step in finished is skipped if its probe
// succeeds. When a step fails, the operator is asked; errAborted means that the operator
// ended the operation.
func (o *operation) runSteps(ctx workflow.Context, steps []step, finished map[string]bool) error {
	for i, s := range steps {
		if err := o.runStep(ctx, s, &o.record.Steps[i], finished[s.name]); err != nil {
			return err
		}
	}
	return nil
}

func (o *operation) runStep(ctx workflow.Context, s step, row *inventory.OperationStep, finished bool) error {
	for {
		row.State, row.Since, row.Ended, row.Message = inventory.StepRunning, workflow.Now(ctx), time.Time{}, ""
		row.Asked, row.Waited = time.Time{}, 0
		if err := o.showStep(ctx, s.name, "%s", s.does); err != nil {
			return err
		}
		err := o.tryStep(ctx, s, row, finished)
		finished = false
		row.Ended = workflow.Now(ctx)
		if err == nil {
			row.State = inventory.StepDone
			return o.writeRecord(ctx)
		}

		row.State, row.Message = inventory.StepFailed, messageOf(err)
		if temporal.IsCanceledError(err) {
			row.Message = "cancelled"
		}
		if temporal.IsCanceledError(err) || errors.Is(err, errAborted) { // the step has already asked the operator
			return err
		}
		if err := o.decideAboutStep(ctx, s, row); err != nil {
			return err
		}
		if row.State == inventory.StepSkipped {
			return o.writeRecord(ctx)
		}
	}
}

// tryStep carries out one step and waits until its probe succeeds. If an earlier operation finished the step, tryStep probes first,
// and does nothing else if this probe succeeds.
func (o *operation) tryStep(ctx workflow.Context, s step, row *inventory.OperationStep, finished bool) error {
	last := lastLook(s.budget)
	if finished && s.ready != nil {
		if err := s.ready(ctx, last); err == nil || temporal.IsCanceledError(err) {
			return err
		}
	}

	began := workflow.Now(ctx)
	if s.do != nil {
		if err := s.do(ctx, row); err != nil {
			return err
		}
	}

	if s.ready == nil {
		return nil
	}

	if s.waits != "" {
		if err := o.showStep(ctx, s.name, "%s", s.waits); err != nil {
			return err
		}
	}

	err := s.ready(ctx, max(s.budget-workflow.Now(ctx).Sub(began), last))
	if err == nil || temporal.IsCanceledError(err) || errors.Is(err, errAborted) {
		return err
	}

	// Timers may have fired late after an outage: probe once more, now that everything is up.
	if again := s.ready(ctx, last); again == nil || temporal.IsCanceledError(again) {
		return again
	}
	return err
}

// decideAboutStep asks the operator about a failed step. If it returns nil, the caller tries the step again, or continues with the
// next step if row.State is StepSkipped.
func (o *operation) decideAboutStep(ctx workflow.Context, s step, row *inventory.OperationStep) error {
	for undone := false; ; {
		choices := []string{contract.Retry}
		if s.undo != nil && !undone {
			choices = append(choices, contract.Undo)
		}
		if !s.must {
			choices = append(choices, contract.Skip)
		}
		choices = append(choices, contract.Abort)
		choice, err := o.askAboutStep(ctx, row, fmt.Sprintf("step %s: %s", s.name, row.Message), choices)
		if err != nil {
			return err
		}
		switch choice {
		case contract.Skip:
			row.State, row.Message = inventory.StepSkipped, "skipped by the operator: "+row.Message
			return nil
		case contract.Retry:
			return nil
		}
		if err := s.undo(ctx); err != nil {
			if temporal.IsCanceledError(err) {
				return err
			}
			row.Message = "undoing: " + messageOf(err)
			continue
		}
		undone = true
		row.State, row.Message = inventory.StepUndone, "undone: "+s.undoes
	}
}

// askAboutStep asks the operator and returns the choice.
func (o *operation) askAboutStep(ctx workflow.Context, row *inventory.OperationStep, text string, choices []string) (string, error) {
	name, message, state := o.record.Step, o.record.Message, row.State
	p := o.newPrompt(ctx, row.Name, text, choices)
	p.show = func() error {
		o.record.Question = o.open
		row.Wait(workflow.Now(ctx))
		return o.showStep(ctx, inventory.PhaseWaiting, "%s", text)
	}

	hide := p.hide
	p.hide = func(answered bool) error {
		row.State = state
		row.Resume(workflow.Now(ctx))
		if err := o.setStep(ctx, name, "%s", message); err != nil {
			return err
		}
		return hide(answered)
	}

	d, err := o.ask(ctx, p)
	if err != nil {
		return "", err
	}
	return d.Choice, nil
}

// newPrompt returns a question of the operation. Unlike askAboutStep, the question does not change the present step in the record.
func (o *operation) newPrompt(ctx workflow.Context, step, text string, choices []string) prompt {
	o.asked++
	id := fmt.Sprintf("%s.%d", step, o.asked)
	o.record.Next = fmt.Sprintf("ingot operation decide %s --question %s --choice %s", o.record.ID, id, choices[0])
	return prompt{
		Question: inventory.Question{ID: id, Text: text, Choices: choices},
		show: func() error {
			o.record.Question = o.open
			return o.writeRecord(ctx)
		},
		hide: func(answered bool) error {
			o.record.Question, o.record.Next = nil, ""
			if answered {
				return o.commitRecord(ctx)
			}
			return o.writeRecord(ctx)
		},
	}
}

// rollBack undoes all steps that were begun, the last one first, even if ctx is canceled. If an undo fails, rollBack notes that in
// the step, and continues with the next step.
func (o *operation) rollBack(ctx workflow.Context, steps []step) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	var errs []error
	for i := len(steps) - 1; i >= 0; i-- {
		s, row := steps[i], &o.record.Steps[i]
		if row.State == inventory.StepPending || row.State == inventory.StepUndone || s.undo == nil {
			continue
		}
		if err := o.showStep(ctx, s.name, "taking back: %s", s.undoes); err != nil {
			return err
		}
		if err := s.undo(ctx); err != nil {
			row.Message = "undoing: " + messageOf(err)
			errs = append(errs, fmt.Errorf("undoing %q: %w", s.name, err))
			continue
		}
		row.State, row.Message, row.Ended = inventory.StepUndone, "undone: "+s.undoes, workflow.Now(ctx)
	}
	return errors.Join(errs...)
}

// end writes the final record. err is the error of the steps. The result is the error that the workflow ends with.
func (o *operation) end(ctx workflow.Context, err error) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	state, phase, message := endOf(err, o.record.Message)
	if state == inventory.StateCancelled {
		message += o.kept
	}
	next := ""
	if state == inventory.StateFailed {
		next = o.next
	}
	recorded := o.recordEnd(ctx, state, phase, message, next)
	return endExecution(ctx, state, message, err, recorded)
}

// recordEnd writes the final record.
func (o *operation) recordEnd(ctx workflow.Context, state, phase, message, next string) error {
	o.record.State, o.record.Question, o.record.Next, o.record.Ended = state, nil, next, workflow.Now(ctx)
	if err := o.setStep(ctx, phase, "%s", message); err != nil {
		return err
	}
	return o.commitRecord(ctx)
}

// probe runs an activity that waits until something works. within is the time limit for the whole wait, including retries after the
// death of a worker. The function ready of most steps calls probe.
func probe(ctx workflow.Context, within time.Duration, activity any, arg any) error {
	return execute(ctx, workflow.ActivityOptions{
		ScheduleToCloseTimeout: within, HeartbeatTimeout: workerLost, RetryPolicy: retryForever,
	}, nil, activity, arg)
}
