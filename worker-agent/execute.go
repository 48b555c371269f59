package agent

import (
	"context"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/actions"
)

// execute runs the action of an assignment, and returns the result. When it returns, no part of the action is running any more.
func (a *Agent) execute(ctx context.Context, as action.Assignment) action.Result {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	order, refusal := a.order(as)
	as = order.Assignment // use only signed fields; after a refusal, only the key is left
	t := &attempt{Report: actions.NewReport(as.Key, a.log), key: as.Key, cancel: cancel}

	a.mu.Lock()
	if res, stopped := a.finished[as.Key]; stopped {
		a.mu.Unlock()
		return res // an order to stop has arrived since accept was called
	}
	a.running = t
	a.mu.Unlock()
	a.askBeat()

	res := actions.NewTask(a.machine(), t.Report, as).Run(ctx, refusal)
	res.ID = newID()

	// Set both in one critical section. If an order to stop could arrive in between, obey would find neither, and would take the
	// attempt for one that has not started.
	a.mu.Lock()
	a.running, a.finished[as.Key] = nil, res
	a.mu.Unlock()
	return res
}

// machine returns the part of the machine that actions may use.
func (a *Agent) machine() actions.Machine {
	kernel, _ := a.cfg.Host.(actions.Kexecer) // nil = this machine cannot start a kernel by kexec
	return actions.Machine{
		Name:    a.cfg.Machine,
		Finder:  a.cfg.Finder,
		Disks:   a.cfg.Disks,
		Files:   a.cfg.Files,
		EFI:     a.cfg.EFI,
		Kernel:  kernel,
		Server:  a.api,
		Backoff: a.cfg.Backoff,

		Containers: a.cfg.Containers,
		RuntimeURL: a.api.base.String() + "/agent/v1/runtime",
		Wrote:      a.markWrote,
		Loaded: func(loaded bool) {
			a.mu.Lock()
			a.loaded = loaded
			a.mu.Unlock()
		},
	}
}
