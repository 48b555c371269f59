package activities

import (
	"context"
	"slices"
	"sync"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
)

// An Effects is an interceptor that counts the running activities that have side effects.
type Effects struct {
	interceptor.WorkerInterceptorBase

	mu  sync.Mutex
	now map[string]int
}

// readOnly are the activities that only wait or record.
var readOnly = []string{
	"AwaitHandOver", "AwaitRun", "RunNow", "AwaitOperation", "OperationNow", "AwaitDrained",
	"TalosInstalled", "OpenRun", "OpenRuns", "Installed", "MovedTo", "Record", "RecordOperation", "Evidence", "ChangedImage",
}

// UnderWay returns the names of the running activities that have side effects.
func (e *Effects) UnderWay() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for name := range e.now {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (e *Effects) count(name string, n int) {
	if slices.Contains(readOnly, name) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.now == nil {
		e.now = map[string]int{}
	}
	if e.now[name] += n; e.now[name] == 0 {
		delete(e.now, name)
	}
}

// InterceptActivity counts each attempt.
func (e *Effects) InterceptActivity(_ context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return around(next, func(ctx context.Context, do func() (any, error)) (any, error) {
		name := activity.GetInfo(ctx).ActivityType.Name
		e.count(name, 1)
		defer e.count(name, -1)
		return do()
	})
}
