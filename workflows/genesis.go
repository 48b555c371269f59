package workflows

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

// bootstrap is a run of Genesis.
type bootstrap struct {
	*operation
	in     GenesisInput
	target string // peer of the migration
	// since is when installations of this Genesis begin to count: those of
	// earlier runs do only for one that resumes.
	since time.Time
	// undone is when the step of a machine was undone: what was installed before
	// does not count.
	undone map[string]time.Time
}

// Genesis makes a running lab of what one lab file describes: it carries out
// the table of package genesis, step by step. Each step looks before it does
// anything, so that it may be begun again at any point, and ends when its probe
// agrees. One that fails asks a person, who may have it undone. Its id is
// genesis/<name>; the file lies in the inventory under that name.
//
// A cancellation takes back the step under way and leaves alone what is done.
func Genesis(ctx workflow.Context, in GenesisInput) (out Outcome, err error) {
	o, err := newOperation(ctx, GenesisType, GenesisID(in.Name), in.Name, in)
	if err != nil {
		return Outcome{}, err
	}
	g := &bootstrap{operation: o, in: in, undone: map[string]time.Time{}}
	if !in.Resume {
		g.since = o.record.Started
	}
	defer func() {
		err = g.end(ctx, err)
		out = Outcome{State: g.record.State, Message: g.record.Message}
	}()
	if err = g.at(ctx, inventory.PhasePlan, "reading the lab file"); err != nil {
		return out, err
	}
	var t activities.LabTable
	q := activities.LabRequest{Name: in.Name, Run: o.record.Run, Resume: in.Resume, Again: in.Again}
	if err = workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, planning), do.ReadLab, q).Get(ctx, &t); err != nil {
		return out, err
	}
	g.target = t.Target
	steps, finished := g.rows(t)
	g.table(steps, finished)
	if err = g.carryOut(ctx, steps, finished); temporal.IsCanceledError(err) {
		g.leave(ctx, steps)
	}
	if err == nil {
		g.record.Message = fmt.Sprintf("all %d steps are done", len(steps))
	}
	return out, err
}

// rows makes the table of the lab file one that can be carried out.
func (g *bootstrap) rows(t activities.LabTable) ([]step, map[string]bool) {
	var steps []step
	finished := map[string]bool{}
	for _, s := range t.Steps {
		r := step{name: s.Name, machine: s.Machine, does: s.Does, undoes: s.Undo, budget: s.Budget, waits: "until " + s.Ready}
		if s.Waits != "" {
			r.waits = s.Waits + ": " + r.waits
		}
		g.deeds(&r, s, t)
		steps = append(steps, r)
		finished[s.Name] = s.Finished
	}
	return steps, finished
}

// deed is bmc for what an operation does itself.
var deed = workflow.ActivityOptions{StartToCloseTimeout: bmc.StartToCloseTimeout, HeartbeatTimeout: workerLost, RetryPolicy: bmc.RetryPolicy}

// deeds says what each kind of step does, how it is proven, and how it is taken
// back.
func (g *bootstrap) deeds(r *step, s activities.LabStep, t activities.LabTable) {
	q := activities.LabRequest{Name: g.in.Name, Run: g.record.Run, Machine: s.Machine}
	ready := func(activity any, q activities.LabRequest) func(workflow.Context, time.Duration) error {
		return func(ctx workflow.Context, within time.Duration) error { return probe(ctx, within, activity, q, nil) }
	}
	if s.Writes() {
		r.do = func(ctx workflow.Context, row *inventory.OperationStep) error { return g.install(ctx, row, s) }
		r.undo = func(ctx workflow.Context) error { return g.switchOff(ctx, s) }
	}
	switch s.Kind {
	case genesis.StepPreflight:
		q.Installed, q.Ours = t.Installed, t.Ours
		r.must = true // it is what stores the machines
		r.do = func(ctx workflow.Context, _ *inventory.OperationStep) error {
			return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, deed), do.Preflight, q).Get(ctx, nil)
		}
	case genesis.StepRouter:
		r.ready = ready(do.RouterReady, q)
	case genesis.StepRelay:
		r.ready = ready(do.RelayProven, q)
	case genesis.StepPlatform:
		r.ready = ready(do.TalosReady, q)
	case genesis.StepKubernetes:
		r.do = func(ctx workflow.Context, _ *inventory.OperationStep) error {
			return probe(ctx, s.Budget, do.TalosBootstrap, q, nil)
		}
		r.ready = ready(do.KubernetesReady, q)
	case genesis.StepMigrate:
		r.do = func(ctx workflow.Context, row *inventory.OperationStep) error { return g.migrate(ctx, row, s) }
		r.ready = ready(do.Migrated, q)
		r.undo = func(ctx workflow.Context) error {
			return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, deed), do.RemoveTarget, q).Get(ctx, nil)
		}
	case genesis.StepCreate:
		r.ready = ready(do.NodeAnswers, q)
	case genesis.StepVIP:
		r.ready = ready(do.ClusterReady, q)
	case genesis.StepJoin:
		r.ready = ready(do.ClusterHas, q)
	case genesis.StepProven:
		q.Machine = ""
		for _, x := range t.Steps {
			switch x.Kind {
			case genesis.StepKubernetes:
				r.ready = ready(do.KubernetesReady, q)
			case genesis.StepVIP:
				r.ready = ready(do.ClusterHas, q)
			}
		}
	}
}

