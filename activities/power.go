package activities

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/ingotmetal/ingot/inventory"
)

// PowerRequest asks to start a machine over the network.
type PowerRequest struct {
	Owner inventory.Owner `json:"owner"`
	Boot  int             `json:"boot"` // which boot of the run this is, from 1
	For   time.Duration   `json:"for"`  // how long netboot stays open
	// Warm: one-time network boot and a reset instead of a power cycle.
	Warm bool `json:"warm,omitempty"`
	// ResetBMC: restart the BMC first.
	ResetBMC bool `json:"resetBMC,omitempty"`
	// OtherPath: EFI instead of legacy, if the inventory does not set the path.
	OtherPath bool `json:"otherPath,omitempty"`
	// Path is the number of boot paths of the machine's BMC that were tried without an answer.
	Path int `json:"path,omitempty"`
	// Installer: boot the plan's installer instead of the agent.
	Installer bool `json:"installer,omitempty"`
	// Unclaimed: the boot before this one was given up because its agent did not report. If
	// the agent has reported by now, it is left alone.
	Unclaimed bool `json:"unclaimed,omitempty"`
}

// Powered is how the machine was started.
type Powered struct {
	// How describes what was done and what was not possible.
	How string `json:"how,omitempty"`
	// Shim means that an interface of the machine boots by inventory.LoaderShim.
	Shim bool `json:"shim,omitempty"`
}

// errFurther stops a write to a BMC.
var errFurther = errors.New("another attempt has allowed the boot already")

// Power starts boot q.Boot of the run: power off, verified; allow this network boot;
// one-time PXE; power on, verified. Every event of this boot number is therefore later than
// the verified power-off. For a machine without a BMC, Power only allows the boot and the
// operator presses the button. A machine with wake-on-LAN gets a magic packet, which has no
// effect if the machine is on.
//
// A warm start keeps the power on. It is for a machine whose agent never reported and
// therefore has no work.
//
// Power is idempotent: once the boot is allowed the machine is not switched off again,
// because a repetition would kill the agent that just started.
func (a *bmcs) Power(ctx context.Context, q PowerRequest) (Powered, error) {
	m, err := a.Machines.Machine(ctx, q.Owner.Machine)
	if err == nil && q.Installer {
		err = a.checkPlanned(ctx, q)
	}

	if err != nil {
		return Powered{}, err
	}

	var done Powered
	switch {
	case !m.BMC.Manual():
		defer heartbeat(ctx)()
		done, err = a.start(ctx, m, q)
	default:
		if err = a.allowBoot(ctx, q, false); err == nil && m.BMC.Wakes() {
			done, err = a.wake(ctx, m, q)
		}
	}
	done.Shim = slices.ContainsFunc(m.Interfaces, func(i inventory.Interface) bool {
		return cmp.Or(i.Loader, a.Site.Loader) == inventory.LoaderShim
	})
	return done, err
}

// checkPlanned checks, before the machine is touched, that the run's installer can still be
// served as planned. An installer that has reported in the meantime needs no check.
func (a *bmcs) checkPlanned(ctx context.Context, q PowerRequest) error {
	g, err := a.readOwnGrant(ctx, q.Owner)
	if err != nil || g.Spent && (q.Unclaimed || g.Boot >= q.Boot) {
		return err
	}
	plan, err := a.Plans.Plan(ctx, q.Owner.Run)
	if err != nil || plan.Installer == nil {
		return err
	}
	return a.requireImages(ctx, q.Owner.Machine, plan, len(plan.Actions))
}

// allowBoot opens the netboot window for the boot of the agent or the installer. afterReset: the
// machine was reset and runs already; if the boot before was given up and it has claimed that one since, it is left
// alone (inventory.ErrClaimed).
func (a *bmcs) allowBoot(ctx context.Context, q PowerRequest, afterReset bool) error {
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

	until := a.Now().Add(q.For)
	if afterReset && q.Unclaimed {
		return a.Windows.AllowBootAfterReset(ctx, q.Owner, q.Boot, until, q.Installer)
	}
	_, err := allow(ctx, q.Owner, q.Boot, until)
	return err
}

// wake sends the machine its magic packet. A failure does not fail the boot, because the
// operator can still press the button.
func (a *bmcs) wake(ctx context.Context, m inventory.Machine, q PowerRequest) (Powered, error) {
	err := a.BMC.Set(ctx, m.Controller(), inventory.Secret{}, "on", a.fenceBoot(q.Owner, q.Boot))
	switch {
	case err == nil:
		return a.recordStart(ctx, q, []string{"magic packet sent; a machine that is on, or does not wake, needs its button " +
			"pressed"}), nil
	case errors.Is(err, inventory.ErrFenced) || ctx.Err() != nil:
		return Powered{}, err
	}
	return a.recordStart(ctx, q, []string{"no magic packet, press the button (" + err.Error() + ")"}), nil
}

