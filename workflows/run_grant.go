package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// takeGrant makes the run the owner of its machine. Its undo is releaseGrant, in
// end, which follows whatever happens.
func (r *machineRun) takeGrant(ctx workflow.Context, force bool) error {
	if err := r.showPhase(ctx, inventory.PhaseArm, "taking the grant"); err != nil {
		return err
	}

	q := activities.ArmRequest{
		Machine: r.owner.Machine, Run: r.owner.Run, WorkflowID: workflow.GetInfo(ctx).WorkflowExecution.ID,
		Force: force, Plan: r.record.Digest,
	}

	for n := 1; ; n++ {
		var owner inventory.Owner
		err := execute(ctx, quick, &owner, do.Arm, q)
		if err == nil {
			r.owner.Epoch = owner.Epoch
			return nil
		}
		if !hasType(err, activities.TypeClock) {
			return err
		}
		d, err := r.ask(ctx, r.questionID("arm", n), messageOf(err), Retry, Continue, Abort)
		if err != nil {
			return err
		}
		q.ClockRight = d.Choice == Continue
	}
}

// retakeGrant gives the grant back and takes it again: the epoch grows, and with it
// claim, token, secret path and phone-home nonce are others.
func (r *machineRun) retakeGrant(ctx workflow.Context) error {
	if err := r.releaseGrant(ctx); err != nil {
		return err
	}
	r.boot = boot{left: inventory.MaxBoots, how: r.boot.how, installer: r.boot.installer}
	s := &r.signals
	s.heard, s.next, s.previous, s.helloBoot, s.pxe = kinds{}, kinds{}, nil, 0, false
	r.record.State = inventory.StatePreparing
	if err := r.takeGrant(ctx, false); err != nil {
		return err
	}
	s.fenced = false // for a moment no run held the machine, and that may have been reported
	return nil
}

// releaseGrant gives the grant back and closes both windows. It is a regular
// activity: Temporal refuses the end of a run while a signal comes in, and then the
// task is carried out again with its local activities, of which those before this
// one would find that the machine is not theirs any more.
func (r *machineRun) releaseGrant(ctx workflow.Context) error {
	return execute(ctx, quick, nil, do.End, r.owner)
}

// closeNetboot closes the netboot window.
func (r *machineRun) closeNetboot(ctx workflow.Context) error {
	err := executeLocal(ctx, nil, do.Disarm, r.owner)
	if err == nil {
		r.boot.armed = false
	}
	return err
}

// renewNetboot keeps the netboot window open for a wait.
func (r *machineRun) renewNetboot(ctx workflow.Context, d time.Duration) error {
	q := activities.WindowRequest{Owner: r.owner, For: d + windowMargin, Installer: r.boot.installer}
	return executeLocal(ctx, nil, do.RenewNetboot, q)
}

func (r *machineRun) openSecrets(ctx workflow.Context, d time.Duration) error {
	return executeLocal(ctx, nil, do.OpenSecrets, activities.WindowRequest{Owner: r.owner, For: d + windowMargin})
}

func (r *machineRun) closeSecrets(ctx workflow.Context) error {
	return executeLocal(ctx, nil, do.CloseSecrets, r.owner)
}
