package actions

import (
	"context"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// handle runs the on-failure or on-timeout handler of a, if a has one for the state in which the action has ended. It returns the
// handler's error, which the caller appends to the action's error. ctx must not end with the action's time-out, only with an order
// to stop.
//
// handle runs before the result is reported: until then, no other action writes to the disk.
func (t *Task) handle(ctx context.Context, a action.Action, state action.State) error {
	key, words := "on-failure", a.OnFailure
	if state == action.Timeout {
		key, words = "on-timeout", a.OnTimeout
	}
	if len(words) == 0 || state != action.Timeout && state != action.Failed {
		return nil
	}

	began := time.Now()
	t.progress(0, 0, key)
	h, err := action.ParseHandler(words)
	if err == nil {
		t.logf("%s: begins (%s)", key, h.Native)
		err = t.performHandler(ctx, h)
	}
	if err != nil {
		t.logf("%s: %s: %v", key, action.Failed, err)
		return fmt.Errorf("%s: %w", key, err)
	}
	t.logf("%s: done in %.1f s", key, time.Since(began).Seconds())
	return nil
}

// performHandler runs h within HandlerTime. It discards the output of h, because that is not a result of the action.
func (t *Task) performHandler(ctx context.Context, h action.Handler) error {
	ctx, done := context.WithTimeoutCause(ctx, action.HandlerTime.Duration(), errTimedOut)
	defer done()
	output := t.output
	defer func() { t.output = output }()
	t.env, t.output = h.Environment, map[string]string{}
	return t.perform(ctx, action.Assignment{Action: action.Action{Name: h.Native, Image: h.Native}})
}
