package engine

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/host/clock"
)

// An Attempt is one attempt of a Temporal activity.
type Attempt struct {
	Workflow, Run, Activity string
	Number                  int32
	Type                    string // name of the activity
}

// LostAttempts lets Temporal retry activities whose current attempt was lost: its process was killed, or the connection
// broke while Temporal sent the task to the worker. Without this, Temporal would wait for the time-out of the attempt,
// up to a minute.
//
// The caller must ensure that no other server has workers in the namespace.
type LostAttempts struct {
	Client    client.Client
	Namespace string
	// Identity is the worker identity of this process. It differs from the identities of all earlier processes.
	Identity string
	UnderWay func(Attempt) bool // reports whether this process is carrying out an attempt
	Log      *slog.Logger

	seen map[Attempt]bool // attempts that, in the previous pass, were sent to this process but not under way
}

// lostPasses holds the pauses between passes: one before each pass after a new connection. An attempt that Temporal has sent
// to this process counts as lost only in the second pass that finds it, because in the first pass it may still be on its way.
var lostPasses = []time.Duration{0, 3 * time.Second, 7 * time.Second}

// Run calls Pass at the times in lostPasses: when Run starts, and after each value from broken, until ctx ends.
// The caller sends a value when a connection to Temporal has ended. A failed pass is repeated after a second.
func (l *LostAttempts) Run(ctx context.Context, broken <-chan struct{}) {
	for {
		for _, pause := range lostPasses {
			if clock.Sleep(ctx, pause) != nil {
				return
			}
			for {
				err := l.Pass(ctx)
				if err == nil {
					break
				}
				l.Log.Info("cannot look for lost activity attempts; trying again", "error", err)
				if clock.Sleep(ctx, time.Second) != nil {
					return
				}
			}
		}
		select {
		case <-broken:
		case <-ctx.Done():
			return
		}
	}
}

// Pass checks the pending activities of all open workflows once.
func (l *LostAttempts) Pass(ctx context.Context) error {
	runs, err := OpenRuns(ctx, l.Client)
	if err != nil {
		return err
	}
	var (
		all   errgroup.Group
		found = make([][]Attempt, len(runs))
	)
	all.SetLimit(askedAtOnce)
	for i, run := range runs {
		all.Go(func() (err error) {
			found[i], err = l.judge(ctx, run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId())
			return err
		})
	}
	err = all.Wait()
	l.seen = map[Attempt]bool{}
	for _, attempts := range found {
		for _, a := range attempts {
			l.seen[a] = true
		}
	}
	return err
}

// judge fails the lost attempts of one run, so that Temporal retries them. It returns the attempts that will count as
// lost if the next pass finds them again.
func (l *LostAttempts) judge(ctx context.Context, id, run string) (later []Attempt, err error) {
	ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
	defer cancel()
	d, err := l.Client.DescribeWorkflowExecution(ctx, id, run)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking Temporal for run %q of %q: %w", run, id, err)
	}
	for _, p := range d.GetPendingActivities() {
		a := Attempt{
			Workflow: id, Run: run, Activity: p.GetActivityId(), Number: p.GetAttempt(), Type: p.GetActivityType().GetName(),
		}
		switch {
		case p.GetState() != enumspb.PENDING_ACTIVITY_STATE_STARTED || l.UnderWay(a):
			continue
		case p.GetLastWorkerIdentity() == l.Identity && !l.seen[a]:
			later = append(later, a)
			continue
		}
		err := l.Client.CompleteActivityByID(ctx, l.Namespace, id, run, a.Activity, nil, errLost)
		if isNotFound(err) {
			continue // the attempt has ended by now
		}
		if err != nil {
			return later, fmt.Errorf("ending attempt %d of %s of run %q: %w", a.Number, a.Type, run, err)
		}
		l.Log.Info("an activity attempt was lost; Temporal starts the activity again",
			"workflow", id, "run", run, "activity", a.Type, "attempt", a.Number, "worker", p.GetLastWorkerIdentity())
	}
	return later, nil
}

// errLost is the error with which a lost attempt ends. Temporal then retries the activity after 100 ms.
var errLost = temporal.NewApplicationErrorWithOptions("the server that was given this attempt no longer runs it", "AttemptLost",
	temporal.ApplicationErrorOptions{NextRetryDelay: 100 * time.Millisecond})
