package activities

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/inventory"
)

// grants holds the activities that change which run owns a machine, and whether the run may boot the machine over
// the network and read secrets (the netboot window and the secrets window).
type grants struct {
	*shared
	// confirmed is the time, in Unix nanoseconds, of the newest event at the moment when the operator last
	// confirmed the server's clock. Events up to that time do not show that the clock is wrong.
	confirmed atomic.Int64
}

// ClockTolerance is how far the server's clock may be behind the server's newest event. If the clock is further
// behind, Arm returns an error.
const ClockTolerance = 2 * time.Second

// ArmRequest asks for a machine's grant.
type ArmRequest struct {
	Machine    string `json:"machine"`
	Run        string `json:"run"`
	WorkflowID string `json:"workflowID"`
	Force      bool   `json:"force,omitempty"`
	// Plan is the digest of the run's plan; empty for a run without a plan.
	Plan string `json:"plan,omitempty"`
	// ResetOf is the id of the earlier run if a Temporal client has made this run by resetting it; otherwise "".
	ResetOf string `json:"resetOf,omitempty"`
	// ClockRight: the operator confirms that the clock is correct and the time of the newest event is not.
	ClockRight bool `json:"clockRight,omitempty"`
}

// Arm takes the machine's grant for the run. From then on, no earlier owner can change anything. Arm does not allow
// a network boot; Power does.
func (a *grants) Arm(ctx context.Context, q ArmRequest) (inventory.Owner, error) {
	if err := a.mayArm(ctx, q); err != nil {
		return inventory.Owner{}, err
	}
	g, err := a.Grants.TakeGrant(ctx, q.Machine, q.Run, q.WorkflowID, q.Force)
	if err != nil {
		return inventory.Owner{}, fmt.Errorf("taking the grant of %q: %w", q.Machine, err)
	}
	return g.Owner, nil
}

// mayArm returns why the run may not take the grant that q asks for.
func (a *grants) mayArm(ctx context.Context, q ArmRequest) error {
	if err := a.Keys.KeyCheck(ctx); err != nil {
		return fmt.Errorf("arming %q: %w (see ingot secret status)", q.Machine, err)
	}

	for _, refuse := range []func(context.Context, ArmRequest) error{a.planStands, a.refuseSuperseded, a.refuseUnanswered} {
		if err := refuse(ctx, q); err != nil {
			return fmt.Errorf("arming %q: %w", q.Machine, err)
		}
	}

	newest, err := a.Events.NewestEvent(ctx)
	if err != nil {
		return err
	}

	if q.ClockRight {
		a.confirmed.Store(newest.UnixNano())
	}

	if behind := newest.Sub(a.Now()); behind > ClockTolerance && newest.UnixNano() > a.confirmed.Load() {
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf("arming %q: this server's clock is %s "+
			"behind the newest stored event (%s UTC): set the clock and retry, or continue if the clock is correct",
			q.Machine, behind.Round(time.Second), newest.UTC().Format(time.DateTime)), TypeClock, nil)
	}
	return nil
}

// ArmTogetherRequest asks for the grants of several machines.
type ArmTogetherRequest struct {
	Runs       []TogetherRun `json:"runs"`
	ClockRight bool          `json:"clockRight,omitempty"` // see ArmRequest
}

// ArmTogether takes the grant of each machine for its run, or none. Runs that have had their grant already are left out, so a second
// call changes nothing.
func (a *grants) ArmTogether(ctx context.Context, q ArmTogetherRequest) error {
	var claimants []inventory.Claimant
	for _, r := range q.Runs {
		w, err := a.Workflows.Workflow(ctx, r.Run)
		if err != nil {
			return fmt.Errorf("arming %q: %w", r.Machine, err)
		}
		if w.Epoch > 0 {
			continue
		}
		c := inventory.Claimant{Machine: r.Machine, Run: r.Run, Workflow: w.ID}
		err = a.mayArm(ctx, ArmRequest{Machine: c.Machine, Run: c.Run, WorkflowID: c.Workflow, Plan: w.Digest, ClockRight: q.ClockRight})
		if err != nil {
			return err
		}
		claimants = append(claimants, c)
	}
	if err := a.Grants.TakeGrants(ctx, claimants); err != nil {
		return fmt.Errorf("no machine is touched: %w", err)
	}
	return nil
}

// refuseSuperseded checks a run that a Temporal client has made by resetting an earlier run. It returns an error if
// the record of the earlier run is deleted, or if another run has installed or wiped the machine since the earlier
// run began.
func (a *grants) refuseSuperseded(ctx context.Context, q ArmRequest) error {
	if q.ResetOf == "" {
		return nil
	}
	const remedy = "start a new run for the machine"
	later, err := a.Workflows.Successor(ctx, q.ResetOf)
	switch {
	case errors.Is(err, inventory.ErrNotFound):
		return fmt.Errorf("run %q was reset in Temporal, and its record is deleted: %s: %w", q.ResetOf, remedy, inventory.ErrConflict)
	case err == nil && later != "":
		return fmt.Errorf("run %q was reset in Temporal, but run %q is newer: %s: %w", q.ResetOf, later, remedy,
			inventory.ErrConflict)
	}
	return err
}

