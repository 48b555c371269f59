package workflows

import (
	"errors"
	"fmt"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// Errors that end a run or change its course. The text of an error that ends the run becomes the message of the
// record.
var (
	errTimeout = errors.New("global timeout")
	errAborted = errors.New("aborted by the operator")
	// errRestart means that the operator restarts the whole run under a new epoch.
	errRestart = errors.New("restarted by the operator")
	// errSkipped means that the operator lets the run continue without the machine, see machineRun.skippable.
	errSkipped = errors.New("skipped by the operator")
	errFenced  = newError(activities.TypeFenced, "the run no longer owns the machine: a forced job has taken "+
		"the machine over, or an operator has disarmed it")
	errHeld = newError(activities.TypeHeld, "this run began before the server was restored from a backup: the machine may have "+
		"changed since, so the run does nothing more to it; check the machine, abort this run, and start another one if needed")
)

// machineRun holds what every workflow that owns a machine needs.
type machineRun struct {
	log    log.Logger // without the keys of the run, which the method logger adds
	grant  grant
	manual bool // the machine has no BMC: the operator switches it on and off
	// plannedAs is the id of the run for which the plan is stored, or "" if there is no plan. After a reset, this id differs from
	// owner.Run.
	plannedAs string
	// skippable means that the operator may let the run continue without the machine.
	skippable bool

	record    runRecord
	questions *questions
	signals   signals
	boot      boot
	budget    budget
}

// newMachineRun returns a run with a new record, which is not stored yet, and starts to receive its signals. It
// returns an error if the workflow does not have the id that its type and input require.
func newMachineRun(ctx workflow.Context, typ, id, machine string, input any) (*machineRun, error) {
	execution := workflow.GetInfo(ctx).WorkflowExecution
	if execution.ID != id {
		return nil, newError(activities.TypeInvalid,
			"invalid workflow id %q; a %s of machine %q must run under the id %q", execution.ID, typ, machine, id)
	}

	r := &machineRun{
		log:     workflow.GetLogger(ctx),
		grant:   grant{owner: inventory.Owner{Machine: machine, Run: execution.RunID}},
		signals: newSignals(),
		boot:    boot{left: inventory.MaxBoots},
		record: runRecord{input: input, Workflow: inventory.Workflow{
			Run: execution.RunID, ID: id, Type: typ, Machine: machine,
			State: inventory.StatePreparing, Started: workflow.Now(ctx), Actions: []inventory.ActionRecord{},
		}},
	}

	r.record.logger = r.logger
	err := workflow.SetQueryHandlerWithOptions(ctx, QueryStatus, r.status,
		workflow.QueryHandlerOptions{Description: "The state of the run"})
	if err != nil {
		return nil, err
	}

	if r.questions, err = newQuestions(ctx, "run", r.logger); err != nil {
		return nil, err
	}

	workflow.Go(ctx, r.receiveSignals)
	return r, nil
}

// logger returns a logger with the run's machine, epoch, boot and phase as they are now. Temporal's SDK adds the
// run id.
func (r *machineRun) logger() log.Logger {
	o := r.grant.owner
	o.Run = ""
	return log.With(r.log, append(o.LogKeys(r.boot.number), inventory.LogPhase, r.record.Phase)...)
}

func (r *machineRun) status() (Status, error) {
	s := Status{
		Machine: r.grant.owner.Machine, Run: r.grant.owner.Run, Epoch: r.grant.owner.Epoch, Boot: r.boot.number,
		State: r.record.State, Phase: r.record.Phase, Message: r.record.Message, Deadline: r.budget.deadline,
		Question: r.record.Question, Actions: r.record.Actions,
	}
	for _, a := range s.Actions {
		if a.State == action.Running {
			s.Action = a.Name
		}
	}
	return s, nil
}

// carryOut does what runToEnd does, for a run that needs the machine. If the run has lost its machine, carryOut waits until the
// operator aborts the run. After any failure, it calls stop to stop the action under way, unless stop is nil.
func (r *machineRun) carryOut(ctx workflow.Context, steps func(workflow.Context) error, stop func(workflow.Context)) (Outcome, error) {
	return r.runToEnd(ctx, func(ctx workflow.Context) error {
		err := steps(ctx)
		for lostMachine(err) {
			err = r.reportLostMachine(ctx, err)
		}
		if err != nil && stop != nil {
			stop(ctx)
		}
		return err
	})
}

// runToEnd calls steps. Then it releases the grant and writes the final record, even after a failure or a cancellation.
func (r *machineRun) runToEnd(ctx workflow.Context, steps func(workflow.Context) error) (Outcome, error) {
	err := r.end(ctx, steps(ctx))
	return Outcome{State: r.record.State, Message: r.record.Message}, err
}

// reportLostMachine asks the operator to abort a run that has lost its machine. It returns errAborted once the operator has done
// so.
func (r *machineRun) reportLostMachine(ctx workflow.Context, err error) error {
	kind := "fenced"
	if hasType(err, activities.TypeHeld) {
		kind = "held"
	}
	_, err = r.ask(ctx, r.questionID(kind, r.record.Phase), messageOf(err), contract.Abort)
	return err
}

// end releases the grant, after which the machine may not boot over the network or fetch secrets for this run, and writes the final
// record. err is the error of the steps. end returns the error with which the workflow ends.
func (r *machineRun) end(ctx workflow.Context, err error) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()

	state, phase, message := endOf(err, r.record.Message)
	if state == inventory.StateFailed && (errors.Is(err, errTimeout) || hasType(err, typeTimeout)) {
		state = inventory.StateTimeout
	}

	if err != nil && !hasType(err, typeQuarantined) {
		r.record.Next = r.retryCommand()
	}

	// Release the grant first: then, even if a later write fails, the machine may no longer boot over the network or fetch secrets.
	released := r.grant.release(ctx)
	r.record.State, r.record.Question, r.record.Ended = state, nil, workflow.Now(ctx)
	for i := range r.record.Actions {
		if a := &r.record.Actions[i]; a.State == action.Running {
			a.State = action.Stopped
		}
	}

	recorded := r.record.showPhase(ctx, phase, "%s", message)
	return endExecution(ctx, state, message, err, recorded, released)
}

