package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// troubleFor is how long an activity counts as being retried after its last failure: the longest pause between two
// attempts plus the longest attempt.
const troubleFor = 20 * time.Minute

// Troubles is an interceptor that stores, by run, which activities fail and are retried. Activities that use only
// our own database are retried until they succeed. While the database is not writable, no record can show these
// retries, and Temporal does not show retries of local activities either.
type Troubles struct {
	interceptor.WorkerInterceptorBase

	now  func() time.Time
	mu   sync.Mutex
	runs map[string]map[string]trouble // by run and activity type; a run never executes two activities of one type at the same time
}

type trouble struct {
	failures int
	last     time.Time
	err      string
}

// NewTroubles returns an empty Troubles.
func NewTroubles(now func() time.Time) *Troubles {
	return &Troubles{now: now, runs: map[string]map[string]trouble{}}
}

// Of describes each activity of the run that is being retried, one text for each.
func (t *Troubles) Of(run string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for name, x := range t.runs[run] {
		if t.now().Sub(x.last) < troubleFor {
			out = append(out, fmt.Sprintf("%s failed %d times: %s", name, x.failures, x.err))
		}
	}
	slices.Sort(out)
	return out
}

// Count returns how many activities of all runs are being retried.
func (t *Troubles) Count() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for _, xs := range t.runs {
		for _, x := range xs {
			if now.Sub(x.last) < troubleFor {
				n++
			}
		}
	}
	return n
}

// InterceptActivity stores the failure or success of each attempt.
func (t *Troubles) InterceptActivity(_ context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return around(next, func(ctx context.Context, do func() (any, error)) (any, error) {
		out, err := do()
		info := activity.GetInfo(ctx)
		t.note(info.WorkflowExecution.RunID, info.ActivityType.Name, err)
		return out, err
	})
}

func (t *Troubles) note(run, name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var app *temporal.ApplicationError
	if err == nil || errors.As(err, &app) && app.NonRetryable() {
		delete(t.runs[run], name)
		if len(t.runs[run]) == 0 {
			delete(t.runs, run)
		}
		return
	}

	now := t.now()
	for r, xs := range t.runs { // remove old failures, including those of runs that have ended
		for i, x := range xs {
			if now.Sub(x.last) >= troubleFor {
				delete(xs, i)
			}
		}
		if len(xs) == 0 {
			delete(t.runs, r)
		}
	}

	if t.runs[run] == nil {
		t.runs[run] = map[string]trouble{}
	}
	t.runs[run][name] = trouble{t.runs[run][name].failures + 1, now, plaintext.Clip(err.Error(), maxAgentText)}
}
