package actions

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// A handler has a time of its own, which the server's wait for the action includes.
func TestHandlerTime(t *testing.T) {
	t.Parallel()
	var left time.Duration
	x := newTask(Machine{Finder: deadlineFinder{&left}}, action.Assignment{})
	x.output["kept"] = "yes"
	if err := x.handle(t.Context(), action.Action{OnFailure: []string{"inspect"}}, action.Failed); err == nil {
		t.Error("the finder's error is lost")
	}
	if limit := action.HandlerTime.Duration(); left <= limit-time.Minute || left > limit || x.output["kept"] != "yes" {
		t.Errorf("%v left, output %v", left, x.output)
	}
}

// deadlineFinder stores how much time its caller gives it, and fails.
type deadlineFinder struct{ left *time.Duration }

func (f deadlineFinder) Facts(ctx context.Context) (action.Facts, error) {
	until, _ := ctx.Deadline()
	*f.left = time.Until(until)
	return action.Facts{}, errors.New("no facts")
}