// install has the step's machine installed by a run of its own. One that this
// Genesis has installed already is left alone, and one that is under way is
// followed, unless the step was undone since.
func (g *bootstrap) install(ctx workflow.Context, row *inventory.OperationStep, s activities.LabStep) error {
	since := g.since
	if at, ok := g.undone[s.Machine]; ok {
		since = at
	}
	run, err := g.installed(ctx, s.Machine, since)
	if err == nil && run == "" {
		in := ProvisionInput{Machine: s.Machine, HardwareMap: s.HardwareMap, Parent: g.record.ID}
		// A cancellation while it begins must not leave behind a run that nobody
		// knows. This context is never cancelled: the run would be, with it.
		rest, _ := workflow.NewDisconnectedContext(ctx)
		run, err = g.startChild(rest, ProvisionType, s.Machine, in)
	}
	if err != nil {
		return err
	}
	return g.followRun(ctx, row, s, run)
}

func (g *bootstrap) followRun(ctx workflow.Context, row *inventory.OperationStep, s activities.LabStep, run string) error {
	row.Run = run
	return g.follow(ctx, row, s, follower{id: MachineID(s.Machine), run: run, look: "ingot workflow get " + s.Machine, await: do.AwaitRun, now: do.RunNow})
}

// migrate has this server moved to the lab's platform, which gets a standby
// first. The operation that does it goes on at the target, and so does this one.
func (g *bootstrap) migrate(ctx workflow.Context, row *inventory.OperationStep, s activities.LabStep) error {
	q := activities.LabRequest{Name: g.in.Name, Machine: s.Machine, Since: g.since}
	if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, deed), do.DeployTarget, q).Get(ctx, nil); err != nil {
		return err
	}
	id := MigrateID(g.target)
	// As in installed: a Genesis that was reset from outside does not know of it.
	var moved activities.OwnRun
	if err := workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, local), do.MovedTo, q).Get(ctx, &moved); err != nil {
		return err
	}
	if moved.Run != "" {
		return g.followMigration(ctx, row, s, id, moved.Run)
	}
	rest, _ := workflow.NewDisconnectedContext(ctx)
	child := workflow.WithChildOptions(rest, workflow.ChildWorkflowOptions{
		WorkflowID: id, ParentClosePolicy: enums.PARENT_CLOSE_POLICY_ABANDON, WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
	})
	var begun workflow.Execution
	err := workflow.ExecuteChildWorkflow(child, MigrateType, MigrateInput{Name: g.target, Target: g.target, Genesis: g.in.Name}).GetChildWorkflowExecution().Get(rest, &begun)
	var under *temporal.ChildWorkflowExecutionAlreadyStartedError
	if errors.As(err, &under) { // begun by an earlier run of this Genesis, or by a person: it is the same house that moves
		err = workflow.ExecuteActivity(workflow.WithActivityOptions(rest, quick), do.OpenOperation, id).Get(rest, &begun.RunID)
	}
	if err != nil {
		return err
	}
	return g.followMigration(ctx, row, s, id, begun.RunID)
}

func (g *bootstrap) followMigration(ctx workflow.Context, row *inventory.OperationStep, s activities.LabStep, id, run string) error {
	row.Run = run
	return g.follow(ctx, row, s, follower{id: id, run: run, look: "ingot operation get " + id, await: do.AwaitOperation, now: do.OperationNow})
}

// follower is how the outcome of another workflow is learnt.
type follower struct {
	id, run    string
	look       string // the command that shows it
	await, now any    // activities
}

