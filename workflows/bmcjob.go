package workflows

import (
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// BMCJob carries out the operator's list of BMC tasks in order and verifies each task. A job that only reads the power state needs
// no grant; any other job takes the machine's grant first. With Force, the job takes the grant even from an open run, which can
// then do nothing more to the machine. The workflow id is bmc/<machine>/<job>.
func BMCJob(ctx workflow.Context, in contract.BMCJobInput) (Outcome, error) {
	r, err := newMachineRun(ctx, inventory.TypeBMCJob, BMCJobID(in.Machine, in.Job), in.Machine, in)
	if err != nil {
		return Outcome{}, err
	}

	return r.runToEnd(ctx, func(ctx workflow.Context) error {
		if err := invalid(in.Validate()); err != nil {
			return err
		}
		writes := slices.ContainsFunc(in.Tasks, func(t inventory.BMCTask) bool { return t.Power != "status" })
		if writes {
			if err := r.takeGrant(ctx, in.Force); err != nil {
				return err
			}
		}
		r.record.State = inventory.StateRunning
		if err := r.record.showPhase(ctx, inventory.PhasePower, "job %s", in.Job); err != nil {
			return err
		}
		r.record.Message = "done"
		return execute(ctx, bmc, nil, do.BMCTasks, r.grant.owner, activities.Job(in.Job, in.Tasks))
	})
}
