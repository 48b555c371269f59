package workflows_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// fails makes the attempt with this number at an action fail.
func (w *world) fails(index int) {
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == index {
			return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
}

// TestRetryRefusesNewerInstallation: the rest of a run may be written only to the disk as that
// run left it.
func TestRetryRefusesNewerInstallation(t *testing.T) {
	w := newWorld(t, nil)
	w.runID("r1")
	w.fails(1)
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "disk on fire")
	require.Contains(t, w.record().Next, "--from failed-step")

	// A run that wrote nothing is not a newer installation.
	w = w.another("r2")
	w.noAgent = func(int) bool { return true }
	require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
	w = w.another("r3")
	w.fails(2)
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine, Resume: "r1"}), "disk on fire")
	require.Equal(t, []int{0, 1}, []int{w.record().Actions[0].Attempt, w.record().Actions[1].Attempt})

	// r3 has continued r1: only r3 can be continued now.
	refused := func(run, resume string) {
		t.Helper()
		w = w.another(run)
		before, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine, Resume: resume}), "the run can only be retried from the start")
		require.Zero(t, w.cycles+w.offs+len(w.boot)+len(w.assigned), "the machine was touched")
		after, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
	refused("r4", "r1")
	w = w.another("r5")
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Resume: "r3"}))
	refused("r6", "r3")
	w = w.another("r7")
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	for _, run := range []string{"r1", "r3"} {
		refused("r8-"+run, run)
	}
}

// TestRetryIsRefusedWhereItTakesTheGrant: a write of another run after the plan was made counts,
// too.
func TestRetryIsRefusedWhereItTakesTheGrant(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	plan := func(q activities.PlanRequest) activities.Planned {
		t.Helper()
		q.Machine = machine
		p, err := w.do.Plan(ctx, q)
		require.NoError(t, err)
		return p
	}
	record := func(run, state string) {
		t.Helper()
		require.NoError(
			t,
			w.Store.Workflows.PutWorkflow(
				ctx,
				inventory.Workflow{Run: run, Machine: machine, State: state, Actions: []inventory.ActionRecord{{State: action.Failed}}},
			),
		)
	}
	plan(activities.PlanRequest{Run: "r1"})
	record("r1", inventory.StateFailed)

	// r2 was terminated from outside: its activities outlive it.
	plan(activities.PlanRequest{Run: "r2"})
	g, err := w.Store.Grants.TakeGrant(ctx, machine, "r2", workflows.MachineID(machine), false)
	require.NoError(t, err)
	_, err = w.Store.Grants.AllowBoot(ctx, g.Owner, 1, w.env.Now().Add(1e12))
	require.NoError(t, err)
	w.claims()
	retry := plan(activities.PlanRequest{Run: "r3", Resume: "r1"})
	record("r3", inventory.StatePreparing)
	k := action.Key{Epoch: g.Epoch, Attempt: 1}
	require.NoError(
		t,
		w.do.Assign(ctx, activities.AssignRequest{Owner: g.Owner, Boot: 1, Key: k, Disk: &action.Disk{Path: "/dev/vda", Serial: "D1"}}),
	)

	err = w.act(w.do.Arm, activities.ArmRequest{Machine: machine, Run: "r3", WorkflowID: workflows.MachineID(machine), Plan: retry.Digest})
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.True(t, app.NonRetryable())
	after, err := w.Store.Grants.Grant(ctx, machine)
	require.NoError(t, err)
	require.Equal(t, g.Owner, after.Owner)
}

// A run that was reset from outside, before it had a plan, is an old order if another run has installed or wiped the machine since.
func TestResetOfASupersededRunTakesNoGrant(t *testing.T) {
	w := newWorld(t, nil)
	arm := func(run, of string) error {
		return w.act(w.do.Arm, activities.ArmRequest{Machine: machine, Run: run, WorkflowID: workflows.MachineID(machine), ResetOf: of})
	}
	record := func(run, kind string, epoch int64) {
		t.Helper()
		require.NoError(t, w.Store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
			Run: run, ID: workflows.MachineID(machine), Type: kind, Machine: machine, State: inventory.StatePreparing, Phase: "x", Epoch: epoch,
		}))
	}
	record("old", inventory.TypeDecommission, 1)
	record("refused", inventory.TypeProvision, 0) // it has not taken the machine
	record("reset", inventory.TypeDecommission, 0)
	record("inspection", inventory.TypeInspect, 2)
	require.NoError(t, arm("reset", "old"))
	record("later", inventory.TypeProvision, 3)
	record("again", inventory.TypeDecommission, 0)
	require.ErrorContains(t, arm("again", "old"), `run "old" was reset in Temporal, but run "later" is newer`)
	require.ErrorContains(t, arm("again", "gone"), `run "gone" was reset in Temporal, and its record is deleted`)
	require.NoError(t, arm("new", ""))
}
