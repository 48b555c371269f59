package workflows

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// A step is one row of an operation's table. Read from top to bottom, the table
// is what the operation does.
type step struct {
	name, machine string
	// does, waits and undoes are the row read aloud. undoes begins with "none:"
	// and a reason where there is no undo.
	does, waits, undoes string
	// budget is how long the step may take until a person is asked.
	budget time.Duration
	// do changes the world. It may run again after it had its effect, so it looks
	// first.
	do func(ctx workflow.Context, s *inventory.OperationStep) error
	// ready returns when what the step brought about is seen to work. It waits
	// within the budget; nil is a step whose do is its own proof.
	ready func(ctx workflow.Context, within time.Duration) error
	// undo takes back what do did, wholly or in part; nil: see undoes.
	undo func(ctx workflow.Context) error
	// must: nobody may skip it, because the next steps would do harm without.
	must bool
}

// lastLook is what a ready probe gets after its budget has passed, or the budget
// where that is shorter: timers fire late and all at once after an outage, so a
// deadline alone proves nothing.
const lastLook = time.Minute

// workerLost is how long an operation's activity that waits may be silent until
// it is begun anew: its worker has died. Whatever begins anew looks first.
const workerLost = 20 * time.Second

func (s step) last() time.Duration { return lastLookOf(s.budget) }

func lastLookOf(budget time.Duration) time.Duration {
	if budget <= 0 {
		return lastLook
	}
	return min(lastLook, budget)
}

// An operation is what every workflow that is about more than one machine has
// in common: its record, its steps, and the questions it asks.
type operation struct {
	log    log.Logger
	input  any
	record inventory.Operation
	asked  int
	kept   string // what a cancellation leaves as it is, for its message
	// decision answers the question of record.
	decision *Decision
}

// newOperation begins the record, and refuses an execution whose id is not the
// one that its type and input demand.
func newOperation(ctx workflow.Context, typ, id, name string, input any) (*operation, error) {
	info := workflow.GetInfo(ctx)
	if info.WorkflowExecution.ID != id || name == "" {
		return nil, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("workflow id %q: a %s named %q must run under the id %q", info.WorkflowExecution.ID, typ, name, id), activities.TypeInvalid, nil)
	}
	// The time at which the workflow was started stays the same in an execution that was
	// reset to its first task: what it installed before the reset counts as installed.
	o := &operation{
		log: workflow.GetLogger(ctx), input: input,
		record: inventory.Operation{
			Run: info.WorkflowExecution.RunID, ID: id, Type: typ, Name: name,
			State: inventory.StateRunning, Started: info.WorkflowStartTime, Steps: []inventory.OperationStep{},
		},
	}
	if err := workflow.SetQueryHandlerWithOptions(ctx, QueryStatus, func() (inventory.Operation, error) { return o.record, nil },
		workflow.QueryHandlerOptions{Description: "Where the operation stands"}); err != nil {
		return nil, err
	}
	err := workflow.SetUpdateHandlerWithOptions(ctx, UpdateDecide,
		func(_ workflow.Context, d Decision) error { o.decision = &d; return nil },
		workflow.UpdateHandlerOptions{Validator: o.validate, Description: "Answers the question of an operation that waits for a person"})
	if err != nil {
		return nil, err
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		decide := workflow.GetSignalChannelWithOptions(ctx, SignalDecide, workflow.SignalChannelOptions{Description: "A person's decision"})
		for {
			var d Decision
			decide.Receive(ctx, &d)
			if o.validate(d) == nil {
				o.decision = &d
			}
		}
	})
	return o, nil
}

func (o *operation) validate(d Decision) error {
	return fits(o.record.Question, o.decision, d, "operation")
}

// fits tells whether a decision answers the question that is asked now.
func fits(q *inventory.Question, taken *Decision, d Decision, who string) error {
	switch {
	case q == nil:
		return fmt.Errorf("the %s asks nothing at the moment", who)
	case taken != nil:
		return errors.New("the question has been answered already")
	case d.Question != q.ID:
		return fmt.Errorf("the decision is for question %q, the %s asks %q", d.Question, who, q.ID)
	case !slices.Contains(q.Choices, d.Choice):
		return fmt.Errorf("choice %q is none of %v", d.Choice, q.Choices)
	}
	return nil
}

