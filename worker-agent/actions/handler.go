package actions

import (
	"context"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// handle is called after the action a has ended in this state. If a has failed or timed out, and has a handler for this (on-failure or
// on-timeout), handle runs the handler. It returns the error of the handler, which the caller appends to the error of the action. ctx must
// end only when the agent is ordered to stop, and not at the action's time-out.
//
// The caller reports the result of the action only after handle has returned, because the next action, which may write to the disk, begins
// after the report.
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
	switch {
	case err == nil:
		t.logf("%s: begins (%s)", key, h.Native)
		err = t.performHandler(ctx, action.Action{Name: h.Native, Image: h.Native, Environment: h.Environment})
	case a.Container != nil: // as with Tinkerbell, the words are a command of the same image
		t.logf("%s: begins in the same container image", key)
		a.Command = words
		err = t.performHandler(ctx, a)
	}
	if err != nil {
		t.logf("%s: %s: %v", key, action.Failed, err)
		return fmt.Errorf("%s: %w", key, err)
	}
	t.logf("%s: done in %.1f s", key, time.Since(began).Seconds())
	return nil
}

// performHandler runs a, the handler of an action, with the time limit HandlerTime. It discards the output of a, because the output of the
// task belongs to the action.
func (t *Task) performHandler(ctx context.Context, a action.Action) error {
	ctx, done := context.WithTimeoutCause(ctx, action.HandlerTime.Duration(), errTimedOut)
	defer done()
	output := t.output
	defer func() { t.output = output }()
	t.env, t.output = a.Environment, map[string]string{}
	return t.perform(ctx, action.Assignment{Action: a})
}
