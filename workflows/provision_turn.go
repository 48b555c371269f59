package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// awaitGrant waits until the operation parent has taken the grants of all its machines.
func (r *machineRun) awaitGrant(ctx workflow.Context, parent string) error {
	if err := r.record.showPhase(ctx, inventory.PhaseArm, "waiting until all machines of %s are planned", parent); err != nil {
		return err
	}
	return execute(ctx, awaiting, nil, do.AwaitGrant, activities.GrantRequest{Owner: r.grant.owner, Parent: parent})
}

// awaitTurn waits until another machine has done its task. The agent stays up. If it is lost, runAttempt finds that out when it assigns
// the next action.
func (r *machineRun) awaitTurn(ctx workflow.Context, q activities.TurnRequest) error {
	err := r.record.showPhase(ctx, inventory.PhaseAction, "waiting for task %q of machine %s", q.Turn.After, q.Turn.Machine)
	if err != nil {
		return err
	}

	asking, stop := workflow.WithCancel(ctx)
	defer stop()
	turn := workflow.ExecuteActivity(workflow.WithActivityOptions(asking, awaiting), do.AwaitTurn, q)
	for !turn.IsReady() {
		ok, err := r.await(ctx, year, func() bool { return turn.IsReady() || r.signals.conflict })
		if err != nil {
			return err
		}
		if ok && !turn.IsReady() {
			return r.resolveClaimConflict(ctx)
		}
	}
	if err := turn.Get(ctx, nil); err != nil {
		return err
	}
	return r.grant.openSecrets(ctx, secretsAfterTurn) // the wait may have been longer than the window
}

// secretsAfterTurn is how long the secrets window stays open after the wait for another machine, as after the claim.
const secretsAfterTurn = time.Hour
