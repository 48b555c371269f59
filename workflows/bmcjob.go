package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// BMCJob carries out a person's list of BMC tasks, one after another, each
// verified. A job that only reads needs no grant; any other takes it, and
// under a live run only with Force, which fences that run.
func BMCJob(ctx workflow.Context, in BMCJobInput) (out Outcome, err error) {
	r, err := newRun(ctx, BMCJobType, BMCJobID(in.Machine, in.Job), in.Machine, in)
	if err != nil {
		return Outcome{}, err
	}
	defer func() {
		err = r.end(ctx, err)
		out = Outcome{State: r.record.State, Message: r.record.Message}
	}()
	if writes(in.Tasks) {
		if err = r.arm(ctx, in.Force); err != nil {
			return out, err
		}
	}
	r.record.State = inventory.StateRunning
	if err = r.phase(ctx, inventory.PhasePower, "job %s", in.Job); err != nil {
		return out, err
	}
	r.record.Message = "done"
	return out, workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, bmc), do.BMCTasks, r.owner, activities.Job(in.Job, in.Tasks)).Get(ctx, nil)
}

func writes(tasks []inventory.BMCTask) bool {
	for _, t := range tasks {
		if t.Power != "status" {
			return true
		}
	}
	return false
}