func (a *bmcs) start(ctx context.Context, m inventory.Machine, q PowerRequest) (Powered, error) {
	g, err := a.Grants.Grant(ctx, q.Owner.Machine)
	if err != nil {
		return Powered{}, err
	}

	boot, err := a.bootTasks(ctx, m, q)
	if err != nil {
		return Powered{}, err
	}
	allowed := false
	allow := func(afterReset bool) error {
		err := a.allowBoot(ctx, q, afterReset)
		allowed = err == nil
		return err
	}

	before, during := a.before(q), a.fenceBoot(q.Owner, q.Boot)
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
		// The operator may have been asked since, which closed the window.
		if err := allow(false); err != nil {
			return Powered{}, err
		}
		s, err := a.state(ctx, m)
		if err != nil || s == "on" {
			return Powered{}, err
		}
		list.job.Tasks, list.from, list.after = coldStart(boot), 1, func(int) error { return nil }
		return Powered{}, a.tasks(ctx, m, list)
	}

	how, err := a.prepare(ctx, m, q, boot[len(boot)-1].BootDevice)
	if err != nil {
		return Powered{}, err
	}

	by := bootWords[m.BMC.Path(q.Path)]
	warm, err := a.startsWarm(ctx, m, q)
	if err != nil {
		return Powered{}, err
	}

	allowAfter := func(task int, reset bool) func(int) error {
		return func(done int) error {
			if done != task {
				return nil
			}
			return allow(reset)
		}
	}

	if warm {
		// Only after the reset: an agent that claims the boot just before would use it up. A machine
		// that is back earlier claims the boot before, which then goes on.
		list.job.Tasks, list.after = append(slices.Clone(boot), inventory.BMCTask{Power: "reset"}), allowAfter(len(boot), true)
		err := a.tasks(ctx, m, list)
		if err == nil {
			return a.recordStart(ctx, q, append(how, by+" once again, reset")), nil
		}
		if !errors.Is(err, inventory.ErrUnsupported) {
			return Powered{}, err
		}
		how = append(how, "no reset, because the BMC cannot")
	}

	list.job.Tasks, list.after = coldStart(boot), allowAfter(0, false)
	if err := a.tasks(ctx, m, list); err != nil {
		return Powered{}, err
	}
	return a.recordStart(ctx, q, append(how, "off, "+by+" once, on")), nil
}

// bootWords name the boot paths for operators.
var bootWords = map[string]string{
	inventory.PathPXE: "network boot", inventory.PathHTTP: "UEFI HTTP boot", inventory.PathMedia: "virtual media",
}

// bootTasks returns the tasks that make the machine boot by the path of the request, the boot device
// last. The run's record of what it inserts is written before, so that it is ejected whatever
// happens; see ejectMedia in package server.
func (a *bmcs) bootTasks(ctx context.Context, m inventory.Machine, q PowerRequest) ([]inventory.BMCTask, error) {
	nic, _ := m.Netboot()
	boot := inventory.BMCTask{BootDevice: &inventory.BootDevice{Device: "pxe", EFI: nic.UEFI}}
	switch m.BMC.Path(q.Path) {
	case inventory.PathHTTP:
		boot.BootDevice.Device, boot.BootDevice.EFI = "http", true
	case inventory.PathMedia:
		if a.Site.MediaURL == nil {
			return nil, fmt.Errorf("booting %q by virtual media: %w", m.Name, errOff)
		}
		url, err := a.Site.MediaURL()
		if err != nil {
			return nil, fmt.Errorf("booting %q by virtual media: %w", m.Name, err)
		}
		medium := inventory.Media{Machine: m.Name, Run: q.Owner.Run, URL: url, BMC: m.BMC.KeyAddress()}
		if err := a.Media.PutMedia(ctx, medium); err != nil {
			return nil, err
		}
		boot.BootDevice.Device = "cdrom"
		return []inventory.BMCTask{{Media: &inventory.VirtualMedia{MediaURL: url}}, boot}, nil
	}
	return []inventory.BMCTask{boot}, nil
}

// startsWarm reports whether the machine is reset instead of power-cycled. Only a machine
// that is on can be reset. Where a reset is off and on, the boot must be allowed in between: after
// the reset, firmware may have asked already.
func (a *bmcs) startsWarm(ctx context.Context, m inventory.Machine, q PowerRequest) (bool, error) {
	if !q.Warm || m.BMC.Capabilities().ResetByCycle {
		return false, nil
	}
	s, err := a.state(ctx, m)
	return s == "on", err
}

