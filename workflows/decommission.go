package workflows

import (
	"errors"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// decommissioning is a run of Decommission: a provisioning whose actions wipe instead of
// install.
type decommissioning struct {
	*provisioning
	in contract.DecommissionInput
	// doubts lists what could not be verified. If the list is not empty, the machine is quarantined.
	doubts []string
	// notes are messages for the operator that do not cause a quarantine.
	notes []string
}

// Decommission takes a machine out of service. It boots the agent, which wipes all fixed
// disks that are not protected, verifies the wipe by reading back, and deletes the
// firmware's boot entries. Then it switches the power off, purges the machine's secrets and
// releases its addresses. If a step cannot be verified, the machine is quarantined and keeps
// its addresses until the operator or another decommissioning ends the quarantine. The
// workflow id is machine/<machine>.
//
// To each question that offers Retry, the operator may also answer Skip, for a machine that is dead or gone. The
// remaining steps still run, and the machine is quarantined.
func Decommission(ctx workflow.Context, in contract.DecommissionInput) (Outcome, error) {
	r, err := newMachineRun(ctx, inventory.TypeDecommission, MachineID(in.Machine), in.Machine, in)
	if err != nil {
		return Outcome{}, err
	}
	d := &decommissioning{provisioning: &provisioning{machineRun: r, in: contract.ProvisionInput{Machine: in.Machine}}, in: in}
	return r.carryOut(ctx, d.decommission, d.stopAssigned)
}

func (d *decommissioning) decommission(ctx workflow.Context) error {
	if err := inOrder(ctx, d.planWipe, d.arm); err != nil {
		return err
	}

	for {
		d.skippable = true
		err := inOrder(ctx, d.startMachine, d.wipeMachine, d.switchOff)
		d.skippable = false
		switch {
		case errors.Is(err, errRestart):
			if err := d.retakeGrant(ctx); err != nil {
				return err
			}
			d.assigned, d.doubts, d.notes = nil, nil, nil
			d.record.resetActions(0)
			continue
		case errors.Is(err, errSkipped):
			d.stopAssigned(ctx)
			d.doubts = append(d.doubts, "the operator skipped the machine: its disks may not be wiped, and it may still be on")
		case err != nil:
			return err
		}
		return d.retire(ctx)
	}
}

func (d *decommissioning) planWipe(ctx workflow.Context) error {
	if err := d.record.showPhase(ctx, inventory.PhasePlan, "planning the wipe"); err != nil {
		return err
	}
	if err := invalid(d.in.Validate()); err != nil {
		return err
	}
	q := activities.DecommissionRequest{Run: d.grant.owner.Run, Machine: d.in.Machine, Wipe: d.in.Wipe}
	if err := execute(ctx, planning, &d.plan, do.PlanDecommission, q); err != nil {
		return err
	}
	d.recordPlan()
	return nil
}

// wipeMachine carries out the actions. If a wipe fails, it adds a doubt; if any other action fails, it adds a note.
func (d *decommissioning) wipeMachine(ctx workflow.Context) error {
	d.record.State = inventory.StateRunning
	for i, a := range d.plan.Actions {
		if a.Leaving {
			break
		}
		err := d.runAction(ctx, i)
		if err != nil && !hasType(err, typeActionFailed) && !hasType(err, typeTimeout) {
			return err
		}
		if native, _ := action.Native(a.Image); err != nil && native == action.Wipe {
			d.doubts = append(d.doubts, messageOf(err))
		} else if err != nil {
			d.notes = append(d.notes, messageOf(err))
		}
		if d.boot.poweredOff && i+1 < len(d.plan.Actions) {
			if err := d.restartAgent(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// switchOff disallows network boot, switches the machine off and verifies that the machine is off.
func (d *decommissioning) switchOff(ctx workflow.Context) error {
	if err := d.closeForInstalled(ctx); err != nil {
		return err
	}

	if d.signals.conflict {
		return d.resolveClaimConflict(ctx)
	}

	if err := d.record.showPhase(ctx, inventory.PhasePower, "switching the machine off"); err != nil {
		return err
	}

	if d.manual {
		return d.switchOffByAgent(ctx)
	}

	for n := 1; ; n++ {
		err := execute(ctx, bmc, nil, do.PowerOff, d.grant.owner)
		if err == nil || !operatorCanHelp(err) {
			return err
		}
		if _, err := d.ask(ctx, d.questionID("off", n), messageOf(err), contract.Retry, contract.Abort); err != nil {
			return err
		}
	}
}

// switchOffByAgent makes the agent switch off its machine, which has no BMC. If the agent does not report success, the operator
// must confirm that the machine is off.
func (d *decommissioning) switchOffByAgent(ctx workflow.Context) error {
	i := len(d.plan.Actions) - 1
	k := d.record.beginAttempt(ctx, i)
	if err := d.assign(ctx, k, 0); err != nil {
		return err
	}

	a := &d.record.Actions[i]
	w := wait{limit: a.Timeout.Duration() + grace, attempt: k}
	if _, _, err := d.waitFor(ctx, w, func() bool { return d.signals.completed(k) }); err != nil {
		return err
	}

	a.Seconds = workflow.Now(ctx).Sub(a.StartedAt).Seconds()
	if d.signals.results[k].State == action.Success {
		a.State = action.Success
		d.notes = append(d.notes, "the agent switched the machine off; without a BMC, the power state cannot be checked")
		return nil
	}

	a.State, a.Message = action.Failed, "the agent did not report"
	text := "the agent did not report that it is switching the machine off: switch the machine off by hand, then continue"
	_, err := d.ask(ctx, k.String()+".off", text, contract.Continue, contract.Abort)
	d.notes = append(d.notes, "switched off by the operator")
	return err
}

// retire purges the machine's secrets, and records whether the machine is now available or quarantined. It returns an error if the
// machine is quarantined.
func (d *decommissioning) retire(ctx workflow.Context) error {
	if d.grant.armed {
		if err := d.grant.closeNetboot(ctx); err != nil {
			return err
		}
	}

	var st inventory.Standing
	err := execute(ctx, quick, &st, do.Retire, activities.RetireRequest{
		Owner: d.grant.owner, Doubts: d.doubts, Notes: d.notes, KeepAddress: d.in.KeepAddress,
	})
	if err != nil {
		return err
	}

	d.record.Message = strings.TrimSuffix(st.State+": "+st.Reason, ": ")
	if st.State != inventory.StandingAvailable {
		d.record.Next = "ingot machine decommission " + d.grant.owner.Machine +
			"   # again; or, once you have resolved the reason yourself: ingot machine release " + d.grant.owner.Machine
		return newError(typeQuarantined, "%s", d.record.Message)
	}
	return nil
}
