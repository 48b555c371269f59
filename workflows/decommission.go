package workflows

import (
	"errors"
	"fmt"
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// typeQuarantined ends a Decommission that could not verify all it did.
const typeQuarantined = "Quarantined"

// decommission is a run of Decommission. It is a provision whose actions take
// away instead of install.
type decommission struct {
	*provision
	in DecommissionInput
	// doubts is what could not be verified: one is enough for the quarantine.
	doubts []string
	// notes are worth knowing, and no doubt.
	notes []string
}

// Decommission ends a machine's service: its agent is booted and wipes all
// fixed disks that are not protected, verified by reading back, and deletes the
// firmware's boot entries; the power is switched off, verified; then its
// secrets are purged and its addresses released. What could not be verified
// puts the machine into quarantine, which only a person or another
// decommissioning ends; it keeps its addresses until then. Its id is machine/<machine>.
//
// Whoever is asked on the way may skip: the machine is dead or gone. Then all
// the rest is done, and the machine is quarantined.
func Decommission(ctx workflow.Context, in DecommissionInput) (out Outcome, err error) {
	r, err := newRun(ctx, DecommissionType, MachineID(in.Machine), in.Machine, in)
	if err != nil {
		return Outcome{}, err
	}
	d := &decommission{provision: &provision{run: r, in: ProvisionInput{Machine: in.Machine}}, in: in}
	// The undo is registered before the do.
	defer func() {
		if err != nil {
			err = d.halt(ctx, err)
		}
		err = r.end(ctx, err)
		out = Outcome{State: r.record.State, Message: r.record.Message}
	}()
	err = d.carryOut(ctx)
	for lost(err) {
		err = r.lament(ctx, err)
	}
	return out, err
}

func (d *decommission) carryOut(ctx workflow.Context) error {
	if err := d.phase(ctx, inventory.PhasePlan, "planning the wipe"); err != nil {
		return err
	}
	q := activities.DecommissionRequest{Run: d.owner.Run, Machine: d.in.Machine, Wipe: d.in.Wipe}
	if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, planning), do.PlanDecommission, q).Get(ctx, &d.plan); err != nil {
		return err
	}
	d.manual, d.plannedAs = d.plan.Manual, d.plan.Run
	d.record.Digest = d.plan.Digest
	for _, a := range d.plan.Actions {
		d.record.Actions = append(d.record.Actions, inventory.ActionRecord{Name: a.Name, Task: a.Task, Image: a.Image, Timeout: a.Timeout, State: action.Pending})
	}
	if err := d.arm(ctx, false); err != nil {
		return err
	}
	for {
		d.skippable = true
		err := d.empty(ctx)
		d.skippable = false
		switch {
		case errors.Is(err, errRestart):
			if err := d.rearm(ctx); err != nil {
				return err
			}
			d.doing, d.doubts, d.notes = nil, nil, nil
			d.resetActions(0)
			continue
		case errors.Is(err, errSkipped):
			if err := d.halt(ctx, nil); err != nil {
				return err
			}
			d.doubts = append(d.doubts, "given up by a person before its disks were wiped and its power was seen off")
		case err != nil:
			return err
		}
		return d.retire(ctx)
	}
}

// empty boots the agent, has it wipe the machine, and switches the machine off.
func (d *decommission) empty(ctx workflow.Context) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	d.record.State = inventory.StateRunning
	for i, a := range d.plan.Actions {
		if a.Leaving {
			break
		}
		err := d.act(ctx, i)
		if err != nil && !is(err, typeActionFailed) && !is(err, typeTimeout) {
			return err
		}
		if native, _ := action.Native(a.Image); err != nil && native == action.Wipe {
			d.doubts = append(d.doubts, cause(err))
		} else if err != nil {
			d.notes = append(d.notes, cause(err))
		}
		if d.off && i+1 < len(d.plan.Actions) {
			if err := d.again(ctx); err != nil {
				return err
			}
		}
	}
	d.record.State = inventory.StatePost
	if err := d.phase(ctx, inventory.PhaseDisarm, "closing network boot"); err != nil {
		return err
	}
	if err := d.disarm(ctx); err != nil {
		return err
	}
	if d.disputed() {
		return d.contested(ctx)
	}
	if err := d.phase(ctx, inventory.PhasePower, "switching the machine off"); err != nil {
		return err
	}
	if d.manual {
		return d.leaveByItself(ctx)
	}
	for n := 1; ; n++ {
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, bmc), do.PowerOff, d.owner).Get(ctx, nil)
		if err == nil || !d.trouble(err) {
			return err
		}
		if _, err := d.ask(ctx, fmt.Sprintf("%d.off.%d", d.owner.Epoch, n), cause(err), []string{Retry, Abort}, nil); err != nil {
			return err
		}
	}
}

// leaveByItself has the agent of a machine without a BMC switch it off. Nothing
// reads that back, so what is not reported a person has to have seen.
func (d *decommission) leaveByItself(ctx workflow.Context) error {
	i := len(d.plan.Actions) - 1
	a := &d.record.Actions[i]
	a.Attempt++
	a.State, a.StartedAt = action.Running, workflow.Now(ctx)
	k := d.key(i)
	if err := d.assign(ctx, k); err != nil {
		return err
	}
	done := func() bool { _, ok := d.results[k]; return ok }
	if _, err := d.await(ctx, a.Timeout.Duration()+grace, done); err != nil {
		return err
	}
	if !done() {
		// The report may lie in the database before its signal is here.
		found, err := d.evidence(ctx, k, activities.Wait{})
		if err != nil {
			return err
		}
		if found.Kind == activities.Report {
			d.results[k] = ActionCompleted{Key: k, State: found.State, Message: found.Message}
		}
	}
	a.Seconds = workflow.Now(ctx).Sub(a.StartedAt).Seconds()
	if d.results[k].State == action.Success {
		a.State = action.Success
		d.notes = append(d.notes, "its agent switched it off; without a BMC nothing reads that back")
		return nil
	}
	a.State, a.Message = action.Failed, "nothing was heard of it"
	_, err := d.ask(ctx, k.String()+".off", "the agent did not say that it switches the machine off: switch it off by hand, then continue", []string{Continue, Abort}, nil)
	d.notes = append(d.notes, "switched off by a person")
	return err
}

// retire purges what the machine is not to leave behind, and says what it is
// from now on.
func (d *decommission) retire(ctx workflow.Context) error {
	if d.armed {
		if err := d.disarm(ctx); err != nil {
			return err
		}
	}
	q := activities.RetireRequest{Owner: d.owner, Doubts: d.doubts, Notes: d.notes, KeepAddress: d.in.KeepAddress}
	var st inventory.Standing
	if err := d.quickly(ctx, do.Retire, q, &st); err != nil {
		return err
	}
	d.record.Message = strings.TrimSuffix(st.State+": "+st.Reason, ": ")
	if st.State != inventory.StandingAvailable {
		d.record.Next = "ingot machine decommission " + d.owner.Machine + "   # again; or, when you have seen to it yourself: ingot machine release " + d.owner.Machine
		return temporal.NewNonRetryableApplicationError(d.record.Message, typeQuarantined, nil)
	}
	return nil
}