// write records the operation.
func (o *operation) write(ctx workflow.Context) error {
	return workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, local), do.RecordOperation, o.next(ctx), o.input).Get(ctx, nil)
}

// commit is write as a step of its own: of what a task that is carried out again
// may decide in another way. That is a person's answer, as in run.decided, and
// the end, which no record leaves again.
func (o *operation) commit(ctx workflow.Context) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), do.RecordOperation, o.next(ctx), o.input).Get(ctx, nil)
}

// next makes the record newer than any before, and returns a copy of it: other
// coroutines may go on meanwhile.
func (o *operation) next(ctx workflow.Context) inventory.Operation {
	o.record.Updated = workflow.Now(ctx)
	o.record.Seq++
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** %s", o.record.Step, o.record.Message))
	rec := o.record
	rec.Steps = slices.Clone(rec.Steps)
	return rec
}

// at moves the display to a step or a phase.
func (o *operation) at(ctx workflow.Context, name, format string, args ...any) error {
	if err := o.show(ctx, name, format, args...); err != nil {
		return err
	}
	return o.write(ctx)
}

// show is at, still without the record.
func (o *operation) show(ctx workflow.Context, name, format string, args ...any) error {
	same := o.record.Step == name
	o.record.Step, o.record.Message = name, fmt.Sprintf(format, args...)
	if same {
		return nil
	}
	return workflow.UpsertTypedSearchAttributes(ctx, attrPhase.ValueSet(name))
}

// table enters steps into the record. Those that finished names are done
// already, by an earlier operation of this name.
func (o *operation) table(steps []step, finished map[string]bool) {
	for _, s := range steps {
		row := inventory.OperationStep{
			Name: s.name, Machine: s.machine, Does: s.does, Waits: s.waits, Undo: s.undoes, Budget: s.budget, State: inventory.StepPending,
		}
		if finished[s.name] {
			row.Message = "done by an earlier run; it is proven again"
		}
		o.record.Steps = append(o.record.Steps, row)
	}
}

// carryOut takes the steps of the table one after another. A step of finished
// whose probe agrees is not done again. A step that fails asks a person; errAborted
// is one who has had enough.
func (o *operation) carryOut(ctx workflow.Context, steps []step, finished map[string]bool) error {
	for i, s := range steps {
		if err := o.carry(ctx, i, s, finished[s.name]); err != nil {
			return err
		}
	}
	return nil
}

func (o *operation) carry(ctx workflow.Context, i int, s step, finished bool) error {
	row := &o.record.Steps[i]
	for {
		row.State, row.Since, row.Ended, row.Message = inventory.StepRunning, workflow.Now(ctx), time.Time{}, ""
		row.Asked, row.Waited = time.Time{}, 0
		if err := o.at(ctx, s.name, "%s", s.does); err != nil {
			return err
		}
		err := o.try(ctx, s, row, finished)
		finished = false
		row.Ended = workflow.Now(ctx)
		if err == nil {
			row.State = inventory.StepDone
			return o.write(ctx)
		}
		row.State, row.Message = inventory.StepFailed, cause(err)
		if errors.Is(err, errAborted) { // the step has asked by itself
			row.Message = cause(err)
			return err
		}
		if temporal.IsCanceledError(err) {
			row.Message = "cancelled"
			return err
		}
		if err := o.person(ctx, s, row); err != nil {
			return err
		}
		if row.State == inventory.StepSkipped {
			return o.write(ctx)
		}
	}
}

