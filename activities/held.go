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

// TypeHeld is the type of the error with which a Hold refuses an activity.
const TypeHeld = "Held"

// A Hold is an interceptor that holds runs after the server was restored from a backup. It refuses the activities
// of runs that were open at that time, and of runs that these have started or continued as. Since the backup, the
// machine may have been installed, moved to another server or discarded without this server's knowledge. Only two
// kinds of activities are allowed: those that record the state of a run, and the one that releases the run's grant.
type Hold struct {
	interceptor.WorkerInterceptorBase

	runs sync.Map // key: run id; value: struct{}
	text string
}

// NewHold returns a Hold that refuses the activities of the runs in r.Held.
func NewHold(r inventory.Restore) *Hold {
	h := &Hold{text: HeldText(r)}
	h.Add(r.Held)
	return h
}

// Add makes the Hold refuse the activities of these runs, too.
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
		"may have changed since, so the run does nothing more to it; check the machine, abort this run, and start another "+
		"one if needed",
		r.Taken.UTC().Format(time.DateTime))
}

// letThrough reports whether a held run may execute the activity of this name.
func letThrough(name string) bool {
	return name == "Record" || name == "RecordOperation" || name == "End"
}

// InterceptWorkflow adds a run to the Hold if the run comes from a held run. A held run can start a child, or
// continue as a new run, before any of its activities is refused.
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
