package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// takeGrant makes the run the owner of its machine, and if force is true, even takes the machine from another run. The method end
// releases the grant.
func (r *machineRun) takeGrant(ctx workflow.Context, force bool) error {
	if err := r.record.showPhase(ctx, inventory.PhaseArm, "taking the grant"); err != nil {
		return err
	}

	info := workflow.GetInfo(ctx)
	q := activities.ArmRequest{
		Machine: r.grant.owner.Machine, Run: r.grant.owner.Run, WorkflowID: info.WorkflowExecution.ID,
		Force: force, Plan: r.record.Digest,
	}
	if info.OriginalRunID != r.grant.owner.Run {
		q.ResetOf = info.OriginalRunID
	}

	for n := 1; ; n++ {
		var owner inventory.Owner
		err := execute(ctx, quick, &owner, do.Arm, q)
		if err == nil {
			r.grant.owner.Epoch, r.record.Epoch = owner.Epoch, owner.Epoch
			return nil
		}
		if !hasType(err, activities.TypeClock) {
			return err
		}
		d, err := r.ask(ctx, r.questionID("arm", n), messageOf(err), contract.Retry, contract.Continue, contract.Abort)
		if err != nil {
			return err
		}
		q.ClockRight = d.Choice == contract.Continue
	}
}

// retakeGrant releases the grant and takes it again: the epoch grows, and the claim, the token, the secret path
// and the phone-home nonce change.
func (r *machineRun) retakeGrant(ctx workflow.Context) error {
	if err := r.grant.release(ctx); err != nil {
		return err
	}
	r.grant.armed = false
	r.boot = boot{left: inventory.MaxBoots, how: r.boot.how, installer: r.boot.installer}
	s := &r.signals
	s.received, s.next, s.previous, s.helloBoot, s.pxe = kinds{}, kinds{}, nil, 0, false
	r.record.State = inventory.StatePreparing
	if err := r.takeGrant(ctx, false); err != nil {
		return err
	}
	s.fenced = false // the machine had no owner for a moment, and an event may have reported that
	return nil
}

// grant is the right of a run to change its machine.
type grant struct {
	// owner identifies this execution to the activities. A reset changes the run id; activities with the old run id are then
	// refused.
	owner inventory.Owner
	armed bool // the machine may be allowed to boot over the network
}

// release releases the grant, after which the machine may not boot over the network or fetch secrets for this run. It is a regular
// activity: if a signal arrives when a run completes, Temporal refuses the completion and repeats the workflow task. If release
// were a local activity, this task would also repeat the local activities before release, which would find that the run has lost
// its machine.
func (g *grant) release(ctx workflow.Context) error {
	return execute(ctx, quick, nil, do.End, g.owner)
}

// closeNetboot disallows network boot.
func (g *grant) closeNetboot(ctx workflow.Context) error {
	err := executeLocal(ctx, nil, do.Disarm, g.owner)
	if err == nil {
		g.armed = false
	}
	return err
}

// renewNetboot keeps network boot allowed during a wait of the length d.
func (g *grant) renewNetboot(ctx workflow.Context, d time.Duration, installer bool) error {
	q := activities.WindowRequest{Owner: g.owner, For: d + windowMargin, Installer: installer}
	return executeLocal(ctx, nil, do.RenewNetboot, q)
}

func (g *grant) openSecrets(ctx workflow.Context, d time.Duration) error {
	return executeLocal(ctx, nil, do.OpenSecrets, activities.WindowRequest{Owner: g.owner, For: d + windowMargin})
}

func (g *grant) closeSecrets(ctx workflow.Context) error {
	return executeLocal(ctx, nil, do.CloseSecrets, g.owner)
}