// try does one step and waits until it is seen to work.
func (o *operation) try(ctx workflow.Context, s step, row *inventory.OperationStep, finished bool) error {
	if finished && s.ready != nil {
		if err := s.ready(ctx, s.last()); err == nil || temporal.IsCanceledError(err) {
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
		if err := o.at(ctx, s.name, "%s", s.waits); err != nil {
			return err
		}
	}
	err := s.ready(ctx, max(s.budget-workflow.Now(ctx).Sub(began), s.last()))
	if err == nil || temporal.IsCanceledError(err) || errors.Is(err, errAborted) {
		return err
	}
	// Whatever the timer says, one more look, now that everything is up.
	if again := s.ready(ctx, s.last()); again == nil || temporal.IsCanceledError(again) {
		return again
	}
	return err
}

// person asks what is to be done about a step that failed. Nil means: again,
// or go on when the step was skipped.
func (o *operation) person(ctx workflow.Context, s step, row *inventory.OperationStep) error {
	for undone := false; ; {
		choices := []string{Retry}
		if s.undo != nil && !undone {
			choices = append(choices, Undo)
		}
		if !s.must {
			choices = append(choices, Skip)
		}
		choices = append(choices, Abort)
		d, err := o.ask(ctx, row, fmt.Sprintf("step %s: %s", s.name, row.Message), choices)
		if err != nil {
			return err
		}
		switch d.Choice {
		case Skip:
			row.State, row.Message = inventory.StepSkipped, "skipped by a person: "+row.Message
			return nil
		case Retry:
			return nil
		}
		if err := s.undo(ctx); err != nil {
			if temporal.IsCanceledError(err) {
				return err
			}
			row.Message = "undoing: " + cause(err)
			continue
		}
		undone = true
		row.State, row.Message = inventory.StepUndone, "undone: "+s.undoes
	}
}

// ask stops until a person has decided.
func (o *operation) ask(ctx workflow.Context, row *inventory.OperationStep, text string, choices []string) (Decision, error) {
	o.asked++
	before, message, state := o.record.Step, o.record.Message, row.State
	id := fmt.Sprintf("%s.%d", row.Name, o.asked)
	o.decision = nil
	o.record.Question = &inventory.Question{ID: id, Text: text, Choices: choices, Since: workflow.Now(ctx)}
	o.record.Next = fmt.Sprintf("ingot operation decide %s --question %s --choice %s", o.record.ID, id, choices[0])
	row.Wait(workflow.Now(ctx))
	if err := o.at(ctx, inventory.PhaseWaiting, "%s", text); err != nil {
		return Decision{}, err
	}
	if err := workflow.Await(ctx, func() bool { return o.decision != nil }); err != nil {
		return Decision{}, err
	}
	d := *o.decision
	o.log.Info("decided", "question", id, "choice", d.Choice, "by", d.By)
	o.decision, o.record.Question, o.record.Next = nil, nil, ""
	row.State = state
	row.Resume(workflow.Now(ctx))
	if err := o.show(ctx, before, "%s", message); err != nil {
		return Decision{}, err
	}
	if err := o.commit(ctx); err != nil {
		return Decision{}, err
	}
	if d.Choice == Abort {
		return d, errAborted
	}
	return d, nil
}

// rollBack takes back what has been done, the last step first, whatever becomes
// of ctx. What cannot be taken back is said in its row.
func (o *operation) rollBack(ctx workflow.Context, steps []step) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	var errs []error
	for i := len(steps) - 1; i >= 0; i-- {
		s, row := steps[i], &o.record.Steps[i]
		if row.State == inventory.StepPending || row.State == inventory.StepUndone || s.undo == nil {
			continue
		}
		if err := o.at(ctx, s.name, "taking back: %s", s.undoes); err != nil {
			return err
		}
		if err := s.undo(ctx); err != nil {
			row.Message = "undoing: " + cause(err)
			errs = append(errs, fmt.Errorf("undoing %q: %w", s.name, err))
			continue
		}
		row.State, row.Message, row.Ended = inventory.StepUndone, "undone: "+s.undoes, workflow.Now(ctx)
	}
	return errors.Join(errs...)
}

// end gives the record its final state, and returns what the workflow ends with.
func (o *operation) end(ctx workflow.Context, err error) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	state, phase, message := inventory.StateSuccess, inventory.PhaseDone, o.record.Message
	switch {
	case err == nil:
	case temporal.IsCanceledError(err):
		state, phase, message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"+o.kept
	default:
		state, phase, message = inventory.StateFailed, inventory.PhaseFailed, cause(err)
	}
	o.record.State, o.record.Question, o.record.Next, o.record.Ended = state, nil, "", workflow.Now(ctx)
	if e := o.final(ctx, phase, message); err == nil {
		err = e
	}
	if e := workflow.Await(ctx, func() bool { return workflow.AllHandlersFinished(ctx) }); err == nil {
		err = e
	}
	if err == nil || temporal.IsCanceledError(err) {
		return err
	}
	return temporal.NewNonRetryableApplicationError(message, state, nil)
}

// final is at for the last time.
func (o *operation) final(ctx workflow.Context, phase, message string) error {
	if err := o.show(ctx, phase, "%s", message); err != nil {
		return err
	}
	return o.commit(ctx)
}

