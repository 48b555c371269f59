package workflows_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// runID sets and records the id of the world's next run.
func (w *world) runID(run string) {
	w.tape = workflows.NewTape(w.env, run)
}

// another returns a later run on the same machine and inventory.
func (w *world) another(run string) *world {
	w.t.Helper()
	n := newWorld(w.t, nil)
	n.Inventory, n.Store, n.on = w.Inventory, w.Store, w.on
	n.env.SetStartTime(w.env.Now())
	n.runID(run)
	return n
}

// TestResetTouchesNothing resets a run of each type, after it has ended and while the machine is in
// use, to every point from which it does not start like a new run. The machine is not touched, and
// no message refers to a plan that does not exist.
func TestResetTouchesNothing(t *testing.T) {
	provision := contract.ProvisionInput{Machine: machine}
	for name, c := range map[string]struct {
		workflow, input any
		id              string
		begins          string // a reset to before the end of this activity starts like a new run
		prepare         func(w *world)
	}{
		"Provision":        {workflow: workflows.Provision, input: provision, begins: "Plan"},
		"Provision failed": {workflow: workflows.Provision, input: provision, begins: "Plan", prepare: func(w *world) { w.fails(1) }},
		"Provision asked": {workflow: workflows.Provision, input: contract.ProvisionInput{Machine: machine, Policy: contract.Pause}, begins: "Plan", prepare: func(w *world) {
			w.fails(1)
			w.answer = func(inventory.Question) *contract.Decision {
				w.agentFor = func(a inventory.Assignment) *action.Result { return &action.Result{Key: a.Key, State: action.Success} }
				return &contract.Decision{Choice: contract.Restart}
			}
		}},
		"Reprovision":  {workflow: workflows.Reprovision, input: provision, begins: "Plan"},
		"Decommission": {workflow: workflows.Decommission, input: contract.DecommissionInput{Machine: machine}, begins: "PlanDecommission"},
		"Inspect":      {workflow: workflows.Inspect, input: contract.InspectInput{Machine: machine}, begins: "Arm"},
		"BMCJob": {
			workflow: workflows.BMCJob, id: workflows.BMCJobID(machine, "j"), begins: "Arm",
			input: contract.BMCJobInput{Machine: machine, Job: "j", Tasks: []inventory.BMCTask{{Power: "off"}, {BootDevice: &inventory.BootDevice{Device: "pxe"}}, {Power: "on"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := newWorld(t, nil)
			first.runID("before")
			if c.prepare != nil {
				c.prepare(first)
			}
			if c.id == "" {
				c.id = workflows.MachineID(machine)
			}
			start := func(w *world) {
				w.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: c.id, TaskQueue: workflows.TaskQueue})
				w.env.ExecuteWorkflow(c.workflow, c.input)
				require.True(t, w.env.IsWorkflowCompleted())
			}
			start(first)
			first.on = true
			from := first.tape.Index(c.begins)
			require.Positive(t, from)
			for to := from; to <= len(first.tape.Ended); to++ {
				at := fmt.Sprintf("reset after %d activities, the last of them %s", to, first.tape.Ended[to-1].Name)
				run := fmt.Sprint("after-", to)
				w := first.another(run)
				w.tape.ResetTo(first.tape, to)
				before, err := w.Store.Grants.Grant(t.Context(), machine)
				require.NoError(t, err)
				touched := w.touched()
				start(w)
				require.Equal(t, touched, w.touched(), at)
				after, err := w.Store.Grants.Grant(t.Context(), machine)
				require.NoError(t, err)
				require.Equal(t, before, after, at)
				require.NotContains(t, w.last.Next, "failed-step", at)
				if c.begins == "Plan" {
					_, err = w.do.Plan(t.Context(), activities.PlanRequest{Run: "retry", Machine: machine, Resume: run})
					require.Error(t, err, at)
				}
			}
		})
	}
}