// endOf returns the last state, phase and message of a workflow whose steps ended with err. If err is nil, the last message is the
// given one.
func endOf(err error, message string) (state, phase, last string) {
	switch {
	case err == nil:
		return inventory.StateSuccess, inventory.PhaseDone, message
	case temporal.IsCanceledError(err):
		return inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	}
	return inventory.StateFailed, inventory.PhaseFailed, messageOf(err)
}

// endExecution waits until all update handlers have finished, and returns the error with which the workflow ends. If all errs are
// nil, this is nil; a cancellation is returned unchanged, and for any other error, endExecution returns an error of the type state
// with message.
func endExecution(ctx workflow.Context, state, message string, errs ...error) error {
	errs = append(errs, workflow.Await(ctx, func() bool { return workflow.AllHandlersFinished(ctx) }))
	for _, err := range errs {
		switch {
		case temporal.IsCanceledError(err):
			return err
		case err != nil:
			return newError(state, "%s", message)
		}
	}
	return nil
}

// retryCommand returns the command with which the operator repeats a failed run.
func (r *machineRun) retryCommand() string {
	if in, ok := r.record.input.(contract.ProvisionInput); ok && in.Together() {
		return contract.RetryTogether(in.Parent)
	}
	planned := r.plannedAs == "" || r.plannedAs == r.grant.owner.Run
	for _, a := range r.record.Actions {
		if planned && a.Attempt > 0 {
			return fmt.Sprintf("ingot workflow logs %s; ingot workflow retry %s --from failed-step", r.grant.owner.Machine,
				r.grant.owner.Machine)
		}
	}
	return fmt.Sprintf("ingot workflow retry %s --from start", r.grant.owner.Machine)
}
