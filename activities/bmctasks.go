package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/inventory"
)

// bmcs holds the activities that use management controllers (BMCs).
type bmcs struct{ *shared }

// coldStart returns the tasks of a power cycle: power off, then the tasks in boot, then power on.
func coldStart(boot []inventory.BMCTask) []inventory.BMCTask {
	return slices.Concat([]inventory.BMCTask{{Power: "off"}}, boot, []inventory.BMCTask{{Power: "on"}})
}

// BMCTasks carries out the operator's job, task by task, and verifies each task. The first task that fails ends the
// job. The owner o must hold the machine's grant. A job that only reads needs no grant; the epoch of its owner is
// 0.
func (a *bmcs) BMCTasks(ctx context.Context, o inventory.Owner, job inventory.BMCJob) error {
	m, err := a.Machines.Machine(ctx, o.Machine)
	if err != nil {
		return err
	}

	if m.BMC.Manual() && !m.BMC.Wakes() {
		return fmt.Errorf("running BMC job %q: machine %q has no BMC: %w", job.Name, o.Machine, inventory.ErrUnsupported)
	}
	defer heartbeat(ctx)()
	err = a.tasks(ctx, m, taskList{owner: o, job: job, fence: func(ctx context.Context) error { return a.fence(ctx, o) }})
	if task := (failedTask{}); !errors.As(err, &task) || ctx.Err() != nil {
		return err
	}

	// The error must not be retried: the operator may have seen that the job failed, so another attempt must not
	// repeat it. Only a job whose worker died is continued.
	var app *temporal.ApplicationError
	var kind string
	if errors.As(fail(err), &app) {
		kind = app.Type()
	}
	return temporal.NewNonRetryableApplicationError(err.Error(), kind, nil)
}

// failedTask is the error of a task that failed, after the failure was stored in the record of the job.
type failedTask struct{ cause error }

func (f failedTask) Error() string { return f.cause.Error() }
func (f failedTask) Unwrap() error { return f.cause }

// taskList is a list of BMC tasks to carry out.
type taskList struct {
	owner inventory.Owner
	job   inventory.BMCJob
	from  int // index of the first task; the tasks before it are done
	fence Fence
	// after, if not nil, is called after each task with the task's index. The list then starts at from. If after is
	// nil, the list continues after the last task that an earlier attempt has recorded as done.
	after func(done int) error
}

// tasks carries out a list of BMC tasks and stores their states. It skips tasks that the record of the job shows as
// done by an earlier attempt of this run.
func (a *bmcs) tasks(ctx context.Context, m inventory.Machine, l taskList) error {
	o, job, from := l.owner, l.job, l.from
	job.Machine, job.Run, job.Started, job.State = m.Name, o.Run, a.Now(), inventory.StateRunning
	for i := range job.Tasks[:from] {
		job.Tasks[i].State = inventory.StateSuccess
	}

	earlier, err := a.BMCJobs.BMCJob(ctx, m.Name, job.Name)
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
		if err := a.BMCJobs.PutBMCJob(ctx, job); err != nil {
			return err
		}
		begun := a.Now()
		t.Message, err = a.task(ctx, m, l, *t)
		if err == nil && l.after != nil {
			if err = l.after(i); err != nil {
				err = fmt.Errorf("allowing the boot after %s: %w", describe(*t), err)
			}
		}
		t.Seconds, t.State = a.Now().Sub(begun).Seconds(), inventory.StateSuccess
		if err != nil {
			t.State, t.Message = inventory.StateFailed, err.Error()
			job.State, job.Message, job.Ended = inventory.StateFailed, err.Error(), a.Now()
			// Return the error of the task, even if the record cannot be written.
			if e := a.BMCJobs.PutBMCJob(context.WithoutCancel(ctx), job); e != nil {
				a.Log.With(o.LogKeys(0)...).Error("recording a BMC job", "job", job.Name, "error", e)
			}
			return failedTask{fmt.Errorf("bmc of %q: %w", m.Name, err)}
		}
		if err := a.keep(ctx, job); err != nil {
			return err
		}
		// The task is done and recorded. The event only informs operators.
		a.Log.With(o.LogKeys(0)...).Info("a BMC task is done", "job", job.Name, "task", describe(*t))
		if err := a.power(ctx, o, job.Name, *t); err != nil {
			a.Log.With(o.LogKeys(0)...).Error("recording a BMC task", "job", job.Name, "error", err)
		}
	}

	job.State, job.Ended = inventory.StateSuccess, a.Now()
	return a.keep(ctx, job)
}

// keep writes the record of a job after a successful task, and retries until the activity's time is up. Without the
// record, another attempt would repeat the task on a machine that may have booted since.
func (a *bmcs) keep(ctx context.Context, job inventory.BMCJob) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		err := a.BMCJobs.PutBMCJob(context.WithoutCancel(ctx), job)
		if a.Troubles != nil { // the record cannot show that writing it fails
			a.Troubles.note(job.Run, "record of BMC job "+job.Name, fail(err))
		}
		var never *temporal.ApplicationError
		if err == nil || errors.As(fail(err), &never) && never.NonRetryable() {
			return err
		}
		a.Log.With(inventory.Owner{Machine: job.Machine, Run: job.Run}.LogKeys(0)...).
			Warn("cannot record a BMC job; the server tries again", "job", job.Name, "in", pause, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

func (a *bmcs) power(ctx context.Context, o inventory.Owner, job string, t inventory.BMCTask) error {
	if t.Power == "status" {
		return nil
	}
	msg := describe(t)
	if t.Message != "" {
		msg += ": " + t.Message
	}
	return a.event(ctx, o.Event(0, inventory.EventPower, job+"/"+describe(t), msg))
}

func describe(t inventory.BMCTask) string {
	switch {
	case t.RotatePassword:
		return "password changed"
	case t.Media != nil && t.Media.MediaURL == "":
		return "virtual media ejected"
	case t.Media != nil:
		return "virtual media inserted"
	case t.BootDevice == nil:
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

func (a *bmcs) task(ctx context.Context, m inventory.Machine, l taskList, t inventory.BMCTask) (string, error) {
	if t.RotatePassword {
		return "", a.Rotation.Rotate(ctx, m, l.owner, l.fence)
	}
	password, err := a.Passwords.BMCPassword(ctx, m.Name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", describe(t), err)
	}

	switch {
	case t.Media != nil:
		return "", a.BMC.SetMedia(ctx, m.Controller(), password, t.Media.MediaURL, l.fence)
	case t.BootDevice != nil:
		return a.BMC.SetBootDevice(ctx, m.Controller(), password, *t.BootDevice, l.fence)
	case t.Power == "status":
		return a.BMC.State(ctx, m.Controller(), password)
	}

	said := ""
	if m.BMC.Wakes() {
		said = "magic packet sent; nothing shows whether the machine woke"
	}
	return said, a.BMC.Set(ctx, m.Controller(), password, t.Power, l.fence)
}

func (a *bmcs) state(ctx context.Context, m inventory.Machine) (string, error) {
	password, err := a.Passwords.BMCPassword(ctx, m.Name)
	if err != nil {
		return "", err
	}
	return a.BMC.State(ctx, m.Controller(), password)
}

// Job returns a new record of the operator's job.
func Job(name string, tasks []inventory.BMCTask) inventory.BMCJob {
	return inventory.BMCJob{Name: name, Tasks: tasks, State: inventory.StatePending}
}
