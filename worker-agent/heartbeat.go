package agent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// heartbeats sends heartbeats, even without work, at the interval that the server's welcome sets. It obeys the orders in the
// responses.
func (a *Agent) heartbeats(ctx context.Context) error {
	a.mu.Lock()
	pace := a.welcome.Heartbeat.Duration()
	a.mu.Unlock()
	if pace <= 0 {
		pace = 5 * time.Second
	}

	tick := time.NewTicker(pace)
	defer tick.Stop()
	a.askBeat() // the server may already have orders

	for {
		select {
		case <-tick.C:
		case <-a.beat:
		case <-ctx.Done():
			return context.Cause(ctx)
		}

		a.mu.Lock()
		running := a.running
		hb := action.Heartbeat{Idle: running == nil && len(a.outbox) == 0, Wrote: a.wrote}
		a.mu.Unlock()
		sent := 0
		if running != nil {
			hb.Running, sent = running.Now()
		}

		var orders action.Orders
		if err := a.api.heartbeat(ctx, hb, &orders); err != nil {
			if _, ok := errors.AsType[*endedError](err); ok {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			a.refused(err)
			a.log.Warn("sending a heartbeat", "error", err)
			continue
		}
		if running != nil {
			running.Sent(sent)
		}

		a.obey(orders)
	}
}

// obey carries out the orders in the response to a heartbeat.
func (a *Agent) obey(o action.Orders) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o.Hold != a.hold {
		a.log.Info("hold", "on", o.Hold)
		a.hold = o.Hold
	}
	for _, key := range o.Stop {
		if a.running != nil && a.running.key == key {
			a.running.cancel(errStopped)
			continue
		}
		res, ok := a.finished[key]
		if !ok {
			// The order to stop has arrived before the assignment. Store a result, so that the agent does not run the assignment
			// when it arrives.
			now := time.Now()
			message := "the action was stopped before it began"
			res = action.Result{Key: key, ID: newID(), State: action.Stopped, Message: message, Started: now, Ended: now}
			a.finished[key] = res
		}

		a.postLocked(res)
	}
}

// refused stops the running attempt if err means that the agent's token is not valid any more, because no write may continue then.
// A token is unknown (401) if, for example, the server has lost its data. It is revoked (403) after two agents have claimed one
// boot, or after a later boot was welcomed. The agent keeps sending requests: only 410 means that its run has ended.
func (a *Agent) refused(err error) {
	var status *fetch.StatusError
	if !errors.As(err, &status) || status.Code != http.StatusUnauthorized && status.Code != http.StatusForbidden {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running != nil {
		a.running.cancel(errStopped)
	}
}

func (a *Agent) askBeat() {
	select {
	case a.beat <- struct{}{}:
	default:
	}
}
