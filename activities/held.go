package activities

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/inventory"
)

// TypeHeld is the error of a run that was open when the server was restored from a backup.
const TypeHeld = "Held"

// A Hold answers Held to every activity of runs that were open when the server was restored
// from a backup, and of runs that such a run has started or continues as. Since the backup the
// machine may have been installed, moved to another server or discarded without this server's
// knowledge. Allowed are only activities that record that the run waits or ended, and that
// release what it holds.
type Hold struct {
	interceptor.WorkerInterceptorBase

	runs sync.Map // run ids; empty struct
	text string
}

// NewHold returns a Hold of the runs in r.
func NewHold(r inventory.Restore) *Hold {
	h := &Hold{text: HeldText(r)}
	h.Add(r.Held)
	return h
}

// Add holds more runs.
func (h *Hold) Add(runs []inventory.HeldRun) {
	for _, x := range runs {
		h.runs.Store(x.Run, struct{}{})
	}
}

func (h *Hold) has(run string) bool {
	_, ok := h.runs.Load(run)
	return ok
}

// HeldText explains to the operator why a run is held.
func HeldText(r inventory.Restore) string {
	return fmt.Sprintf("this run began before the server was restored from the backup of %s: the machine "+
		"may have moved on since, so nothing more is done to it; look at it, abort this run, and start another one if it "+
		"is needed",
		r.Taken.UTC().Format(time.DateTime))
}

// letThrough reports whether a held run may execute the activity.
func letThrough(name string) bool {
	return name == "Record" || name == "RecordOperation" || name == "End"
}

// InterceptWorkflow holds a run that comes from a held one. A held run can start a child, or continue as new, before one of its own
// activities is refused.
func (h *Hold) InterceptWorkflow(ctx workflow.Context,
	next interceptor.WorkflowInboundInterceptor,
) interceptor.WorkflowInboundInterceptor {
	info := workflow.GetInfo(ctx)
	from := []string{info.ContinuedExecutionRunID, info.FirstRunID, info.OriginalRunID}
	for _, x := range []*workflow.Execution{info.ParentWorkflowExecution, info.RootWorkflowExecution} {
		if x != nil {
			from = append(from, x.RunID)
		}
	}
	if slices.ContainsFunc(from, h.has) {
		h.runs.Store(info.WorkflowExecution.RunID, struct{}{})
	}
	return next
}

// InterceptActivity refuses the activities of held runs.
func (h *Hold) InterceptActivity(_ context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return around(next, func(ctx context.Context, do func() (any, error)) (any, error) {
		info := activity.GetInfo(ctx)
		if h.has(info.WorkflowExecution.RunID) && !letThrough(info.ActivityType.Name) {
			return nil, temporal.NewNonRetryableApplicationError(h.text, TypeHeld, nil)
		}
		return do()
	})
}
