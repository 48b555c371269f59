package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// Reconciler repairs what runs that were ended from outside left open, and detects silent
// agents. It is two loops of the server and not workflows, because it must work when workers
// or Temporal do not. The loop that watches agents never calls Temporal, so it is not
// delayed when Temporal hangs.
//
// A pass over many runs takes seconds, and the event pump and the workers may lag behind.
// Therefore data read at the start of a pass is read again before anything is repaired; see
// judgeGrant and judgeRecord for the order.
type Reconciler struct {
	stores   Stores
	temporal Temporal
	guard    *guard.Guard // for what agents and Temporal send
	log      *slog.Logger
	now      func() time.Time
	elapsed  func() time.Duration       // monotonic clock
	held     func() []inventory.HeldRun // since a restore from a backup
	settled  map[string]bool            // those of held that have ended
	pump     *Pump
	watch    agentWatch
	boots    lostBoots
	// noStuckQuery: Temporal is too old to know the search attribute of stuckQuery.
	noStuckQuery bool

	repairs         *repairs
	mu              sync.Mutex
	recentlyUnknown map[string]time.Duration // run → since when Temporal has not known it
}

const (
	reconcileEvery = 15 * time.Second
	agentsEvery    = 5 * time.Second
	// unknownAfter is how long Temporal must not know a run before it counts as ended.
	unknownAfter = 30 * time.Second
	// judgeEach is up to how many open runs and operations a pass asks Temporal for each.
	judgeEach = 100
	// MaxOpen limits how many open runs, or operations, one pass reads.
	MaxOpen = 10000
)

// stuckQuery finds runs whose workflow code panics: they stay Running, and
// their own timers cannot fire.
const stuckQuery = "TemporalReportedProblems IS NOT NULL AND ExecutionStatus='Running'"

// Counts returns what was repaired since the server started.
func (r *Reconciler) Counts() Counts {
	c := r.repairs.read()
	c.SignalsRefused = r.pump.Refused()

	return c
}

// Run checks all grants and open records at the start and every 15 s, agents every 5 s, and network boots once,
// until ctx is done.
func (r *Reconciler) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() {
		for {
			r.pass(ctx, "runs", r.CheckRuns)
			pause := reconcileEvery
			if len(r.settled) < len(r.held()) {
				pause = agentsEvery // held runs are signaled soon
			}
			if clock.Sleep(ctx, pause) != nil {
				return
			}
		}
	})
	loops.Go(func() {
		for clock.Sleep(ctx, agentsEvery) == nil {
			r.pass(ctx, "agents", r.CheckAgents)
			r.pass(ctx, "boots", r.CheckBoots)
		}
	})
	loops.Wait()

	return nil
}

func (r *Reconciler) pass(ctx context.Context, what string, check func(context.Context) error) {
	defer r.guard.Recover("reconciling " + what)
	if err := check(ctx); err != nil && ctx.Err() == nil {
		r.log.Warn("reconciling", "what", what, "error", err)
	}
}

// CheckAgents checks the agents of live grants once: those that have work and are silent,
// and those that ask for work and get none.
func (r *Reconciler) CheckAgents(ctx context.Context) error { return r.watch.check(ctx) }

// CheckBoots reports network boots that this server's restart has lost to their runs, once after each start.
func (r *Reconciler) CheckBoots(ctx context.Context) error { return r.boots.check(ctx) }

// CheckRuns checks grants and open records once. Without Temporal it only closes the expired
// windows of operators. If Temporal hangs, the pass ends after a few timeouts, independent
// of the number of runs.
func (r *Reconciler) CheckRuns(ctx context.Context) error {
	grants, err := r.stores.Grants.Grants(ctx)
	if err != nil {
		return fmt.Errorf("reading grants: %w", err)
	}
	expired := r.expireOperatorWindows(ctx, grants)
	tc, ok := r.temporal()
	if !ok {
		return expired
	}
	open, judge, err := r.listJudgements(ctx, tc, grants)
	if err != nil {
		return errors.Join(expired, err)
	}

	reopened, judged := r.reopenIntake(ctx), r.callAll(ctx, judge)
	r.mu.Lock()
	maps.DeleteFunc(r.recentlyUnknown, func(run string, _ time.Duration) bool { return !open[run] })
	r.mu.Unlock()
	errs := []error{expired, reopened, judged}
	if !errors.Is(judged, errHangs) {
		errs = append(errs, r.cancelHeld(ctx, tc))
		if len(open) > 0 {
			errs = append(errs, r.countStuck(ctx, tc))
		}
	}

	return errors.Join(errs...)
}

