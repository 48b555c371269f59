package workflows

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// bootstrap is a run of Genesis.
type bootstrap struct {
	*operation
	in     GenesisInput
	table  activities.LabTable
	since  time.Time            // installations before this time do not count as done; zero with Resume
	undone map[string]time.Time // by machine: when its step was undone; its earlier installations do not count as done
}

// Genesis builds a running lab from one lab file: it carries out the steps that package genesis lists. Each step
// checks the state first, so it may run again at any point, and ends when its probe succeeds. When a step fails,
// the operator is asked and may have it undone. The workflow id is genesis/<name>; the lab file is stored in the
// inventory under that name.
//
// A cancellation undoes the step under way and keeps the finished steps.
func Genesis(ctx workflow.Context, in GenesisInput) (Outcome, error) {
	o, err := newOperation(ctx, inventory.TypeGenesis, GenesisID(in.Name), in.Name, in)
	if err != nil {
		return Outcome{}, err
	}
	g := &bootstrap{operation: o, in: in, undone: map[string]time.Time{}}
	if !in.Resume {
		g.since = o.record.Started
	}
	err = g.end(ctx, g.bootstrap(ctx))
	return Outcome{State: g.record.State, Message: g.record.Message}, err
}

func (g *bootstrap) bootstrap(ctx workflow.Context) error {
	if err := g.showStep(ctx, inventory.PhasePlan, "reading the lab file"); err != nil {
		return err
	}

	q := activities.LabRequest{Name: g.in.Name, Run: g.record.Run, Resume: g.in.Resume, Again: g.in.Again}
	if err := execute(ctx, planning, &g.table, do.ReadLab, q); err != nil {
		return err
	}

	steps, finished := g.steps()
	g.recordTable(steps, finished)
	err := g.runSteps(ctx, steps, finished)
	if temporal.IsCanceledError(err) {
		g.undoCancelledStep(ctx, steps)
	}

	if err == nil {
		g.record.Message = fmt.Sprintf("all %d steps are done", len(steps))
	}
	return err
}

// steps returns the steps of the lab file, and the names of the steps that an earlier Genesis has finished.
func (g *bootstrap) steps() ([]step, map[string]bool) {
	var steps []step
	finished := map[string]bool{}
	for _, s := range g.table.Steps {
		r := step{name: s.Name, machine: s.Machine, does: s.Does, undoes: s.Undo, budget: s.Budget, waits: "until " + s.Ready}
		if s.Waits != "" {
			r.waits = s.Waits + ": " + r.waits
		}
		g.addEffects(&r, s)
		steps = append(steps, r)
		finished[s.Name] = s.Finished
	}
	return steps, finished
}

// addEffects sets the functions do, ready and undo of r. They depend on the kind of s, which is the same step in the lab file.
func (g *bootstrap) addEffects(r *step, s activities.LabStep) {
	q := activities.LabRequest{Name: g.in.Name, Run: g.record.Run, Machine: s.Machine}
	ready := func(activity any) func(workflow.Context, time.Duration) error {
		return func(ctx workflow.Context, within time.Duration) error { return probe(ctx, within, activity, q) }
	}

	if s.Writes() {
		r.do = func(ctx workflow.Context, row *inventory.OperationStep) error { return g.install(ctx, row, s) }
		r.undo = func(ctx workflow.Context) error { return g.switchOff(ctx, s) }
	}

	switch s.Kind {
	case genesis.StepPreflight:
		q.Installed, q.Ours, q.Resume = g.table.Installed, g.table.Ours, g.in.Resume
		r.must = true // later steps install machines that this step stores in the inventory
		r.do = func(ctx workflow.Context, _ *inventory.OperationStep) error {
			return execute(ctx, operationBMC, nil, do.Preflight, q)
		}
	case genesis.StepRouter:
		r.ready = ready(do.RouterReady)
	case genesis.StepRelay:
		r.ready = ready(do.RelayProven)
	case genesis.StepPlatform:
		r.ready = ready(do.TalosReady)
	case genesis.StepKubernetes:
		r.do = func(ctx workflow.Context, _ *inventory.OperationStep) error {
			return probe(ctx, s.Budget, do.TalosBootstrap, q)
		}
		r.ready = ready(do.KubernetesReady)
	case genesis.StepMigrate:
		r.do = func(ctx workflow.Context, row *inventory.OperationStep) error { return g.migrate(ctx, row, s) }
		r.ready = ready(do.Migrated)
		r.undo = func(ctx workflow.Context) error { return execute(ctx, operationBMC, nil, do.RemoveTarget, q) }
	case genesis.StepCreate:
		r.ready = ready(do.NodeAnswers)
	case genesis.StepVIP:
		r.ready = ready(do.ClusterReady)
	case genesis.StepJoin:
		r.ready = ready(do.ClusterHas)
	case genesis.StepProven:
		q.Machine = ""
		for _, x := range g.table.Steps {
			switch x.Kind {
			case genesis.StepKubernetes:
				r.ready = ready(do.KubernetesReady)
			case genesis.StepVIP:
				r.ready = ready(do.ClusterHas)
			}
		}
	}
}

