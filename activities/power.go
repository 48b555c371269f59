package activities

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/ingotmetal/ingot/inventory"
)

// PowerRequest asks for a machine to be started over the network.
type PowerRequest struct {
	Owner inventory.Owner `json:"owner"`
	Boot  int             `json:"boot"` // which boot of the run this is, from 1
	For   time.Duration   `json:"for"`  // how long netboot stays open
	// Warm: network boot once and a reset, instead of off and on.
	Warm bool `json:"warm,omitempty"`
	// ResetBMC: the BMC itself is restarted first.
	ResetBMC bool `json:"resetBMC,omitempty"`
	// OtherPath: EFI instead of legacy, where the inventory leaves that open.
	OtherPath bool `json:"otherPath,omitempty"`
	// Installer: the boot is that of the plan's installer, not the agent's.
	Installer bool `json:"installer,omitempty"`
	// Unclaimed: the boot before this one was given up and its agent had not
	// come. If it has come by now, it is left alone.
	Unclaimed bool `json:"unclaimed,omitempty"`
}

// Powered is how the machine was started.
type Powered struct {
	// How is what was done and what of it was not possible, in words.
	How string `json:"how,omitempty"`
}

// errClaimed and errFurther stop a write to a BMC.
var (
	errClaimed = errors.New("the agent has come after all")
	errFurther = errors.New("another attempt has allowed the boot already")
)

// Power starts boot q.Boot of the run: off, verified; netboot allowed for this
// boot; one-time PXE; on, verified. What is heard of the machine under this
// boot number is thereby later than the verified off. A machine without BMC is
// only allowed its boot: the operator presses the button. One that wakes by LAN is
// woken, which does nothing to a machine that is on.
//
// A warm start keeps the power on. It is for a machine whose agent never came,
// and which therefore was given nothing to write.
//
// Repeating it is safe: once the boot was allowed the machine is not switched
// off again, or a repetition would kill the agent that just came up.
func (a *Activities) Power(ctx context.Context, q PowerRequest) (Powered, error) {
	m, err := a.Machines.Machine(ctx, q.Owner.Machine)
	if err == nil && q.Installer {
		err = a.asPlanned(ctx, q)
	}

	if err != nil {
		return Powered{}, err
	}

	if m.BMC.Manual() {
		if err := a.allowBoot(ctx, q); err != nil || !m.BMC.Wakes() {
			return Powered{}, err
		}
		return a.wake(ctx, m, q)
	}
	defer heartbeat(ctx)()
	return a.start(ctx, m, q)
}

// asPlanned requires, before anything is done to the machine, that the run's
// installer can still be served as it was planned. One that has come after all
// needs nothing more.
func (a *Activities) asPlanned(ctx context.Context, q PowerRequest) error {
	g, err := a.owned(ctx, q.Owner)
	if err != nil || g.Spent && (q.Unclaimed || g.Boot >= q.Boot) {
		return err
	}
	plan, err := a.Assignments.Plan(ctx, q.Owner.Run)
	if err != nil || plan.Installer == nil {
		return err
	}
	return a.imagesStored(q.Owner.Machine, plan, len(plan.Actions))
}

// allowBoot opens the netboot window for the boot of the agent or the installer.
func (a *Activities) allowBoot(ctx context.Context, q PowerRequest) error {
	allow := a.Windows.AllowBoot
	if q.Installer {
		m, err := a.Machines.Machine(ctx, q.Owner.Machine)
		if err == nil {
			err = mayInstall(m).Err() // disks may have been protected since the plan
		}
		if err != nil {
			return err
		}
		allow = a.Windows.AllowInstaller
	}

	_, err := allow(ctx, q.Owner, q.Boot, a.Now().Add(q.For))
	return err
}