// prepare carries out the optional first steps of a start and returns what was not possible.
// Steps that the BMC does not support are skipped.
func (a *bmcs) prepare(ctx context.Context, m inventory.Machine, q PowerRequest, boot *inventory.BootDevice,
) (how []string, err error) {
	if q.ResetBMC {
		password, err := a.Passwords.BMCPassword(ctx, m.Name)
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

	if q.OtherPath && len(m.BMC.BootPath) < 2 { // otherwise the inventory says which other paths there are
		switch {
		case !m.BMC.Capabilities().EFI:
			how = append(how, "no other boot path, because "+m.BMC.Driver+" cannot choose it")
		case boot.EFI:
			how = append(how, "no other boot path, because the inventory says UEFI")
		default:
			boot.EFI = true
			how = append(how, "the other boot path, EFI")
		}
	}
	return how, nil
}

// recordStart describes how boot q.Boot was started, and records it. The record is only
// informative, so a failure to write it does not fail the start.
func (a *bmcs) recordStart(ctx context.Context, q PowerRequest, how []string) Powered {
	p := Powered{How: strings.Join(how, "; ")}
	err := a.event(ctx, q.Owner.Event(q.Boot, inventory.EventPower, "start", fmt.Sprintf("boot %d: %s", q.Boot, p.How)))
	if err != nil {
		a.Log.With(q.Owner.LogKeys(q.Boot)...).Error("recording how a machine was started", "error", err)
	}
	return p
}

// before is the fence for steps before boot q.Boot: the boot must not be allowed yet, and
// the agent that was given up must not have reported.
func (a *bmcs) before(q PowerRequest) Fence {
	return func(ctx context.Context) error {
		g, err := a.readOwnGrant(ctx, q.Owner)
		switch {
		case err != nil:
			return err
		case g.Boot >= q.Boot:
			return errFurther
		case q.Unclaimed && g.Boot == q.Boot-1 && g.Spent:
			return inventory.ErrClaimed
		}
		return nil
	}
}

// fenceBoot returns the fence for steps of one boot: an activity whose worker was wrongly taken for
// dead must not switch off a later boot.
func (a *bmcs) fenceBoot(o inventory.Owner, boot int) Fence {
	return func(ctx context.Context) error {
		g, err := a.readOwnGrant(ctx, o)
		if err == nil && g.Boot != boot {
			err = fmt.Errorf("machine %q is at boot %d, not %d: %w", o.Machine, g.Boot, boot, inventory.ErrFenced)
		}
		return err
	}
}

// PowerOff switches the power off and verifies it. It is the last resort to stop an agent.
func (a *bmcs) PowerOff(ctx context.Context, o inventory.Owner) error {
	return a.switchTo(ctx, o, "power-off", "off")
}

// ColdStart power-cycles the machine without changing the boot device, so that the machine
// follows its boot order. Off and on are two tasks: an attempt that resumes after a dead
// worker must not switch off a machine that has started.
func (a *bmcs) ColdStart(ctx context.Context, o inventory.Owner) error {
	return a.switchTo(ctx, o, "power-cycle", "off", "on")
}

// switchTo sets the given power states in order and verifies each.
func (a *bmcs) switchTo(ctx context.Context, o inventory.Owner, name string, powers ...string) error {
	m, err := a.Machines.Machine(ctx, o.Machine)
	if err != nil {
		return err
	}

	if m.BMC.Manual() {
		return fmt.Errorf("switching %q %s: it has no BMC: %w", o.Machine, strings.Join(powers, " and "),
			inventory.ErrUnsupported)
	}
	defer heartbeat(ctx)()
	g, err := a.readOwnGrant(ctx, o)
	if err != nil {
		return err
	}

	// A retry uses the same name, so finished tasks are not repeated.
	job := inventory.BMCJob{Name: fmt.Sprintf("%s-%d-%s", name, o.Epoch, activity.GetInfo(ctx).ActivityID), Inline: true}
	for _, p := range powers {
		job.Tasks = append(job.Tasks, inventory.BMCTask{Power: p})
	}
	return a.tasks(ctx, m, taskList{owner: o, job: job, fence: a.fenceBoot(o, g.Boot)})
}

// HasBMC reports whether the machine's power can be controlled without the operator.
func (a *bmcs) HasBMC(ctx context.Context, machine string) (bool, error) {
	m, err := a.Machines.Machine(ctx, machine)
	return !m.BMC.Manual(), err
}
