// Package actions implements the native actions of templates, one file each. All access to the machine goes through [Machine].
package actions

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// exitError is the failure of an action with a given exit code.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

// errTimedOut is the cause with which an action is cancelled after its time-out.
var errTimedOut = errors.New("the action has exceeded its timeout")

// Run runs the action and returns its result. If refusal is not nil, Run does not run the action, and the result has refusal as its
// error. When Run returns, no part of the action is running any more.
//
// The duration is measured with the monotonic clock. Started and Ended are only for operators to read; Ended is Started plus the
// measured duration.
func (t *Task) Run(ctx context.Context, refusal error) action.Result {
	stoppable, as := ctx, t.order
	if limit := as.Action.Timeout.Duration(); limit > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, limit, errTimedOut)
		defer done()
	}

	res := action.Result{Key: as.Key, State: action.Success, Started: time.Now()}
	err := refusal
	if err == nil {
		t.logf("%s: begins (%s)", as.Action.Name, as.Action.Image)
		err = t.perform(ctx, as)
	}
	if err != nil {
		res.State, res.ExitCode, res.Message = action.Failed, 1, err.Error()
		if exit, ok := errors.AsType[*exitError](err); ok {
			res.ExitCode = exit.code
		}

		if ctx.Err() != nil {
			switch cause := context.Cause(ctx); {
			case errors.Is(cause, errTimedOut):
				res.State = action.Timeout
			default:
				res.State = action.Stopped
			}
		}

		t.logf("%s: %s: %s", as.Action.Name, res.State, res.Message)
		if err := t.handle(stoppable, as.Action, res.State); err != nil {
			res.Message += "; " + err.Error()
		}
	} else {
		t.logf("%s: done in %.1f s", as.Action.Name, time.Since(res.Started).Seconds())
	}

	res.Ended = res.Started.Add(time.Since(res.Started))
	t.mu.Lock()
	res.Log = string(t.tail)
	t.mu.Unlock()
	if len(t.output) > 0 {
		res.Output = t.output
	}

	return res
}

// perform calls the native action that the assignment names. It turns a panic into the action's error: the agent is PID 1, and must
// survive to report the panic.
func (t *Task) perform(ctx context.Context, as action.Assignment) (err error) {
	defer func() {
		if p := recover(); p != nil {
			t.logf("%s", debug.Stack())
			err = fmt.Errorf("carrying out %q: panic: %v", as.Action.Image, p)
		}
	}()

	if as.Action.Container != nil {
		return runContainer(ctx, t, as.Action)
	}
	native, ok := as.Action.Native()
	if why := action.Foreign(as.Action.Image); why != "" {
		return fmt.Errorf("carrying out %q: %s", as.Action.Image, why)
	}
	if !ok {
		return fmt.Errorf("carrying out %q: this agent has no action with this name, and the order has no container", as.Action.Image)
	}
	if err := action.Check(native, t.env); err != nil {
		return err
	}
	if err := action.CheckCommand(native, as.Action.Command); err != nil {
		return err
	}
	if err := action.CheckDevice(native, t.env, t.diskNames()...); err != nil {
		return err
	}
	t.command = as.Action.Command
	if action.Writes(native, t.env) {
		if err := t.present(ctx); err != nil {
			return err
		}
	}
	if perform := performers[native]; perform != nil {
		return perform(ctx, t)
	}
	if action.Leaves(native) {
		return nil // nothing to do here: Agent.Run reboots or powers off once the server has acknowledged this success
	}
	return fmt.Errorf("carrying out %q: this agent does not have native action %q", as.Action.Image, native)
}

// performers holds the implementation of each native action. Actions such as reboot are missing, because they do nothing until the
// server has acknowledged their success.
var performers = map[string]func(context.Context, *Task) error{
	action.Image2Disk:   image2disk,
	action.QemuImg2Disk: image2disk,
	action.OCI2Disk:     oci2disk,
	action.Archive2Disk: archive2disk,
	action.RootIO:       runRootIO,
	action.WriteFile:    writeFile,
	action.Inject:       inject,
	action.ConfigDrive:  configDrive,
	action.GrowPart:     growPart,
	action.Wipe:         wipe,
	action.EFIBoot:      efiBoot,
	action.CExec:        cexec,
	action.Grub2Disk:    grub2disk,
	action.Syslinux:     syslinux,
	action.Kexec:        kexec,
	action.Slurp:        slurp,
	action.Inspect:      inspect,
	action.Noop:         noop,
}
