package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/worker-agent/actions"
)

// Run works until the run of the machine has ended or an action such as reboot ends the agent. Then it reboots the machine, powers
// it off or starts the loaded kernel, and returns nil. If ctx ends first, Run returns the cause. When Run returns, no goroutine of
// the agent runs any more, except for a write that hangs in the kernel.
func (a *Agent) Run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	begin := a.claim
	if a.cfg.Discover {
		begin = a.discover
	}
	cause := begin(ctx)

	if cause == nil {
		var tasks sync.WaitGroup
		for _, task := range []func(context.Context) error{a.work, a.deliver, a.heartbeats} {
			tasks.Go(func() {
				if err := task(ctx); err != nil {
					end(err)
				}
			})
		}

		stopped := make(chan struct{})
		go func() { tasks.Wait(); close(stopped) }()
		<-ctx.Done()
		cause = context.Cause(ctx)

		select {
		case <-stopped:
		case <-time.After(30 * time.Second):
			// A write that hangs in the kernel ends only when the machine reboots.
			a.log.Error("the running action does not stop")
		}
	}

	var ended *endedError
	var leave *leaveError
	switch {
	case errors.As(cause, &leave):
		a.log.Info("leaving", "action", leave.native)
		return a.leave(leave.native)
	case errors.As(cause, &ended):
		a.mu.Lock()
		wrote := a.wrote
		a.mu.Unlock()
		a.log.Warn("the server ended this boot", "reason", ended.reason, "wrote", wrote)

		// ctx has already ended, so it must not end this pause.
		_ = clock.Sleep(context.WithoutCancel(ctx), a.cfg.Linger)
		if wrote {
			// This boot may have written half an image: an operator has to look at the machine first.
			return a.cfg.Host.PowerOff()
		}
		return a.cfg.Host.Reboot()
	}

	return cause
}

// leave powers the machine off, starts the loaded kernel, or reboots.
func (a *Agent) leave(native string) error {
	a.mu.Lock()
	loaded := a.loaded
	a.mu.Unlock()

	switch kexecer, ok := a.cfg.Host.(actions.Kexecer); {
	case native == action.PowerOff:
		return a.cfg.Host.PowerOff()
	case native == action.Kexec && loaded && ok:
		err := kexecer.Kexec()
		if err == nil {
			return nil
		}
		// Reboot instead of returning an error: the server has already acknowledged that this agent ends.
		a.log.Error("starting the loaded kernel failed; rebooting instead", "error", err)
	}

	return a.cfg.Host.Reboot()
}
