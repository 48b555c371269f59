package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// exitError is a failure with its own exit code.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

// execute carries out as and returns the result. When it returns, no part of the action is running
// any more.
//
// Its duration is measured with the monotonic clock. Started and Ended are for operators; Ended is
// Started plus the measured duration.
func (a *Agent) execute(ctx context.Context, as action.Assignment) action.Result {
	stoppable, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx = stoppable
	order, refusal := a.order(as)
	as = order.Assignment // unsigned fields are not used; a refused order is empty

	if limit := as.Action.Timeout.Duration(); limit > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, limit, errTimedOut)
		defer done()
	}

	t := &attempt{
		key: as.Key, run: as.Run, cancel: cancel, agent: a, env: as.Action.Environment,
		alias: as.DiskAlias, bound: as.Disk, spared: as.Protected, output: map[string]string{},
	}
	a.mu.Lock()
	if res, stopped := a.finished[as.Key]; stopped {
		a.mu.Unlock()
		return res // an order to stop arrived after accept
	}
	a.running = t
	a.mu.Unlock()
	a.askBeat()
	res := action.Result{Key: as.Key, ID: newID(), State: action.Success, Started: time.Now()}
	err := refusal
	if err == nil {
		t.logf("%s: begins (%s)", as.Action.Name, as.Action.Image)
		err = t.perform(ctx, as)
	}
	if err != nil {
		res.State, res.ExitCode, res.Message = action.Failed, 1, err.Error()
		var exit *exitError
		if errors.As(err, &exit) {
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

	// Store the result in the same critical section: an order to stop that arrives now must find
	// this result, not an attempt that never started.
	a.mu.Lock()
	a.running, a.finished[as.Key] = nil, res
	a.mu.Unlock()
	return res
}

// perform calls the native action of as. A panic becomes the action's error: the agent is PID 1 and
// must survive to report it.
func (t *attempt) perform(ctx context.Context, as action.Assignment) (err error) {
	defer func() {
		if p := recover(); p != nil {
			t.logf("%s", debug.Stack())
			err = fmt.Errorf("carrying out %q: panic: %v", as.Action.Image, p)
		}
	}()

	native, ok := action.Native(as.Action.Image)
	if why := action.Foreign(as.Action.Image); why != "" {
		return fmt.Errorf("carrying out %q: %s", as.Action.Image, why)
	}
	if !ok {
		return fmt.Errorf("carrying out %q: this agent has no action of this name and cannot run containers",
			as.Action.Image)
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
		return perform(t, ctx)
	}
	if action.Leaves(native) {
		return nil // the agent leaves after this success is acknowledged
	}
	return fmt.Errorf("carrying out %q: this agent does not have native action %q", as.Action.Image, native)
}

// performers has the implementation of each native action. An action that only leaves the agent
// needs none.
var performers = map[string]func(*attempt, context.Context) error{
	action.Image2Disk:   (*attempt).image2disk,
	action.QemuImg2Disk: (*attempt).image2disk,
	action.OCI2Disk:     (*attempt).oci2disk,
	action.Archive2Disk: (*attempt).archive2disk,
	action.RootIO:       (*attempt).rootIO,
	action.WriteFile:    (*attempt).writeFile,
	action.Inject:       (*attempt).inject,
	action.ConfigDrive:  (*attempt).configDrive,
	action.GrowPart:     (*attempt).growPart,
	action.Wipe:         (*attempt).wipe,
	action.EFIBoot:      (*attempt).efiBoot,
	action.CExec:        (*attempt).cexec,
	action.Grub2Disk:    (*attempt).grub2disk,
	action.Syslinux:     (*attempt).syslinux,
	action.Kexec:        (*attempt).kexec,
	action.Slurp:        (*attempt).slurp,
	action.Inspect:      (*attempt).inspect,
	action.Noop:         (*attempt).noop,
}
