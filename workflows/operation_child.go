package workflows

import (
	"errors"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// followedRun is a workflow whose record an operation reads until the record is final. The record survives a reset of the operation
// and a move to another server.
type followedRun struct {
	id, run string
	look    string // the command that shows the workflow
	await   any    // the activity that waits for the record to change
	now     any    // the activity that reads the record once
}

func followMachine(machine, run string) followedRun {
	return followedRun{
		id: MachineID(machine), run: run, look: "ingot workflow get " + machine, await: do.AwaitRun,
		now: do.RunNow,
	}
}

// childContext returns a context whose child workflows outlive their parent.
func childContext(ctx workflow.Context, id string) workflow.Context {
	return workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID: id, ParentClosePolicy: enums.PARENT_CLOSE_POLICY_ABANDON,
		WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
	})
}

// startOrFindRun starts the workflow of a machine, and returns the run id. If this operation has already started one after since,
// it returns the id of that run instead: after a reset, the operation does not remember its runs and would install the machine
// again. The check is a local activity in the same workflow task as the start, so a reset to that task repeats the check.
func (o *operation) startOrFindRun(ctx workflow.Context, typ, machine string, since time.Time, input any) (string, error) {
	// A cancellation of ctx would also cancel a child that was started with ctx. But a child that waits for the operator must
	// continue, so use a context that is never canceled.
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	var own activities.OwnRun
	q := activities.InstalledRequest{Machine: machine, Parent: o.record.ID, Since: since}
	if err := executeLocal(ctx, &own, do.Installed, q); err != nil || own.Run != "" {
		return own.Run, err
	}

	for n := 0; ; n++ {
		var begun workflow.Execution
		child := workflow.ExecuteChildWorkflow(childContext(ctx, MachineID(machine)), typ, input)
		err := child.GetChildWorkflowExecution().Get(ctx, &begun)
		var busy *temporal.ChildWorkflowExecutionAlreadyStartedError
		if !errors.As(err, &busy) {
			return begun.RunID, err
		}
		q := activities.OpenRunRequest{Machine: machine, Parent: o.record.ID, Since: o.ownSince}
		if err := execute(ctx, quick, &own, do.OpenRun, q); err != nil {
			return "", err
		}
		// If the inventory has no open run, the run has just ended, and Temporal has not closed it yet.
		if own.Run != "" || n == busyRetries {
			break
		}
		if err := workflow.Sleep(ctx, time.Second<<n); err != nil {
			return "", err
		}
	}

	if !own.Mine {
		return "", newError(typeBusy, "machine %q is busy with another run (ingot workflow get %s)", machine, machine)
	}
	return own.Run, nil
}

// runMachine starts or finds the workflow of a machine and waits for its outcome.
func (o *operation) runMachine(ctx workflow.Context, row *inventory.OperationStep, typ, machine string,
	input any,
) (activities.Outcome, error) {
	run, err := o.startOrFindRun(ctx, typ, machine, o.record.Started, input)
	if err != nil {
		return activities.Outcome{}, err
	}
	row.Run = run
	rest, done := workflow.NewDisconnectedContext(ctx)
	defer done()
	if err := o.writeRecord(rest); err != nil {
		return activities.Outcome{}, err
	}
	return o.awaitRun(ctx, machine, run)
}

// awaitRun waits until the record of a machine's run is final or shows that the run waits for the operator. A cancellation is
// forwarded to the run, and awaitRun then waits until the run has ended.
func (o *operation) awaitRun(ctx workflow.Context, machine, run string) (activities.Outcome, error) {
	var out activities.Outcome
	err := execute(ctx, awaiting, &out, do.AwaitRun, activities.OutcomeRequest{Run: run, Asking: true})
	if !temporal.IsCanceledError(err) {
		return out, err
	}
	out, e := o.cancelRun(ctx, followMachine(machine, run))
	if e != nil {
		err = e
	}
	return out, err
}

// cancelRun cancels a workflow and waits until its clean-up is done.
func (o *operation) cancelRun(ctx workflow.Context, f followedRun) (out activities.Outcome, err error) {
	ctx, done := workflow.NewDisconnectedContext(ctx)
	defer done()
	// The workflow may have ended already. That is not an error: its record shows how.
	if err := workflow.RequestCancelExternalWorkflow(ctx, f.id, f.run).Get(ctx, nil); err != nil {
		o.log.Info("passing the cancellation to the child", "child", f.id, "child_run", f.run, "error", err)
	}
	err = execute(ctx, awaiting, &out, f.await, activities.OutcomeRequest{Run: f.run})
	return out, err
}

// followStep waits until the record of the step's workflow is final. The time in which that workflow waits for the operator is
// shown and does not count against the step's budget. After the budget, the record is read once more before the operator is asked.
// A cancellation is forwarded to the workflow, and followStep then waits until the workflow has ended.
func (o *operation) followStep(ctx workflow.Context, row *inventory.OperationStep, f followedRun) error {
	row.Run = f.run
	err := o.writeRecord(ctx)
	if err == nil {
		err = o.followUntilFinal(ctx, row, f)
	}
	if temporal.IsCanceledError(err) {
		_, stopped := o.cancelRun(ctx, f)
		err = errors.Join(err, stopped)
	}
	return err
}

func (o *operation) followUntilFinal(ctx workflow.Context, row *inventory.OperationStep, f followedRun) error {
	left, known := row.Budget, ""
	for {
		began := workflow.Now(ctx)
		options := awaiting
		if known == "" {
			options.ScheduleToCloseTimeout = max(left, lastLook(row.Budget))
		}
		var out activities.Outcome
		err := execute(ctx, options, &out, f.await, activities.OutcomeRequest{Run: f.run, Asking: true, Known: known})
		if known == "" {
			left -= workflow.Now(ctx).Sub(began)
		}
		if _, ok := errors.AsType[*temporal.TimeoutError](err); ok {
			if err = execute(ctx, quick, &out, f.now, f.run); err == nil && !inventory.Final(out.State) {
				err = newError(typeTimeout, "the step's budget of %s has passed, but its run is still in phase %s: %s (%s)",
					row.Budget, out.Phase, out.Message, f.look)
			}
		}
		if err != nil {
			return err
		}

		if out.Asks {
			known = out.Message
			row.Message, o.record.Next = out.Message, f.look
			row.Wait(workflow.Now(ctx))
			if err := o.showStep(ctx, row.Name, "%s", out.Message); err != nil {
				return err
			}
			continue
		}
		row.Resume(workflow.Now(ctx))
		o.record.Next = ""
		switch {
		case out.State == inventory.StateSuccess:
			row.Message = ""
			return nil
		case inventory.Final(out.State):
			return newError(typeActionFailed, "%s ended as %s: %s", f.id, out.State, out.Message)
		}
		known = ""
		row.State, row.Message = inventory.StepRunning, ""
		if err := o.showStep(ctx, row.Name, "%s", row.Does); err != nil {
			return err
		}
	}
}
