package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/worker-agent/facts"
)

// claim redeems the claim of this boot. It retries until the server welcomes this agent or refuses the claim.
func (a *Agent) claim(ctx context.Context) error {
	hello := action.Hello{
		Protocol: action.Protocol, Machine: a.cfg.Machine, Claim: a.cfg.Claim, Nonce: a.nonce,
		MAC: a.cfg.MAC,
	}
	hello.Facts = facts.Fit(a.readFacts(ctx), func(f action.Facts) int { hello.Facts = f; return facts.JSONSize(hello) }, action.MaxHello)
	if hello.Facts.Truncated != "" {
		a.log.Warn("the machine's facts are too long for the claim request; leaving some out", "left out", hello.Facts.Truncated)
	}

	for try := (clock.Backoff{Max: a.cfg.Backoff}); ; {
		var w action.Welcome
		err := a.api.claim(ctx, hello, &w)
		if err == nil && w.Protocol != action.Protocol {
			// Do not use the token in this welcome: another agent can then still redeem the claim.
			err = fmt.Errorf("the server answers in protocol %d, but this agent uses %d: boot the agent OS of the server's version",
				w.Protocol, action.Protocol)
		}

		if err == nil {
			a.enter(w)
			return nil
		}

		var ended *endedError
		if errors.As(err, &ended) || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}

		a.log.Warn("claiming the boot", "server", a.cfg.Server, "error", err)
		if err := try.Pause(ctx); err != nil {
			return err
		}
	}
}

// enter stores the server's welcome, and sets the clock.
func (a *Agent) enter(w action.Welcome) {
	a.api.setToken(w.Token)
	a.mu.Lock()
	a.welcome = w
	a.mu.Unlock()

	if !w.Time.IsZero() {
		if err := a.cfg.Host.SetClock(w.Time); err != nil {
			a.log.Warn("setting the clock", "error", err)
		}
	}

	a.log.Info("welcome", "run", w.Run, "epoch", w.Epoch, "boot", w.Boot)
}

// work requests actions and runs them, one at a time. It returns a *leaveError after an action that ends the agent, such as reboot.
func (a *Agent) work(ctx context.Context) error {
	try := clock.Backoff{Max: a.cfg.Backoff}
	for {
		// Deliver all results before requesting the next action.
		if err := a.awaitDelivery(ctx); err != nil {
			return err
		}

		if a.resting() {
			if err := clock.Sleep(ctx, min(time.Second, a.cfg.Backoff)); err != nil {
				return err
			}
			continue
		}

		as, err := a.api.next(ctx)
		var ended *endedError
		switch {
		case errors.As(err, &ended):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			a.refused(err)
			a.log.Warn("asking for the next action", "error", err)
			if err := try.Pause(ctx); err != nil {
				return err
			}
			continue
		}

		try = clock.Backoff{Max: a.cfg.Backoff}
		if as == nil {
			continue
		}

		if !a.accept(as) {
			// The server keeps offering an assignment that the agent does not accept: pause before the next request.
			if err := clock.Sleep(ctx, min(time.Second, a.cfg.Backoff)); err != nil {
				return err
			}
			continue
		}

		native, known := as.Action.Native()
		res := a.execute(ctx, *as)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}

		a.post(res)
		if known && action.Leaves(native) && res.State == action.Success {
			if err := a.awaitDelivery(ctx); err != nil {
				return err
			}
			return &leaveError{native}
		}
	}
}

// accept reports whether to run an assignment. The assignment must belong to this run, and must have no result yet. If it has a
// result, accept sends that result again.
func (a *Agent) accept(as *action.Assignment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if as.Key.Epoch != a.welcome.Epoch || as.Run != "" && as.Run != a.welcome.Run {
		a.log.Warn("dropping an assignment of another run", "key", as.Key.String(), "run", as.Run)
		return false
	}
	if a.hold {
		return false
	}

	if res, ok := a.finished[as.Key]; ok {
		a.postLocked(res)
		return false
	}
	return true
}

func (a *Agent) resting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hold || a.cfg.Rescue
}
