package activities

import (
	"context"
	"errors"
	"fmt"
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
}

// Power starts boot q.Boot of the run: off, verified; netboot allowed for this
// boot; one-time PXE; on, verified. What is heard of the machine under this
// boot number is thereby later than the verified off. A machine without BMC is
// only allowed its boot: a person presses the button.
//
// Repeating it is safe: once the boot was allowed the machine is not switched
// off again, or a repetition would kill the agent that just came up.
func (a *Activities) Power(ctx context.Context, q PowerRequest) error {
	m, err := a.Machines.Machine(ctx, q.Owner.Machine)
	if err != nil {
		return fail(err)
	}
	if m.BMC.Manual() {
		_, err := a.Grants.AllowBoot(ctx, q.Owner, q.Boot, a.Now().Add(q.For))
		return fail(err)
	}
	defer heartbeat(ctx)()
	g, err := a.Grants.Grant(ctx, q.Owner.Machine)
	if err != nil {
		return fail(err)
	}
	nic, _ := m.Netboot()
	pxe := inventory.BootDevice{Device: "pxe", EFI: nic.UEFI}
	job := inventory.BMCJob{Name: fmt.Sprintf("netboot-%d-%d", q.Owner.Epoch, q.Boot), Inline: true, Tasks: []inventory.BMCTask{
		{Power: "off"}, {BootDevice: &pxe}, {Power: "on"},
	}}
	from := 0
	if g.Owner == q.Owner && g.Boot >= q.Boot {
		// A person may have been asked meanwhile, and the window closed for it.
		if _, err := a.Grants.AllowBoot(ctx, q.Owner, q.Boot, a.Now().Add(q.For)); err != nil {
			return fail(err)
		}
		from = 1
		s, err := a.state(ctx, m)
		if err != nil {
			return fail(err)
		}
		if s == "on" {
			return nil
		}
	}
	return fail(a.tasks(ctx, m, q.Owner, job, from, func(done int) error {
		if done != 0 {
			return nil
		}
		_, err := a.Grants.AllowBoot(ctx, q.Owner, q.Boot, a.Now().Add(q.For))
		return err
	}))
}

// PowerOff takes the power away and verifies it: the last resort of stopping.
func (a *Activities) PowerOff(ctx context.Context, o inventory.Owner) error {
	return a.switchTo(ctx, o, "off")
}

// ColdStart switches off and on without touching the boot device: the machine
// follows its own boot order.
func (a *Activities) ColdStart(ctx context.Context, o inventory.Owner) error {
	return a.switchTo(ctx, o, "cycle")
}

func (a *Activities) switchTo(ctx context.Context, o inventory.Owner, power string) error {
	m, err := a.Machines.Machine(ctx, o.Machine)
	if err != nil {
		return fail(err)
	}
	if m.BMC.Manual() {
		return fail(fmt.Errorf("switching %q %s: it has no BMC: %w", o.Machine, power, inventory.ErrUnsupported))
	}
	defer heartbeat(ctx)()
	// The same name on a retry: what was done is not done again.
	job := inventory.BMCJob{Name: fmt.Sprintf("power-%s-%d-%s", power, o.Epoch, activity.GetInfo(ctx).ActivityID), Inline: true, Tasks: []inventory.BMCTask{{Power: power}}}
	return fail(a.tasks(ctx, m, o, job, 0, nil))
}

// BMCTasks carries out a person's job under the owner's grant, task after
// task, each verified; the first that fails ends it. A job that only reads
// needs no grant: its Owner has epoch 0.
func (a *Activities) BMCTasks(ctx context.Context, o inventory.Owner, job inventory.BMCJob) error {
	m, err := a.Machines.Machine(ctx, o.Machine)
	if err != nil {
		return fail(err)
	}
	if m.BMC.Manual() {
		return fail(fmt.Errorf("job %q: machine %q has no BMC: %w", job.Name, o.Machine, inventory.ErrUnsupported))
	}
	defer heartbeat(ctx)()
	err = a.tasks(ctx, m, o, job, 0, nil)
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

// tasks is the one place where lists of BMC tasks are carried out and
// recorded. What the job's record says was done by this run is not done again:
// a worker that died has left it behind.
func (a *Activities) tasks(ctx context.Context, m inventory.Machine, o inventory.Owner, job inventory.BMCJob, from int, after func(done int) error) error {
	job.Machine, job.Run, job.Started, job.State = m.Name, o.Run, a.Now(), inventory.StateRunning
	for i := range job.Tasks[:from] {
		job.Tasks[i].State = inventory.StateSuccess
	}
	earlier, err := a.Records.BMCJob(ctx, m.Name, job.Name)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	if err == nil && earlier.Run == o.Run && after == nil && len(earlier.Tasks) == len(job.Tasks) {
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
		t.Message, err = a.task(ctx, m, o, *t)
		if err == nil && after != nil {
			err = after(i)
		}
		t.Seconds, t.State = a.Now().Sub(begun).Seconds(), inventory.StateSuccess
		if err != nil {
			t.State, t.Message = inventory.StateFailed, err.Error()
			job.State, job.Message, job.Ended = inventory.StateFailed, err.Error(), a.Now()
			// The cause matters more than the failure to write it down.
			if e := a.Records.PutBMCJob(context.WithoutCancel(ctx), job); e != nil {
				a.Log.Error("recording a BMC job", "machine", m.Name, "job", job.Name, "error", e)
			}
			return failedTask{fmt.Errorf("bmc of %q: %s: %w", m.Name, describe(*t), err)}
		}
		if e := a.power(ctx, o, job.Name, *t); e != nil {
			return e
		}
	}
	job.State, job.Ended = inventory.StateSuccess, a.Now()
	return a.Records.PutBMCJob(ctx, job)
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

func (a *Activities) task(ctx context.Context, m inventory.Machine, o inventory.Owner, t inventory.BMCTask) (string, error) {
	fence := func(ctx context.Context) error { return a.fence(ctx, o) }
	password, err := a.Machines.BMCPassword(ctx, m.Name)
	if err != nil {
		return "", err
	}
	switch {
	case t.BootDevice != nil:
		return a.BMC.SetBootDevice(ctx, *m.BMC, password, *t.BootDevice, fence)
	case t.Power == "status":
		return a.BMC.State(ctx, *m.BMC, password)
	}
	return "", a.BMC.Set(ctx, *m.BMC, password, t.Power, fence)
}

func (a *Activities) state(ctx context.Context, m inventory.Machine) (string, error) {
	password, err := a.Machines.BMCPassword(ctx, m.Name)
	if err != nil {
		return "", err
	}
	return a.BMC.State(ctx, *m.BMC, password)
}

// fence compares the grant with the owner.
func (a *Activities) fence(ctx context.Context, o inventory.Owner) error {
	g, err := a.Grants.Grant(ctx, o.Machine)
	if err != nil {
		return err
	}
	if g.Owner != o {
		return fmt.Errorf("machine %q is owned by run %q at epoch %d: %w", o.Machine, g.Run, g.Epoch, inventory.ErrFenced)
	}
	return nil
}

// heartbeat tells Temporal every few seconds that the activity lives, until
// the returned function is called: a worker that dies is noticed within the
// heartbeat time-out instead of the activity's own.
func heartbeat(ctx context.Context) (stop func()) {
	if !activity.IsActivity(ctx) {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
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
	return func() { close(done) }
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
