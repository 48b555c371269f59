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
	Boot  int             `json:"boot"` // number of the boot, from 1
	For   time.Duration   `json:"for"`  // how long the machine may boot over the network
	// Warm: set the boot device for one boot and reset the machine, instead of a power cycle.
	Warm bool `json:"warm,omitempty"`
	// ResetBMC: restart the BMC first.
	ResetBMC bool `json:"resetBMC,omitempty"`
	// OtherPath: boot by EFI instead of legacy BIOS, unless the inventory lists several boot paths.
	OtherPath bool `json:"otherPath,omitempty"`
	// Path is how many of the machine's boot paths were tried without an answer. BMC.Path(Path) is the next path to
	// try.
	Path int `json:"path,omitempty"`
	// Installer: boot the plan's installer instead of the agent.
	Installer bool `json:"installer,omitempty"`
	// Unclaimed: the previous boot was given up because its agent did not report. If that agent has reported since,
	// the machine must not be started (inventory.ErrClaimed).
	Unclaimed bool `json:"unclaimed,omitempty"`
}

// Powered is the result of Power.
type Powered struct {
	// How describes what was done and what was not possible; "" if there was nothing to do.
	How string `json:"how,omitempty"`
	// Shim means that an interface of the machine boots by inventory.LoaderShim.
	Shim bool `json:"shim,omitempty"`
}

// errFurther is the error of a Fence if another attempt of this activity has already allowed the boot. The attempt
// that gets this error must not write to the BMC.
var errFurther = errors.New("another attempt of this activity has already allowed the boot")

// Power starts boot q.Boot of the run. It switches the power off, verifies that, opens the netboot window (which
// allows this one network boot), sets the boot device for one boot and switches the power on. So each event with
// this boot number is later than the verified power-off. If the machine has no BMC, Power only opens the window,
// and the operator switches the machine on. If the machine has wake-on-LAN, Power also sends a magic packet, which
// has no effect on a machine that is on.
//
// A warm start resets the machine instead of switching it off and on. It is used if the machine's agent has never
// reported, because such an agent has no work that a reset could interrupt.
//
// Power may be repeated. Once the boot is allowed, Power does not switch the machine off again, because that would
// stop the agent that has just started.
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

// checkPlanned returns an error if this server cannot serve the run's installer as planned. It is called before the
// machine is touched. If the installer has already reported, checkPlanned returns nil.
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

// allowBoot opens the netboot window for the boot q.Boot of the agent or the installer. afterReset means that the
// machine was reset before the call and is running. If the previous boot was given up but its agent has reported
// after the reset, the window stays as it is and the error is inventory.ErrClaimed.
func (a *bmcs) allowBoot(ctx context.Context, q PowerRequest, afterReset bool) error {
	allow := a.Windows.AllowBoot
	if q.Installer {
		m, err := a.Machines.Machine(ctx, q.Owner.Machine)
		if err == nil {
			err = mayInstall(m).Err() // a disk may have been protected since the run was planned
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

// wake sends the machine its magic packet. A failure does not end the boot, because the operator can still press
// the power button.
func (a *bmcs) wake(ctx context.Context, m inventory.Machine, q PowerRequest) (Powered, error) {
	err := a.BMC.Set(ctx, m.Controller(), inventory.Secret{}, "on", a.fenceBoot(q.Owner, q.Boot))
	switch {
	case err == nil:
		return a.recordStart(ctx, q, []string{"magic packet sent; if the machine does not wake, or was already on, press its power " +
			"button"}), nil
	case errors.Is(err, inventory.ErrFenced) || ctx.Err() != nil:
		return Powered{}, err
	}
	return a.recordStart(ctx, q, []string{"no magic packet was sent (" + err.Error() + "): press the machine's power button"}), nil
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
		// The netboot window may have been closed since, by a question to the operator.
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
		// Allow the boot after the reset: before, the old agent could claim the boot and so use it up. If that agent
		// reports before the boot is allowed, the agent claims the previous boot, which then continues.
		list.job.Tasks, list.after = append(slices.Clone(boot), inventory.BMCTask{Power: "reset"}), allowAfter(len(boot), true)
		err := a.tasks(ctx, m, list)
		if err == nil {
			return a.recordStart(ctx, q, append(how, by+" once again, reset")), nil
		}
		if !errors.Is(err, inventory.ErrUnsupported) {
			return Powered{}, err
		}
		how = append(how, "no reset, because the BMC does not support it")
	}

	list.job.Tasks, list.after = coldStart(boot), allowAfter(0, false)
	if err := a.tasks(ctx, m, list); err != nil {
		return Powered{}, err
	}
	return a.recordStart(ctx, q, append(how, "off, "+by+" once, on")), nil
}

// bootWords describes each boot path in words for the operator.
var bootWords = map[string]string{
	inventory.PathPXE: "network boot", inventory.PathHTTP: "UEFI HTTP boot", inventory.PathMedia: "virtual media",
}

// bootTasks returns the BMC tasks that make the machine boot by the path of the request. The last task sets the
// boot device. For virtual media, bootTasks first records which image will be inserted, so that the server ejects
// the image even if the run fails; see ejectMedia in package server.
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

// startsWarm reports whether the machine is reset instead of switched off and on. Only a machine that is on can be
// reset. Some BMCs reset a machine by a power cycle. With such a BMC, the machine must be off when the boot is
// allowed, because after the reset the firmware may have sent its first packet too early.
func (a *bmcs) startsWarm(ctx context.Context, m inventory.Machine, q PowerRequest) (bool, error) {
	if !q.Warm || m.BMC.Capabilities().ResetByCycle {
		return false, nil
	}
	s, err := a.state(ctx, m)
	return s == "on", err
}

// prepare carries out the optional first steps of a start. It skips steps that the BMC does not support. how lists
// what was done and what was not possible.
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
			how = append(how, "BMC not reset, because it does not support that")
		default:
			return nil, err
		}
	}

	if q.OtherPath && len(m.BMC.BootPath) < 2 { // if the inventory lists two or more paths, these are tried instead
		switch {
		case !m.BMC.Capabilities().EFI:
			how = append(how, "boot path not changed, because the driver "+m.BMC.Driver+" cannot choose it")
		case boot.EFI:
			how = append(how, "boot path not changed, because the inventory already says UEFI")
		default:
			boot.EFI = true
			how = append(how, "boot path changed to UEFI")
		}
	}
	return how, nil
}

