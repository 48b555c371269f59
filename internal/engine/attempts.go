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

// An Attempt is one attempt of an activity. All but Type are Temporal's ids.
type Attempt struct {
	Workflow, Run, Activity string
	Number                  int32
	Type                    string // name of the activity
}

// LostAttempts starts activities again whose attempt was lost: the process that carried it out
// was killed, or the connection broke while Temporal handed it out. Temporal itself would wait
// for the attempt's time-out, up to a minute.
//
// The caller must have made sure that no other server works in the namespace.
type LostAttempts struct {
	Client    client.Client
	Namespace string
	// Identity is the workers' own. No worker before them had it.
	Identity string
	UnderWay func(Attempt) bool // reports whether this process carries an attempt out
	Log      *slog.Logger

	seen map[Attempt]bool // by the pass before, as given to these workers and not under way
}

// lostPasses are the pauses before each pass that follows a new connection. An attempt of these
// workers counts as lost in the second pass that finds it, because it may be on its way when the
// first one looks.
var lostPasses = []time.Duration{0, 3 * time.Second, 7 * time.Second}

// Run looks when it begins and after each value from broken, which reports that a connection to
// Temporal has ended, until ctx ends.
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
				l.Log.Info("looking for attempts that were lost", "error", err)
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

// Pass looks once at all open workflows.
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

// judge starts the lost activities of one run again. It returns the attempts that the next
// pass will know.
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
			continue // it has ended since
		}
		if err != nil {
			return later, fmt.Errorf("ending attempt %d of %s of run %q: %w", a.Number, a.Type, run, err)
		}
		l.Log.Info("an attempt was lost, the activity starts again",
			"workflow", id, "run", run, "activity", a.Type, "attempt", a.Number, "worker", p.GetLastWorkerIdentity())
	}
	return later, nil
}

// errLost is how Temporal records a lost attempt. The activity starts again at once.
var errLost = temporal.NewApplicationErrorWithOptions("the server that carried this attempt out is gone", "AttemptLost",
	temporal.ApplicationErrorOptions{NextRetryDelay: 100 * time.Millisecond})