// wake sends the machine its magic packet. A packet that could not be sent does not
// fail the boot: the button is still there.
func (a *Activities) wake(ctx context.Context, m inventory.Machine, q PowerRequest) (Powered, error) {
	err := a.BMC.Set(ctx, m.Controller(), inventory.Secret{}, "on", a.during(q.Owner, q.Boot))
	switch {
	case err == nil:
		return a.powered(ctx, q, []string{"magic packet sent; a machine that is on, or does not wake, needs its button " +
			"pressed"}), nil
	case errors.Is(err, inventory.ErrFenced) || ctx.Err() != nil:
		return Powered{}, err
	}
	return a.powered(ctx, q, []string{"no magic packet, press the button (" + err.Error() + ")"}), nil
}

func (a *Activities) start(ctx context.Context, m inventory.Machine, q PowerRequest) (Powered, error) {
	g, err := a.Grants.Grant(ctx, q.Owner.Machine)
	if err != nil {
		return Powered{}, err
	}

	nic, _ := m.Netboot()
	pxe := inventory.BootDevice{Device: "pxe", EFI: nic.UEFI}
	allowed := false
	allow := func() error {
		err := a.allowBoot(ctx, q)
		allowed = err == nil
		return err
	}

	before, during := a.before(q), a.during(q.Owner, q.Boot)
	list := taskList{owner: q.Owner, job: inventory.BMCJob{
		Name:   fmt.Sprintf("netboot-%d-%d", q.Owner.Epoch, q.Boot),
		Inline: true,
	}, fence: func(ctx context.Context) error {
		if allowed {
			return during(ctx)
		}
		return before(ctx)
	}}
	if g.Owner == q.Owner && g.Boot >= q.Boot {
		// The operator may have been asked since, and the window closed for it.
		if err := allow(); err != nil {
			return Powered{}, err
		}
		s, err := a.state(ctx, m)
		if err != nil || s == "on" {
			return Powered{}, err
		}
		list.job.Tasks, list.from, list.after = coldStart(pxe), 1, func(int) error { return nil }
		return Powered{}, a.tasks(ctx, m, list)
	}

	how, err := a.prepare(ctx, m, q, nic, &pxe)
	if err != nil {
		return Powered{}, err
	}

	warm, err := a.startsWarm(ctx, m, q)
	if err != nil {
		return Powered{}, err
	}

	allowAfter := func(task int) func(int) error {
		return func(done int) error {
			if done != task {
				return nil
			}
			return allow()
		}
	}

	if warm {
		// Not allowed before the reset: an agent that claimed this boot just
		// before it would be reset, and its boot be spent.
		list.job.Tasks, list.after = []inventory.BMCTask{{BootDevice: &pxe}, {Power: "reset"}}, allowAfter(1)
		err := a.tasks(ctx, m, list)
		if err == nil {
			return a.powered(ctx, q, append(how, "network boot once again, reset")), nil
		}
		if !errors.Is(err, inventory.ErrUnsupported) {
			return Powered{}, err
		}
		how = append(how, "no reset, because the BMC cannot")
	}

	list.job.Tasks, list.after = coldStart(pxe), allowAfter(0)
	if err := a.tasks(ctx, m, list); err != nil {
		return Powered{}, err
	}
	return a.powered(ctx, q, append(how, "off, network boot once, on")), nil
}

// startsWarm reports whether the machine is reset instead of switched off and on:
// only one that is on can be.
func (a *Activities) startsWarm(ctx context.Context, m inventory.Machine, q PowerRequest) (bool, error) {
	if !q.Warm {
		return false, nil
	}
	s, err := a.state(ctx, m)
	return s == "on", err
}