// recordStart writes an event about how boot q.Boot was started, and returns the same as a Powered. The event only
// informs operators, so a failure to write it is only logged.
func (a *bmcs) recordStart(ctx context.Context, q PowerRequest, how []string) Powered {
	p := Powered{How: strings.Join(how, "; ")}
	err := a.event(ctx, q.Owner.Event(q.Boot, inventory.EventPower, "start", fmt.Sprintf("boot %d: %s", q.Boot, p.How)))
	if err != nil {
		a.Log.With(q.Owner.LogKeys(q.Boot)...).Error("recording how a machine was started", "error", err)
	}
	return p
}

// before returns the fence for BMC writes that precede boot q.Boot. The fence fails if the boot is allowed already,
// or if the previous boot was given up and its agent has reported since.
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

// fenceBoot returns the fence for BMC writes that belong to one boot. A worker that was taken for dead may still be
// running; the fence prevents its activity from switching off a later boot.
func (a *bmcs) fenceBoot(o inventory.Owner, boot int) Fence {
	return func(ctx context.Context) error {
		g, err := a.readOwnGrant(ctx, o)
		if err == nil && g.Boot != boot {
			err = fmt.Errorf("machine %q is at boot %d, not %d: %w", o.Machine, g.Boot, boot, inventory.ErrFenced)
		}
		return err
	}
}

// PowerOff switches the machine off and verifies that. It is the last way to stop an agent that does not obey
// orders.
func (a *bmcs) PowerOff(ctx context.Context, o inventory.Owner) error {
	return a.switchTo(ctx, o, "power-off", "off")
}

// ColdStart power-cycles the machine without changing the boot device, so that the machine follows its boot order.
// Switching off and switching on are separate tasks, so that an attempt that continues after its worker died does
// not switch off a machine that has started.
func (a *bmcs) ColdStart(ctx context.Context, o inventory.Owner) error {
	return a.switchTo(ctx, o, "power-cycle", "off", "on")
}

// switchTo switches the machine to the power states in powers, one after another, and verifies each. name is the
// name of the job in the record.
func (a *bmcs) switchTo(ctx context.Context, o inventory.Owner, name string, powers ...string) error {
	m, err := a.Machines.Machine(ctx, o.Machine)
	if err != nil {
		return err
	}

	if m.BMC.Manual() {
		return fmt.Errorf("switching %q %s: the machine has no BMC: %w", o.Machine, strings.Join(powers, " and "),
			inventory.ErrUnsupported)
	}
	defer heartbeat(ctx)()
	g, err := a.readOwnGrant(ctx, o)
	if err != nil {
		return err
	}

	// The job has the same name in each attempt of this activity, so finished tasks are not repeated.
	job := inventory.BMCJob{Name: fmt.Sprintf("%s-%d-%s", name, o.Epoch, activity.GetInfo(ctx).ActivityID), Inline: true}
	for _, p := range powers {
		job.Tasks = append(job.Tasks, inventory.BMCTask{Power: p})
	}
	return a.tasks(ctx, m, taskList{owner: o, job: job, fence: a.fenceBoot(o, g.Boot)})
}

// HasBMC reports whether the machine has a BMC that controls its power.
func (a *bmcs) HasBMC(ctx context.Context, machine string) (bool, error) {
	m, err := a.Machines.Machine(ctx, machine)
	return !m.BMC.Manual(), err
}
