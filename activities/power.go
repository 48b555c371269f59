package activities

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

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
// only allowed its boot: a person presses the button. One that wakes by LAN is
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
		return Powered{}, fail(err)
	}
	if m.BMC.Manual() {
		if err := a.allowBoot(ctx, q); err != nil || !m.BMC.Wakes() {
			return Powered{}, fail(err)
		}
		done, err := a.wake(ctx, m, q)
		return done, fail(err)
	}
	defer heartbeat(ctx)()
	done, err := a.start(ctx, m, q)
	return done, fail(err)
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

// allowBoot opens the netboot window for the boot, whosever it is.
func (a *Activities) allowBoot(ctx context.Context, q PowerRequest) error {
	allow := a.Grants.AllowBoot
	if q.Installer {
		m, err := a.Machines.Machine(ctx, q.Owner.Machine)
		if err == nil {
			err = mayInstall(m).Err() // disks may have been protected since the plan
		}
		if err != nil {
			return err
		}
		allow = a.Grants.AllowInstaller
	}
	_, err := allow(ctx, q.Owner, q.Boot, a.Now().Add(q.For))
	return err
}

// wake sends the machine its magic packet. That it could not be sent is no
// failure: the button is still there.
func (a *Activities) wake(ctx context.Context, m inventory.Machine, q PowerRequest) (Powered, error) {
	err := a.BMC.Set(ctx, m.Controller(), inventory.Secret{}, "on", a.during(q.Owner, q.Boot))
	switch {
	case err == nil:
		return a.powered(ctx, q, []string{"magic packet sent; a machine that is on, or does not wake, needs its button pressed"}), nil
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
	list := taskList{owner: q.Owner, job: inventory.BMCJob{Name: fmt.Sprintf("netboot-%d-%d", q.Owner.Epoch, q.Boot), Inline: true}, fence: func(ctx context.Context) error {
		if allowed {
			return during(ctx)
		}
		return before(ctx)
	}}
	if g.Owner == q.Owner && g.Boot >= q.Boot {
		// A person may have been asked meanwhile, and the window closed for it.
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
	warm := q.Warm
	if warm {
		s, err := a.state(ctx, m)
		if err != nil {
			return Powered{}, err
		}
		warm = s == "on"
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

func coldStart(pxe inventory.BootDevice) []inventory.BMCTask {
	return []inventory.BMCTask{{Power: "off"}, {BootDevice: &pxe}, {Power: "on"}}
}

// prepare does what a start of the machine may begin with, and says what of it
// was not possible: a missing rung of the ladder is no reason not to climb.
func (a *Activities) prepare(ctx context.Context, m inventory.Machine, q PowerRequest, nic inventory.Interface, pxe *inventory.BootDevice) (how []string, err error) {
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
// people: a start that worked does not fail for want of it.
func (a *Activities) powered(ctx context.Context, q PowerRequest, how []string) Powered {
	p := Powered{How: strings.Join(how, "; ")}
	err := a.Records.AppendEvents(ctx, []inventory.Event{{
		Machine: q.Owner.Machine, Run: q.Owner.Run, Epoch: q.Owner.Epoch, Boot: q.Boot, Kind: inventory.EventPower, Key: "start", At: a.Now(),
		Message: fmt.Sprintf("boot %d: %s", q.Boot, p.How),
	}})
	if err != nil {
		a.Log.Error("recording how a machine was started", "machine", q.Owner.Machine, "error", err)
	}
	return p
}

// before is the fence of what leads to boot q.Boot: nobody has allowed it yet,
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

// during is the fence of what belongs to one boot: an activity that lived on
// when its worker was thought dead must not switch off what came after it.
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
		return fail(err)
	}
	if m.BMC.Manual() {
		return fail(fmt.Errorf("switching %q %s: it has no BMC: %w", o.Machine, strings.Join(powers, " and "), inventory.ErrUnsupported))
	}
	defer heartbeat(ctx)()
	g, err := a.owned(ctx, o)
	if err != nil {
		return fail(err)
	}
	// The same name on a retry: what was done is not done again.
	job := inventory.BMCJob{Name: fmt.Sprintf("%s-%d-%s", name, o.Epoch, activity.GetInfo(ctx).ActivityID), Inline: true}
	for _, p := range powers {
		job.Tasks = append(job.Tasks, inventory.BMCTask{Power: p})
	}
	return fail(a.tasks(ctx, m, taskList{owner: o, job: job, fence: a.during(o, g.Boot)}))
}

// BMCTasks carries out a person's job under the owner's grant, task after
// task, each verified; the first that fails ends it. A job that only reads
// needs no grant: its Owner has epoch 0.
func (a *Activities) BMCTasks(ctx context.Context, o inventory.Owner, job inventory.BMCJob) error {
	m, err := a.Machines.Machine(ctx, o.Machine)
	if err != nil {
		return fail(err)
	}
	if m.BMC.Manual() && !m.BMC.Wakes() {
		return fail(fmt.Errorf("job %q: machine %q has no BMC: %w", job.Name, o.Machine, inventory.ErrUnsupported))
	}
	defer heartbeat(ctx)()
	err = a.tasks(ctx, m, taskList{owner: o, job: job, fence: func(ctx context.Context) error { return a.fence(ctx, o) }})
	if task := (failedTask{}); !errors.As(err, &task) || ctx.Err() != nil {
		return fail(err)
	}
	// The person was told that the job is over: the list is not begun again,
	// least of all its tasks that had worked. A worker's death is another matter.
	var app *temporal.ApplicationError
	var kind string
	if errors.As(fail(err), &app) {
		kind = app.Type()
	}
	return temporal.NewNonRetryableApplicationError(err.Error(), kind, nil)
}

// failedTask is a task of a list that did not work, and was recorded.
type failedTask struct{ cause error }

func (f failedTask) Error() string { return f.cause.Error() }
func (f failedTask) Unwrap() error { return f.cause }

// taskList is a list of BMC tasks to be carried out.
type taskList struct {
	owner inventory.Owner
	job   inventory.BMCJob
	from  int // what comes before was done
	fence Fence
	// after is called after each task. A list with it begins at from; one
	// without goes on where the record of an earlier attempt ends.
	after func(done int) error
}

// tasks is the one place where lists of BMC tasks are carried out and
// recorded. What the job's record says was done by this run is not done again:
// a worker that died has left it behind.
func (a *Activities) tasks(ctx context.Context, m inventory.Machine, l taskList) error {
	o, job, from := l.owner, l.job, l.from
	job.Machine, job.Run, job.Started, job.State = m.Name, o.Run, a.Now(), inventory.StateRunning
	for i := range job.Tasks[:from] {
		job.Tasks[i].State = inventory.StateSuccess
	}
	earlier, err := a.Records.BMCJob(ctx, m.Name, job.Name)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	if err == nil && earlier.Run == o.Run && l.after == nil && len(earlier.Tasks) == len(job.Tasks) {
		job.Started = earlier.Started
		for from < len(earlier.Tasks) && earlier.Tasks[from].State == inventory.StateSuccess {
			job.Tasks[from] = earlier.Tasks[from]
			from++
		}
	}
	for i := from; i < len(job.Tasks); i++ {
		t := &job.Tasks[i]
		t.State = inventory.StateRunning
		if err := a.Records.PutBMCJob(ctx, job); err != nil {
			return err
		}
		begun := a.Now()
		t.Message, err = a.task(ctx, m, l.fence, *t)
		if err == nil && l.after != nil {
			if err = l.after(i); err != nil {
				err = fmt.Errorf("after %s: %w", describe(*t), err)
			}
		}
		t.Seconds, t.State = a.Now().Sub(begun).Seconds(), inventory.StateSuccess
		if err != nil {
			t.State, t.Message = inventory.StateFailed, err.Error()
			job.State, job.Message, job.Ended = inventory.StateFailed, err.Error(), a.Now()
			// The cause matters more than the failure to write it down.
			if e := a.Records.PutBMCJob(context.WithoutCancel(ctx), job); e != nil {
				a.Log.Error("recording a BMC job", "machine", m.Name, "job", job.Name, "error", e)
			}
			return failedTask{fmt.Errorf("bmc of %q: %w", m.Name, err)}
		}
		if err := a.keep(ctx, job); err != nil {
			return err
		}
		// Of what has worked and is on record, the event is for people.
		if err := a.power(ctx, o, job.Name, *t); err != nil {
			a.Log.Error("recording what a BMC did", "machine", m.Name, "job", job.Name, "error", err)
		}
	}
	job.State, job.Ended = inventory.StateSuccess, a.Now()
	return a.keep(ctx, job)
}

// keep stores a job of which a task has worked, and tries until the activity's
// time is over: an attempt that does not find the task on record does it again,
// to a machine that may have gone on since.
func (a *Activities) keep(ctx context.Context, job inventory.BMCJob) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		err := a.Records.PutBMCJob(context.WithoutCancel(ctx), job)
		if a.Troubles != nil { // until it succeeds, no record can say so
			a.Troubles.note(job.Run, "record of BMC job "+job.Name, fail(err))
		}
		var never *temporal.ApplicationError
		if err == nil || errors.As(fail(err), &never) && never.NonRetryable() {
			return err
		}
		a.Log.Warn("recording a BMC job, will be tried again", "machine", job.Machine, "job", job.Name, "in", pause, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

func (a *Activities) power(ctx context.Context, o inventory.Owner, job string, t inventory.BMCTask) error {
	if t.Power == "status" {
		return nil
	}
	msg := describe(t)
	if t.Message != "" {
		msg += ": " + t.Message
	}
	return a.Records.AppendEvents(ctx, []inventory.Event{{
		Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Kind: inventory.EventPower, Key: job + "/" + describe(t), At: a.Now(), Message: msg,
	}})
}

func describe(t inventory.BMCTask) string {
	if t.BootDevice == nil {
		return "power " + t.Power
	}
	how := "once"
	if t.BootDevice.Persistent {
		how = "persistent"
	}
	if t.BootDevice.EFI {
		how += ", efi"
	}
	return fmt.Sprintf("boot %s (%s)", t.BootDevice.Device, how)
}

func (a *Activities) task(ctx context.Context, m inventory.Machine, fence Fence, t inventory.BMCTask) (string, error) {
	password, err := a.Machines.BMCPassword(ctx, m.Name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", describe(t), err)
	}
	switch {
	case t.BootDevice != nil:
		return a.BMC.SetBootDevice(ctx, m.Controller(), password, *t.BootDevice, fence)
	case t.Power == "status":
		return a.BMC.State(ctx, m.Controller(), password)
	}
	said := ""
	if m.BMC.Wakes() {
		said = "magic packet sent; nothing tells whether the machine woke"
	}
	return said, a.BMC.Set(ctx, m.Controller(), password, t.Power, fence)
}

func (a *Activities) state(ctx context.Context, m inventory.Machine) (string, error) {
	password, err := a.Machines.BMCPassword(ctx, m.Name)
	if err != nil {
		return "", err
	}
	return a.BMC.State(ctx, m.Controller(), password)
}

// fence compares the grant with the owner.
func (a *Activities) fence(ctx context.Context, o inventory.Owner) error {
	_, err := a.owned(ctx, o)
	return err
}

// owned returns the grant that o holds.
func (a *Activities) owned(ctx context.Context, o inventory.Owner) (inventory.Grant, error) {
	g, err := a.Grants.Grant(ctx, o.Machine)
	if err == nil && g.Owner != o {
		err = fmt.Errorf("machine %q is owned by run %q at epoch %d: %w", o.Machine, g.Run, g.Epoch, inventory.ErrFenced)
	}
	return g, err
}

// heartbeat tells Temporal every few seconds that the activity lives, until
// the returned function is called: a worker that dies is noticed within the
// heartbeat time-out instead of the activity's own.
func heartbeat(ctx context.Context) (stop func()) {
	if !activity.IsActivity(ctx) {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(5 * time.Second)
		defer t.Stop()
		for {
			activity.RecordHeartbeat(ctx)
			select {
			case <-t.C:
			case <-done:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// HasBMC tells whether the machine can be switched without a person.
func (a *Activities) HasBMC(ctx context.Context, machine string) (bool, error) {
	m, err := a.Machines.Machine(ctx, machine)
	return !m.BMC.Manual(), fail(err)
}

// Job makes a person's job of tasks.
func Job(name string, tasks []inventory.BMCTask) inventory.BMCJob {
	return inventory.BMCJob{Name: name, Tasks: tasks, State: inventory.StatePending}
}