// install starts a run that installs the step's machine, and waits for its end. It starts no new run if a run of this Genesis is
// still open, or if this Genesis has installed the machine already and the step was not undone since then.
func (g *bootstrap) install(ctx workflow.Context, row *inventory.OperationStep, s activities.LabStep) error {
	since, undone := g.undone[s.Machine]
	if !undone {
		since = g.since
	}
	in := contract.ProvisionInput{Machine: s.Machine, HardwareMap: s.HardwareMap, Parent: g.record.ID, By: g.in.By}
	run, err := g.startOrFindRun(ctx, inventory.TypeProvision, s.Machine, since, in)
	if err != nil {
		return err
	}
	return g.followStep(ctx, row, followMachine(s.Machine, run))
}

// migrate deploys a standby server on the lab's platform, and starts the migration that makes this standby the active server. The
// migration and this Genesis continue on the new server.
func (g *bootstrap) migrate(ctx workflow.Context, row *inventory.OperationStep, s activities.LabStep) error {
	q := activities.LabRequest{Name: g.in.Name, Machine: s.Machine, Since: g.since}
	if err := execute(ctx, operationBMC, nil, do.DeployTarget, q); err != nil {
		return err
	}
	id := contract.MigrateID(g.table.Target)
	run, err := g.startOrFindMigration(ctx, id, q)
	if err != nil {
		return err
	}
	return g.followStep(ctx, row, followedRun{
		id: id, run: run, look: "ingot operation get " + id, await: do.AwaitOperation, now: do.OperationNow,
	})
}

// startOrFindMigration does what startOrFindRun does, for the migration to the lab's platform.
func (g *bootstrap) startOrFindMigration(ctx workflow.Context, id string, q activities.LabRequest) (string, error) {
	ctx, _ = workflow.NewDisconnectedContext(ctx)
	var moved activities.OwnRun
	if err := executeLocal(ctx, &moved, do.MovedTo, q); err != nil || moved.Run != "" {
		return moved.Run, err
	}

	in := contract.MigrateInput{Name: g.table.Target, Target: g.table.Target, Genesis: g.in.Name, By: g.in.By}
	var begun workflow.Execution
	err := workflow.ExecuteChildWorkflow(childContext(ctx, id), inventory.TypeMigrate, in).GetChildWorkflowExecution().Get(ctx, &begun)
	if _, busy := errors.AsType[*temporal.ChildWorkflowExecutionAlreadyStartedError](err); busy {
		// This Genesis or the operator has already started a migration; both move this server.
		err = execute(ctx, quick, &begun.RunID, do.OpenOperation, id)
	}
	return begun.RunID, err
}

// switchOff undoes an installation as far as possible. It cancels the run, after which the machine may no longer boot over the
// network or fetch secrets, and switches the machine off, unless only the operator can do that. The previous contents of the disk
// are lost.
func (g *bootstrap) switchOff(ctx workflow.Context, s activities.LabStep) error {
	g.undone[s.Machine] = workflow.Now(ctx)
	var open activities.OwnRun
	q := activities.OpenRunRequest{Machine: s.Machine, Parent: g.record.ID, TakeBack: true}
	if err := execute(ctx, quick, &open, do.OpenRun, q); err != nil {
		return err
	}

	if open.Run != "" && open.Mine {
		if _, err := g.cancelRun(ctx, followMachine(s.Machine, open.Run)); err != nil {
			return err
		}
	}

	if err := execute(ctx, quick, nil, do.Idle, s.Machine); err != nil || s.Manual {
		return err
	}

	in := contract.BMCJobInput{Machine: s.Machine, Job: "off-" + g.in.Name, Tasks: []inventory.BMCTask{{Power: "off"}}, By: g.in.By}
	return workflow.ExecuteChildWorkflow(childContext(ctx, BMCJobID(s.Machine, in.Job)), inventory.TypeBMCJob, in).Get(ctx, nil)
}

// undoCancelledStep undoes the step that was under way when Genesis was canceled. It sets kept to a text that names the steps that
// stay done.
func (g *bootstrap) undoCancelledStep(ctx workflow.Context, steps []step) {
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
			row.State, row.Message = inventory.StepFailed, "cancelled; undoing the step failed: "+messageOf(err)
			g.log.Error("undoing the step under way", "step", s.name, "error", err)
			continue
		}
		row.State, row.Message = inventory.StepUndone, "cancelled; undone: "+s.undoes
	}

	if len(stay) > 0 {
		g.kept = "; completed steps stay: " + strings.Join(stay, ", ")
	}
}