// planStands returns an error if the run's plan is not stored, because the machine would be started for nothing. If
// the run was made by a reset, its id is new and no plan is stored for it. If the run resumes an earlier one, its
// plan is deleted when another run writes to the machine.
func (a *grants) planStands(ctx context.Context, q ArmRequest) error {
	if q.Plan == "" {
		return nil
	}

	plan, err := a.Plans.Plan(ctx, q.Run)
	switch {
	case errors.Is(err, inventory.ErrNotFound):
		return fmt.Errorf("the plan of run %q is no longer stored: the run was reset in Temporal, or another run has written "+
			"to the machine since; start a new run: %w", q.Run, err)
	case err != nil:
		return err
	case plan.Digest != q.Plan:
		return fmt.Errorf("the digest of the plan of run %q is %s, but must be %s: start a new run: %w", q.Run, plan.Digest,
			q.Plan, inventory.ErrConflict)
	}
	return nil
}

// refuseUnanswered returns an error if the run would boot a machine over the network by its BMC, but this server
// would not answer the machine: the boot would interrupt the machine's work for nothing. A BMC job needs no answer.
// A machine without a BMC is switched on by the operator, who has time to correct the server's configuration.
func (a *grants) refuseUnanswered(ctx context.Context, q ArmRequest) error {
	off := a.Site.bootable()
	if off == nil || q.WorkflowID != "machine/"+q.Machine {
		return nil
	}
	if m, err := a.Machines.Machine(ctx, q.Machine); err != nil || m.BMC.Manual() {
		return err
	}
	return off
}

// WindowRequest asks to open a window of the owner's grant for the time For from now on. The netboot window allows
// the machine to boot over the network; the secrets window allows it to read its secrets.
type WindowRequest struct {
	Owner inventory.Owner `json:"owner"`
	For   time.Duration   `json:"for,omitempty"`
	// Installer: the boot is for the plan's installer. The documents of an installer are secrets, so the secrets
	// window is opened as well.
	Installer bool `json:"installer,omitempty"`
}

// RenewNetboot keeps the netboot window open, so that the machine may boot over the network for q.For from now on.
func (a *grants) RenewNetboot(ctx context.Context, q WindowRequest) error {
	until := a.Now().Add(q.For)
	err := a.Windows.RenewNetboot(ctx, q.Owner, until)
	if err == nil && q.Installer {
		err = a.Windows.OpenSecrets(ctx, q.Owner, until)
	}
	return err
}

// Disarm closes the netboot window if it is open, so that the machine cannot boot over the network. If another run
// owns the machine, the error has the type Fenced.
func (a *grants) Disarm(ctx context.Context, o inventory.Owner) error {
	return a.Windows.CloseNetboot(ctx, o)
}

// OpenSecrets opens the secrets window for q.For from now on. While it is open, the cloud-init of the installed
// system may read the machine's secrets; cloud-init reads them several times.
func (a *grants) OpenSecrets(ctx context.Context, q WindowRequest) error {
	return a.Windows.OpenSecrets(ctx, q.Owner, a.Now().Add(q.For))
}

// CloseSecrets closes the secrets window. Then the machine can no longer read its secrets.
func (a *grants) CloseSecrets(ctx context.Context, o inventory.Owner) error {
	return a.Windows.CloseSecrets(ctx, o)
}

// MoreBoots lets the run boot the machine inventory.MaxBoots more times, after the operator has agreed.
func (a *grants) MoreBoots(ctx context.Context, o inventory.Owner) error {
	return a.Windows.MoreBoots(ctx, o, inventory.MaxBoots)
}

// End releases the run's grant and closes the grant's windows. It does not change the grant of another run. If the
// epoch is 0, End releases the run's grant of any epoch, because the result of Arm may have been lost after Arm
// took the grant.
func (a *grants) End(ctx context.Context, o inventory.Owner) error {
	if o.Epoch == 0 {
		g, err := a.Grants.Grant(ctx, o.Machine)
		if err != nil || g.Run != o.Run {
			return err
		}
		o = g.Owner
	}
	return a.Grants.EndGrant(ctx, o)
}

// Idle returns an error of type Conflict if a run owns the machine or the machine's netboot window is open. It is
// called before the installation of a machine is undone.
func (a *grants) Idle(ctx context.Context, machine string) error {
	g, err := a.Grants.Grant(ctx, machine)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil
	}
	if err == nil && (g.Run != "" || g.NetbootOpen(a.Now())) {
		err = fmt.Errorf("machine %q is still held by run %s: %w", machine, g.Run, inventory.ErrConflict)
	}
	return err
}
