package activities

import (
	"context"
	"slices"
	"sync"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
)

// An Attempt identifies one attempt of an activity by the ids that Temporal gives.
type Attempt struct {
	Workflow, Run, Activity string
	Number                  int32
	Type                    string // type of the activity
}

// UnderWay is an interceptor that keeps track of the attempts that are being executed.
type UnderWay struct {
	interceptor.WorkerInterceptorBase

	mu  sync.Mutex
	now map[Attempt]int // how often the attempt is being executed: if a workflow task was lost, Temporal may run a local attempt twice
}

// readOnly lists the activities that only read, wait, or write the record of a run or an operation.
var readOnly = []string{
	"AwaitHandOver", "AwaitRun", "RunNow", "AwaitOperation", "OperationNow", "AwaitDrained", "TogetherMachines", "AwaitPlanned",
	"AwaitGrant", "AwaitTurn", "TalosInstalled", "OpenRun", "OpenRuns", "Installed", "MovedTo", "Record", "RecordOperation", "Evidence",
	"ChangedImage",
}

// Effects returns the types of those activities that are being executed and are not in readOnly.
func (u *UnderWay) Effects() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []string
	for a := range u.now {
		if !slices.Contains(readOnly, a.Type) {
			out = append(out, a.Type)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Has reports whether the attempt is being executed.
func (u *UnderWay) Has(a Attempt) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.now[a] > 0
}

func (u *UnderWay) count(a Attempt, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.now == nil {
		u.now = map[Attempt]int{}
	}
	if u.now[a] += n; u.now[a] == 0 {
		delete(u.now, a)
	}
}

// InterceptActivity counts the attempts that are being executed.
func (u *UnderWay) InterceptActivity(_ context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return around(next, func(ctx context.Context, do func() (any, error)) (any, error) {
		i := activity.GetInfo(ctx)
		a := Attempt{i.WorkflowExecution.ID, i.WorkflowExecution.RunID, i.ActivityID, i.Attempt, i.ActivityType.Name}
		u.count(a, 1)
		defer u.count(a, -1)
		return do()
	})
}
