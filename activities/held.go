package activities

import (
	"context"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/inventory"
)

// TypeHeld is the error of a run that was open when the server was restored from a backup.
const TypeHeld = "Held"

// A Hold answers Held to every activity of runs that were open when the server was restored
// from a backup. Since the backup the machine may have been installed, moved to another
// server or discarded without this server's knowledge. Allowed are only activities that
// record that the run waits or ended, and that release what it holds.
type Hold struct {
	interceptor.WorkerInterceptorBase

	runs map[string]bool
	text string
}

// NewHold returns a Hold of the runs in r.
func NewHold(r inventory.Restore) *Hold {
	h := &Hold{runs: map[string]bool{}, text: HeldText(r)}
	for _, x := range r.Held {
		h.runs[x.Run] = true
	}
	return h
}

// HeldText explains to the operator why a run is held.
func HeldText(r inventory.Restore) string {
	return fmt.Sprintf("this run was under way in the backup of %s, from which the server was restored: the machine "+
		"may have moved on since, so nothing more is done to it; look at it, abort this run, and start another one if it "+
		"is needed",
		r.Taken.UTC().Format(time.DateTime))
}

// letThrough reports whether a held run may execute the activity.
func letThrough(name string) bool {
	return name == "Record" || name == "RecordOperation" || name == "End"
}

// InterceptActivity refuses the activities of held runs.
func (h *Hold) InterceptActivity(_ context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return around(next, func(ctx context.Context, do func() (any, error)) (any, error) {
		info := activity.GetInfo(ctx)
		if h.runs[info.WorkflowExecution.RunID] && !letThrough(info.ActivityType.Name) {
			return nil, temporal.NewNonRetryableApplicationError(h.text, TypeHeld, nil)
		}
		return do()
	})
}
