package workflows

import (
	"cmp"
	"fmt"
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// together is a run of ProvisionTogether: an operation with one step for each machine.
type together struct {
	*operation
	in       contract.TogetherInput
	machines []activities.TogetherMachine // one for each step
}

// ProvisionTogether has several machines carry out the tasks of one template, in the template's order. Each machine has its own run of
// Provision. All of them are planned before one of them takes its machine, and the grants of all machines are taken in one step, or none.
// Then all machines are booted; the agent of a machine waits until it is the turn of its task. A machine whose task fails ends the
// operation; the runs that wait for it fail too. The workflow id is together/<name>.
func ProvisionTogether(ctx workflow.Context, in contract.TogetherInput) (Outcome, error) {
	o, err := newOperation(ctx, inventory.TypeTogether, contract.TogetherID(in.Name), in.Name, in)
	if err != nil {
		return Outcome{}, err
	}
	t := &together{operation: o, in: in}
	o.ownSince = o.record.Started
	err = inOrder(ctx, t.planMachines, t.install)
	if err == nil {
		o.record.Message = fmt.Sprintf("%d machines are installed", len(t.machines))
	}
	o.next = "ingot together retry " + in.Name
	err = o.end(ctx, err)
	return Outcome{State: o.record.State, Message: o.record.Message}, err
}

// planMachines finds the machines and adds a step for each to the record.
func (t *together) planMachines(ctx workflow.Context) error {
	if err := t.showStep(ctx, inventory.PhasePlan, "finding the machines"); err != nil {
		return err
	}
	if err := invalid(t.in.Validate()); err != nil {
		return err
	}

	q := activities.TogetherRequest{
		ID: t.record.ID, Since: t.record.Started, Template: t.in.Template, HardwareMap: t.in.HardwareMap, Resume: t.in.Resume,
	}
	if err := execute(ctx, planning, &t.machines, do.TogetherMachines, q); err != nil {
		return err
	}
	for _, m := range t.machines {
		row := inventory.OperationStep{
			Name: m.Machine, Machine: m.Machine, Does: "carry out the machine's tasks", Waits: "until the installed system has phoned home",
			Undo: "none: the old contents of the disk are lost", State: inventory.StepPending,
		}
		if m.Done != "" {
			row.State, row.Run, row.Message = inventory.StepDone, m.Done, "done by an earlier operation"
		}
		t.record.Steps = append(t.record.Steps, row)
	}
	return t.writeRecord(ctx)
}

// install starts a run for each machine that is not done, has all of them planned, takes all grants, and waits until all runs have ended.
// If it fails before the grants are taken, it cancels the runs: no machine was touched.
func (t *together) install(ctx workflow.Context) error {
	if err := inOrder(ctx, t.startRuns, t.takeGrants); err != nil {
		t.cancelRuns(ctx)
		return err
	}

	rest, done := workflow.NewDisconnectedContext(ctx) // a cancellation reaches the runs through follow
	defer done()
	if err := t.showStep(rest, inventory.PhaseAction, "installing %d machines", len(t.machines)); err != nil {
		return err
	}

	open := 0
	for n := range t.record.Steps {
		if row := &t.record.Steps[n]; row.State != inventory.StepDone {
			open++
			workflow.Go(ctx, func(ctx workflow.Context) {
				t.follow(ctx, row)
				open--
			})
		}
	}
	if err := workflow.Await(rest, func() bool { return open == 0 }); err != nil {
		return err
	}

	var failed []string
	for _, row := range t.record.Steps {
		if row.State != inventory.StepDone {
			failed = append(failed, row.Machine+": "+row.Message)
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case len(failed) > 0:
		return newError(typeActionFailed, "%s", strings.Join(failed, "; "))
	}
	return nil
}

// startRuns starts the runs in the order of the machines' names.
func (t *together) startRuns(ctx workflow.Context) error {
	for n, m := range t.machines {
		row := &t.record.Steps[n]
		if row.State == inventory.StepDone {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		in := contract.ProvisionInput{
			Machine: m.Machine, Template: t.in.Template, Image: t.in.Image, HardwareMap: t.in.HardwareMap, Retries: t.in.Retries,
			Policy: t.in.Policy, Resume: m.Resume, Parent: t.record.ID, By: t.in.By,
		}
		run, err := t.startOrFindRun(ctx, inventory.TypeProvision, m.Machine, t.record.Started, in)
		if err != nil {
			row.State, row.Message = inventory.StepFailed, messageOf(err)
			return err
		}
		row.Run, row.State, row.Since = run, inventory.StepRunning, workflow.Now(ctx)
		rest, done := workflow.NewDisconnectedContext(ctx)
		err = t.writeRecord(rest)
		done()
		if err != nil {
			return err
		}
	}
	return nil
}

// takeGrants waits until all runs are planned and takes the grants of all machines.
func (t *together) takeGrants(ctx workflow.Context) error {
	var first *inventory.OperationStep
	var runs []activities.TogetherRun
	for n := range t.record.Steps {
		if row := &t.record.Steps[n]; row.State != inventory.StepDone {
			first = cmp.Or(first, row)
			runs = append(runs, activities.TogetherRun{Machine: row.Machine, Run: row.Run})
		}
	}
	if err := t.showStep(ctx, inventory.PhaseArm, "planning the installation of %d machines", len(runs)); err != nil {
		return err
	}
	if err := execute(ctx, awaiting, nil, do.AwaitPlanned, runs); err != nil {
		return err
	}

	for q := (activities.ArmTogetherRequest{Runs: runs}); ; {
		err := execute(ctx, quick, nil, do.ArmTogether, q)
		if err == nil || !hasType(err, activities.TypeClock) {
			return err
		}
		choice, err := t.askAboutStep(ctx, first, messageOf(err), []string{contract.Retry, contract.Continue, contract.Abort})
		if err != nil {
			return err
		}
		q.ClockRight = choice == contract.Continue
	}
}

// cancelRuns cancels the runs that were started, and waits until they have ended.
func (t *together) cancelRuns(ctx workflow.Context) {
	for n := range t.record.Steps {
		row := &t.record.Steps[n]
		if row.Run == "" || row.State != inventory.StepRunning && row.State != inventory.StepWaiting {
			continue
		}
		out, err := t.cancelRun(ctx, followMachine(row.Machine, row.Run))
		t.recordOutcome(ctx, row, out, err)
	}
}

// follow waits until the run of a step has ended. A cancellation is passed on to the run.
func (t *together) follow(ctx workflow.Context, row *inventory.OperationStep) {
	for q := (activities.OutcomeRequest{Run: row.Run, Asking: true}); ; {
		var out activities.Outcome
		err := execute(ctx, awaiting, &out, do.AwaitRun, q)
		if temporal.IsCanceledError(err) {
			out, err = t.cancelRun(ctx, followMachine(row.Machine, row.Run))
		}
		if err != nil || inventory.Final(out.State) {
			t.recordOutcome(ctx, row, out, err)
			return
		}

		q.Known = ""
		if row.Resume(workflow.Now(ctx)); out.Asks {
			q.Known = out.Message
			row.Wait(workflow.Now(ctx))
		} else {
			row.State = inventory.StepRunning
		}
		row.Message = out.Message
		t.note(ctx)
	}
}

// recordOutcome records how the run of a step has ended.
func (t *together) recordOutcome(ctx workflow.Context, row *inventory.OperationStep, out activities.Outcome, err error) {
	row.Resume(workflow.Now(ctx))
	row.State, row.Message, row.Ended = inventory.StepFailed, out.Message, workflow.Now(ctx)
	switch {
	case err != nil:
		row.Message = messageOf(err)
	case out.State == inventory.StateSuccess:
		row.State = inventory.StepDone
	case out.State != inventory.StateFailed:
		row.Message = fmt.Sprintf("ended as %s: %s", out.State, out.Message)
	}
	t.note(ctx)
}

// note stores the record. A failure is only logged: the next write stores it too.
func (t *together) note(ctx workflow.Context) {
	ctx, done := workflow.NewDisconnectedContext(ctx)
	defer done()
	if err := t.writeRecord(ctx); err != nil {
		t.log.Error("recording the state of a machine", "error", err)
	}
}