// prepare does what a start of the machine may begin with, and says what of it
// was not possible. A step that the BMC does not have is left out.
func (a *Activities) prepare(ctx context.Context, m inventory.Machine, q PowerRequest, nic inventory.Interface,
	pxe *inventory.BootDevice,
) (how []string, err error) {
	if q.ResetBMC {
		password, err := a.Machines.BMCPassword(ctx, m.Name)
		if err != nil {
			return nil, err
		}
		err = a.BMC.ResetBMC(ctx, m.Controller(), password, a.before(q))
		switch {
		case err == nil:
			how = append(how, "BMC reset")
		case errors.Is(err, inventory.ErrUnsupported):
			how = append(how, "BMC not reset, because it cannot")
		default:
			return nil, err
		}
	}

	if q.OtherPath {
		switch {
		case !m.BMC.Capabilities().EFI:
			how = append(how, "no other boot path, because "+m.BMC.Driver+" cannot choose it")
		case nic.UEFI:
			how = append(how, "no other boot path, because the inventory says UEFI")
		default:
			pxe.EFI = !pxe.EFI
			how = append(how, "the other boot path, EFI")
		}
	}
	return how, nil
}

// powered says how boot q.Boot was started, and records it. The record is for
// operators: a start that worked does not fail without it.
func (a *Activities) powered(ctx context.Context, q PowerRequest, how []string) Powered {
	p := Powered{How: strings.Join(how, "; ")}
	err := a.event(ctx, q.Owner.Event(q.Boot, inventory.EventPower, "start", fmt.Sprintf("boot %d: %s", q.Boot, p.How)))
	if err != nil {
		a.Log.Error("recording how a machine was started", "machine", q.Owner.Machine, "error", err)
	}
	return p
}

// before is the fence of what leads to boot q.Boot: it is not allowed yet,
// and the agent that was given up has not come.
func (a *Activities) before(q PowerRequest) Fence {
	return func(ctx context.Context) error {
		g, err := a.owned(ctx, q.Owner)
		switch {
		case err != nil:
			return err
		case g.Boot >= q.Boot:
			return errFurther
		case q.Unclaimed && g.Boot == q.Boot-1 && g.Spent:
			return errClaimed
		}
		return nil
	}
}

// during is the fence of what belongs to one boot: an activity that goes on although
// its worker was taken for dead must not switch off a later boot.
func (a *Activities) during(o inventory.Owner, boot int) Fence {
	return func(ctx context.Context) error {
		g, err := a.owned(ctx, o)
		if err == nil && g.Boot != boot {
			err = fmt.Errorf("machine %q is at boot %d, not %d: %w", o.Machine, g.Boot, boot, inventory.ErrFenced)
		}
		return err
	}
}

// PowerOff takes the power away and verifies it: the last resort of stopping.
func (a *Activities) PowerOff(ctx context.Context, o inventory.Owner) error {
	return a.switchTo(ctx, o, "power-off", "off")
}

// ColdStart switches off and on without touching the boot device: the machine
// follows its own boot order. These are two tasks, for an attempt that goes on
// where a dead worker stopped must not take the power from what has started.
func (a *Activities) ColdStart(ctx context.Context, o inventory.Owner) error {
	return a.switchTo(ctx, o, "power-cycle", "off", "on")
}

// switchTo takes the machine through states of its power, each of them verified.
func (a *Activities) switchTo(ctx context.Context, o inventory.Owner, name string, powers ...string) error {
	m, err := a.Machines.Machine(ctx, o.Machine)
	if err != nil {
		return err
	}

	if m.BMC.Manual() {
		return fmt.Errorf("switching %q %s: it has no BMC: %w", o.Machine, strings.Join(powers, " and "),
			inventory.ErrUnsupported)
	}
	defer heartbeat(ctx)()
	g, err := a.owned(ctx, o)
	if err != nil {
		return err
	}

	// The same name on a retry: what was done is not done again.
	job := inventory.BMCJob{Name: fmt.Sprintf("%s-%d-%s", name, o.Epoch, activity.GetInfo(ctx).ActivityID), Inline: true}
	for _, p := range powers {
		job.Tasks = append(job.Tasks, inventory.BMCTask{Power: p})
	}
	return a.tasks(ctx, m, taskList{owner: o, job: job, fence: a.during(o, g.Boot)})
}

// HasBMC reports whether the machine can be switched without the operator.
func (a *Activities) HasBMC(ctx context.Context, machine string) (bool, error) {
	m, err := a.Machines.Machine(ctx, machine)
	return !m.BMC.Manual(), err
}
