package activities

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/inventory"
)

// heartbeat sends a heartbeat every few seconds until stop is called. If the worker dies, Temporal then notices it
// after the heartbeat timeout, which is shorter than the activity's timeout.
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

const (
	// probeEvery is how often an installed system is asked whether it is ready.
	probeEvery = 5 * time.Second
	// stubborn is how many permanent errors in a row (credentials refused, invalid request) end a probe. With fewer
	// errors, the system may still be starting.
	stubborn = 24
	// ahead is how long before the activity's deadline a probe ends, so that there is time to report the last
	// error.
	ahead = 5 * time.Second
)

func (a *shared) lookEvery(otherwise time.Duration) time.Duration {
	if a.ProbeEvery > 0 {
		return a.ProbeEvery
	}
	return otherwise
}

// errWorkerStops ends a waiting activity when the worker stops. The next worker can then start the activity again
// at once, without waiting until heartbeats are missing.
var errWorkerStops = errors.New("the worker is shutting down")

// pause waits for the next tick. It returns an error if the worker stops or ctx ends first.
func pause(ctx context.Context, tick <-chan time.Time) error {
	select {
	case <-tick:
		return nil
	case <-activity.GetWorkerStopChannel(ctx):
		return errWorkerStops
	case <-ctx.Done():
		return ctx.Err()
	}
}

// until calls ask repeatedly until ask succeeds. When the activity's time is nearly up, or after too many permanent
// errors in a row, until returns the last error, and the activity is not retried.
func (a *shared) until(ctx context.Context, ask func(context.Context) error) error {
	defer heartbeat(ctx)()
	end := time.Now().Add(time.Hour)
	if d, ok := ctx.Deadline(); ok {
		end = d.Add(-min(ahead, time.Until(d)/2))
	}

	tick := time.NewTicker(a.lookEvery(probeEvery))
	defer tick.Stop()
	for refusals := 0; ; {
		err := ask(ctx)
		if err == nil {
			if activity.IsActivity(ctx) {
				i := activity.GetInfo(ctx)
				a.Log.Info("finished waiting: the condition is met", "activity", i.ActivityType.Name, "attempt", i.Attempt, "workflow",
					i.WorkflowExecution.ID)
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, inventory.ErrUnreachable) {
			refusals = 0
		} else {
			refusals++
		}
		if refusals == stubborn || !time.Now().Before(end) {
			if !errors.Is(err, inventory.ErrUnreachable) {
				return err
			}
			return temporal.NewNonRetryableApplicationError(err.Error(), TypeUnreachable, nil)
		}
		select {
		case <-tick.C:
		case <-time.After(time.Until(end)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