// probe runs an activity that waits by itself, within a time, however often its
// worker dies meanwhile. It is a ready.
func probe(ctx workflow.Context, within time.Duration, activity any, arg, result any) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		ScheduleToCloseTimeout: within, HeartbeatTimeout: workerLost,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second},
	}), activity, arg).Get(ctx, result)
}

// typeBusy: somebody else's run has the machine.
const typeBusy = "Busy"

// closing is how often a run that ends is waited for: half a minute in all.
const closing = 5

// child starts the workflow of a machine, or finds the one again that this
// operation has started, and waits until its record is final. With asking, a
// run that waits for a person is an outcome, too. A cancellation is passed on,
// and the run's end awaited.
func (o *operation) child(ctx workflow.Context, row *inventory.OperationStep, typ, machine string, input any, asking bool) (activities.Outcome, error) {
	var out activities.Outcome
	// A run that is started under ctx is cancelled with it, also one that waits
	// for a person and is to be left alone. This context is never cancelled.
	alone, _ := workflow.NewDisconnectedContext(ctx)
	run, err := o.installed(alone, machine, o.record.Started)
	if err == nil && run == "" {
		run, err = o.startChild(alone, typ, machine, input)
	}
	if err != nil {
		return out, err
	}
	row.Run = run
	if err := o.write(alone); err != nil {
		return out, err
	}
	return o.awaitChild(ctx, machine, run, asking)
}

// awaitChild is child for a run that was started before.
func (o *operation) awaitChild(ctx workflow.Context, machine, run string, asking bool) (activities.Outcome, error) {
	var out activities.Outcome
	forever := workflow.WithActivityOptions(ctx, awaiting)
	err := workflow.ExecuteActivity(forever, do.AwaitRun, activities.OutcomeRequest{Run: run, Asking: asking}).Get(ctx, &out)
	if !temporal.IsCanceledError(err) {
		return out, err
	}
	rest, done := workflow.NewDisconnectedContext(forever)
	defer done()
	// One that has ended meanwhile is no error: its record says so.
	if e := workflow.RequestCancelExternalWorkflow(rest, MachineID(machine), run).Get(rest, nil); e != nil {
		o.log.Info("passing on the cancellation", "machine", machine, "run", run, "error", e)
	}
	if e := workflow.ExecuteActivity(rest, do.AwaitRun, activities.OutcomeRequest{Run: run}).Get(rest, &out); e != nil {
		return out, e
	}
	return out, err
}

// installed returns the run by which this operation has installed the machine
// already: one that was reset from outside does not know of it, and would install
// the machine again. A local activity is carried out in the task that starts the
// run, so a reset to that very task repeats it.
func (o *operation) installed(ctx workflow.Context, machine string, since time.Time) (string, error) {
	var last activities.OwnRun
	q := activities.InstalledRequest{Machine: machine, Parent: o.record.ID, Since: since}
	err := workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, local), do.Installed, q).Get(ctx, &last)
	return last.Run, err
}

func (o *operation) startChild(ctx workflow.Context, typ, machine string, input any) (string, error) {
	child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID: MachineID(machine), ParentClosePolicy: enums.PARENT_CLOSE_POLICY_ABANDON,
		WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
	})
	var open activities.OwnRun
	for n := 0; ; n++ {
		var begun workflow.Execution
		err := workflow.ExecuteChildWorkflow(child, typ, input).GetChildWorkflowExecution().Get(ctx, &begun)
		var busy *temporal.ChildWorkflowExecutionAlreadyStartedError
		if !errors.As(err, &busy) {
			return begun.RunID, err
		}
		q := activities.OpenRunRequest{Machine: machine, Parent: o.record.ID}
		if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), do.OpenRun, q).Get(ctx, &open); err != nil {
			return "", err
		}
		// By its record no run is open: one has just ended, and Temporal is about to
		// learn of it.
		if open.Run != "" || n == closing {
			break
		}
		if err := workflow.Sleep(ctx, time.Second<<n); err != nil {
			return "", err
		}
	}
	if !open.Mine {
		return "", temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("machine %q is busy: another run has it (ingot workflow get %s)", machine, machine), typeBusy, nil)
	}
	return open.Run, nil
}