// follow waits until the workflow is over by its record, and says meanwhile
// when it waits for a person, which does not count against the step's budget.
// When the budget has passed, its record is read once more before a person is
// asked. A cancellation is passed on, and the end awaited.
func (g *bootstrap) follow(ctx workflow.Context, row *inventory.OperationStep, s activities.LabStep, f follower) error {
	if err := g.write(ctx); err != nil {
		if temporal.IsCanceledError(err) {
			err = errors.Join(err, g.stop(ctx, f))
		}
		return err
	}
	left, known := s.Budget, ""
	for {
		began := workflow.Now(ctx)
		options := awaiting
		if known == "" {
			options.ScheduleToCloseTimeout = max(left, lastLookOf(s.Budget))
		}
		var out activities.Outcome
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, options), f.await, activities.OutcomeRequest{Run: f.run, Asking: true, Known: known}).Get(ctx, &out)
		if known == "" {
			left -= workflow.Now(ctx).Sub(began)
		}
		var late *temporal.TimeoutError
		switch {
		case temporal.IsCanceledError(err):
			return errors.Join(err, g.stop(ctx, f))
		case errors.As(err, &late):
			if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), f.now, f.run).Get(ctx, &out); err != nil {
				return err
			}
			if !inventory.Final(out.State) {
				return temporal.NewNonRetryableApplicationError(
					fmt.Sprintf("its budget of %s has passed, and it is still in phase %s: %s (%s)", s.Budget, out.Phase, out.Message, f.look), typeTimeout, nil)
			}
		case err != nil:
			return err
		}
		switch {
		case out.State == inventory.StateSuccess:
			row.Resume(workflow.Now(ctx))
			row.Message, g.record.Next = "", ""
			return nil
		case inventory.Final(out.State):
			row.Resume(workflow.Now(ctx))
			g.record.Next = ""
			return temporal.NewNonRetryableApplicationError(fmt.Sprintf("%s ended as %s: %s", f.id, out.State, out.Message), typeActionFailed, nil)
		case out.Asks:
			known = out.Message
			row.Message, g.record.Next = out.Message, f.look
			row.Wait(workflow.Now(ctx))
			if err := g.at(ctx, s.Name, "%s", out.Message); err != nil {
				return err
			}
		default:
			known = ""
			row.State, row.Message, g.record.Next = inventory.StepRunning, "", ""
			row.Resume(workflow.Now(ctx))
			if err := g.at(ctx, s.Name, "%s", s.Does); err != nil {
				return err
			}
		}
	}
}

// stop cancels the workflow and waits until its own clean-up is done.
func (g *bootstrap) stop(ctx workflow.Context, f follower) error {
	ctx, done := workflow.NewDisconnectedContext(ctx)
	defer done()
	// One that has ended meanwhile is no error: its record says so.
	if err := workflow.RequestCancelExternalWorkflow(ctx, f.id, f.run).Get(ctx, nil); err != nil {
		g.log.Info("passing on the cancellation", "workflow", f.id, "run", f.run, "error", err)
	}
	forever := workflow.WithActivityOptions(ctx, awaiting)
	return workflow.ExecuteActivity(forever, f.await, activities.OutcomeRequest{Run: f.run}).Get(ctx, nil)
}

// switchOff takes back as much of an installation as there is to take back:
// the run is stopped, which closes its windows, and the power is off, verified,
// where that needs no person. What was on the disk is gone.
func (g *bootstrap) switchOff(ctx workflow.Context, s activities.LabStep) error {
	g.undone[s.Machine] = workflow.Now(ctx)
	var open activities.OwnRun
	q := activities.OpenRunRequest{Machine: s.Machine, Parent: g.record.ID, TakeBack: true}
	if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), do.OpenRun, q).Get(ctx, &open); err != nil {
		return err
	}
	if open.Run != "" && open.Mine {
		if err := g.stop(ctx, follower{id: MachineID(s.Machine), run: open.Run, await: do.AwaitRun}); err != nil {
			return err
		}
	}
	if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), do.Idle, s.Machine).Get(ctx, nil); err != nil || s.Manual {
		return err
	}
	job := "off-" + g.in.Name
	child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID: BMCJobID(s.Machine, job), ParentClosePolicy: enums.PARENT_CLOSE_POLICY_ABANDON,
		WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
	})
	in := BMCJobInput{Machine: s.Machine, Job: job, Tasks: []inventory.BMCTask{{Power: "off"}}}
	return workflow.ExecuteChildWorkflow(child, BMCJobType, in).Get(ctx, nil)
}

// leave takes back the step that a cancellation has hit, and says which stay.
func (g *bootstrap) leave(ctx workflow.Context, steps []step) {
	ctx, done := workflow.NewDisconnectedContext(ctx)
	defer done()
	var stay []string
	for i := range steps {
		s, row := steps[i], &g.record.Steps[i]
		switch row.State {
		case inventory.StepDone:
			stay = append(stay, s.name)
			continue
		case inventory.StepPending, inventory.StepSkipped, inventory.StepUndone:
			continue
		}
		if s.undo == nil {
			row.State, row.Message = inventory.StepFailed, "cancelled; "+s.undoes
			continue
		}
		if err := s.undo(ctx); err != nil {
			row.State, row.Message = inventory.StepFailed, "cancelled; taking back: "+cause(err)
			g.log.Error("taking back the step under way", "step", s.name, "error", err)
			continue
		}
		row.State, row.Message = inventory.StepUndone, "cancelled; taken back: "+s.undoes
	}
	if len(stay) > 0 {
		g.kept = "; what is done stays: " + strings.Join(stay, ", ")
	}
}