// listJudgements returns the open runs and operations, and the judgements that a pass makes of them.
func (r *Reconciler) listJudgements(
	ctx context.Context, tc client.Client, grants []inventory.Grant,
) (open map[string]bool, judge []func(context.Context) error, err error) {
	records, err := r.stores.Workflows.Workflows(ctx, inventory.WorkflowFilter{Open: true, Limit: MaxOpen})
	if err != nil {
		return nil, nil, fmt.Errorf("reading open workflows: %w", err)
	}
	operations, err := r.stores.Operations.Operations(ctx, inventory.OperationFilter{Open: true, Limit: MaxOpen})
	if err != nil {
		return nil, nil, fmt.Errorf("reading open operations: %w", err)
	}

	// With more of them, a pass would be most of what Temporal does. Those that need nothing while they run are left
	// out if Temporal lists them; the next pass sees if that was old.
	runs := map[string]bool{}
	if len(grants)+len(records)+len(operations) > judgeEach {
		listed, err := OpenRuns(ctx, tc)
		if err != nil {
			r.log.Warn("asking Temporal for each run, because it does not list them", "error", err)
			listed = nil
		}
		for _, e := range listed {
			runs[e.GetExecution().GetRunId()] = true
		}
	}

	open = map[string]bool{}
	add := func(run string, needsNothing bool, f func(context.Context) error) {
		open[run] = true
		if needsNothing {
			// Temporal knows it.
			r.hasEnded(run, execution{known: true, status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING})
			return
		}
		judge = append(judge, f)
	}
	for _, g := range grants {
		if !g.ByOperator() {
			add(g.Run, runs[g.Run], func(ctx context.Context) error { return r.judgeGrant(ctx, tc, g) })
		}
	}
	for _, w := range records {
		if !open[w.Run] {
			// A run with an epoch may have lost its grant.
			add(w.Run, runs[w.Run] && w.Epoch == 0, func(ctx context.Context) error { return r.judgeRecord(ctx, tc, w) })
		}
	}
	for _, o := range operations {
		add(o.Run, runs[executionOf(o)], func(ctx context.Context) error { return r.judgeOperation(ctx, tc, o) })
	}

	return open, judge, nil
}

// expireOperatorWindows ends the grants of operators whose netboot windows have expired.
func (r *Reconciler) expireOperatorWindows(ctx context.Context, grants []inventory.Grant) error {
	var errs []error
	now := r.now()
	for _, g := range grants {
		if !g.ByOperator() || now.Before(g.NetbootUntil) {
			continue
		}
		if err := r.stores.Grants.EndGrant(ctx, g.Owner); err != nil {
			errs = append(errs, fmt.Errorf("ending the grant of %q: %w", g.Machine, err))
			continue
		}
		r.log.With(g.LogKeys(g.Boot)...).Info("closed a netboot window that expired")
		r.repairs.count(func(c *Counts) { c.OperatorWindowsExpired++ })
	}

	return errors.Join(errs...)
}

// hungAfter is how many requests in a row without an answer mean that Temporal hangs.
const hungAfter = 16

// errHangs means that Temporal does not answer.
var errHangs = errors.New("no answer from Temporal")

// callAll calls all functions, askedAtOnce at a time, and joins their errors. A panic is
// counted and does not stop the others. If hungAfter calls in a row fail because Temporal is
// unavailable, it skips the rest and returns errHangs.
func (r *Reconciler) callAll(ctx context.Context, all []func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		mu     sync.Mutex
		errs   []error
		silent int
		looked int
		wg     sync.WaitGroup
		slots  = make(chan struct{}, askedAtOnce)
	)
	for _, f := range all {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			defer r.guard.Recover("reconciling a run")
			err := f(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err == nil || !isAway(err) {
				silent, looked = 0, looked+1
			} else if silent++; silent == hungAfter {
				stop()
			}
			if err != nil && silent <= 1 { // the first error is enough
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()

	if silent >= hungAfter {
		errs = append(errs, fmt.Errorf("%w: %d of %d runs were looked at", errHangs, looked, len(all)))
	}
	return errors.Join(errs...)
}

// countStuck counts runs whose workflow code fails.
func (r *Reconciler) countStuck(ctx context.Context, tc client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
	defer cancel()
	if r.noStuckQuery {
		return nil
	}
	n, err := tc.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: stuckQuery})
	var never *serviceerror.InvalidArgument
	if errors.As(err, &never) {
		r.noStuckQuery = true
		r.log.Info("this Temporal does not report which runs are stuck", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("asking Temporal for stuck runs: %w", err)
	}

	if n.GetCount() > 0 && n.GetCount() != r.Counts().Stuck {
		r.log.Error("the code of workflows fails again and again", "runs", n.GetCount())
	}
	r.repairs.count(func(c *Counts) { c.Stuck = n.GetCount() })

	return nil
}

// ClockSet moves all windows after the clock was set from one time to another. Windows end
// at a stored wall-clock time: otherwise a step forward would close them under booting
// machines, and a step backward would leave them open.
func (r *Reconciler) ClockSet(ctx context.Context, from, to time.Time) {
	r.repairs.count(func(c *Counts) { c.ClockSteps++ })
	n, err := r.stores.Grants.ShiftWindows(ctx, from, to)
	if err != nil {
		r.log.Error("the clock was set, and windows could not be moved with it", "by", to.Sub(from), "error", err)
		return
	}
	r.log.Warn("the clock was set; deadlines and windows use the elapsed time",
		"by", to.Sub(from), "windows", n)
	if to.Before(from) {
		// Temporal sets no timer to a time before the last one it has read.
		r.log.Error("the clock was set back: Temporal's timers stop until it shows that time again", "until", from)
	}
}
