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

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// Reconciler repairs the records and grants of runs that were ended from outside, and detects silent agents. It
// consists of two loops in the server, not of workflows, because it must work when workers or Temporal do not. The loop
// that watches agents never calls Temporal, so it is not delayed when Temporal hangs.
//
// A pass over many runs takes seconds, and runs go on in that time. Therefore data from the start of a pass is read
// again before anything is repaired; judgeGrant and judgeRecord explain the order.
type Reconciler struct {
	stores   Stores
	temporal Temporal
	guard    *guard.Guard // counts panics: data from agents or Temporal may cause them
	log      *slog.Logger
	now      func() time.Time
	elapsed  func() time.Duration       // monotonic clock
	held     func() []inventory.HeldRun // see Config.Held
	settled  map[string]bool            // held runs that have ended
	pump     *Pump
	watch    agentWatch
	boots    lostBoots
	// noStuckQuery is set if Temporal is too old for the search attribute of stuckQuery.
	noStuckQuery bool

	repairs         *repairs
	mu              sync.Mutex
	recentlyUnknown map[string]time.Duration // run → when a pass first found that Temporal does not know it
}

const (
	reconcileEvery = 15 * time.Second
	agentsEvery    = 5 * time.Second
	// unknownAfter is how long Temporal must report a run as unknown before the run counts as ended.
	unknownAfter = 30 * time.Second
	// judgeEach is the number of grants, open runs and operations up to which a pass asks Temporal about each one. If there
	// are more, it first asks Temporal for a list of open runs.
	judgeEach = 100
	// MaxOpen limits how many open runs, and how many open operations, are read at once.
	MaxOpen = 10000
)

// stuckQuery finds runs whose workflow code panics. Such a run stays Running, and cannot report its problem itself.
const stuckQuery = "TemporalReportedProblems IS NOT NULL AND ExecutionStatus='Running'"

// Counts returns what was repaired since the server started.
func (r *Reconciler) Counts() apitypes.Repairs {
	c := r.repairs.read()
	c.SignalsRefused = r.pump.Refused()

	return c
}

// Run checks all grants and open records at the start and every 15 s. It checks agents every 5 s, and network boots
// once after each start of the server. It returns when ctx is done.
func (r *Reconciler) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() {
		for {
			r.pass(ctx, "runs", r.CheckRuns)
			pause := reconcileEvery
			if len(r.settled) < len(r.held()) {
				pause = agentsEvery // runs that are held since a restore must be signalled or cancelled soon
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

// CheckAgents checks all agents once. It reports an agent to its run if the agent has work and is silent, or asks for
// work and gets none.
func (r *Reconciler) CheckAgents(ctx context.Context) error { return r.watch.check(ctx) }

// CheckBoots finds network boots that failed because this server was down, and reports each to its run. It does this
// once after each start of the server; other calls do nothing.
func (r *Reconciler) CheckBoots(ctx context.Context) error { return r.boots.check(ctx) }

// CheckRuns checks grants and open records once. While Temporal is not ready, it only ends the grants of operators whose
// netboot window has expired. If Temporal hangs, the pass ends after a few time-outs, however many runs there are.
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

// listJudgements returns the run ids of all grants, open runs and open operations, and the functions that a pass calls
// to judge them.
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

	// Many requests for single runs would load Temporal. Ask it for a list of open runs instead, and judge a listed run
	// only if that is necessary while the run is open. The list may be some seconds old: a run that has ended by now is
	// judged in a later pass.
	runs := map[string]bool{}
	if len(grants)+len(records)+len(operations) > judgeEach {
		listed, err := OpenRuns(ctx, tc)
		if err != nil {
			r.log.Warn("asking Temporal for each run, because Temporal cannot list the open runs", "error", err)
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
			// This call removes the run from recentlyUnknown.
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
			// An open run with an epoch has had a grant and may have lost it, so the run is always judged.
			add(w.Run, runs[w.Run] && w.Epoch == 0, func(ctx context.Context) error { return r.judgeRecord(ctx, tc, w) })
		}
	}
	for _, o := range operations {
		add(o.Run, runs[executionOf(o)], func(ctx context.Context) error { return r.judgeOperation(ctx, tc, o) })
	}

	return open, judge, nil
}

// expireOperatorWindows ends the grants of operators whose netboot window has expired.
func (r *Reconciler) expireOperatorWindows(ctx context.Context, grants []inventory.Grant) error {
	var errs []error
	now := r.now()
	for _, g := range grants {
		if !g.ByOperator() || now.Before(g.NetbootUntil) {
			continue
		}
		if err := r.stores.Grants.EndGrant(ctx, g.Owner); err != nil {
			errs = append(errs, fmt.Errorf("ending the grant of machine %q: %w", g.Machine, err))
			continue
		}
		r.log.With(g.LogKeys(g.Boot)...).Info("closed an expired netboot window")
		r.repairs.count(func(c *apitypes.Repairs) { c.OperatorWindowsExpired++ })
	}

	return errors.Join(errs...)
}

// hungAfter is the number of consecutive requests without an answer after which Temporal counts as hanging.
const hungAfter = 16

// errHangs is the error of a pass that has ended early because Temporal does not answer.
var errHangs = errors.New("no answer from Temporal")

// callAll calls all functions, up to askedAtOnce in parallel, and joins their errors. A panic is counted and does not
// stop the other functions. If hungAfter consecutive calls fail because Temporal is unavailable, callAll skips the
// remaining functions and returns errHangs.
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
			if err != nil && silent <= 1 { // of consecutive time-outs only the first error is kept
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()

	if silent >= hungAfter {
		errs = append(errs, fmt.Errorf("%w: only %d of %d runs were checked", errHangs, looked, len(all)))
	}
	return errors.Join(errs...)
}

// countStuck sets Counts.Stuck to the number of runs whose workflow code fails now.
func (r *Reconciler) countStuck(ctx context.Context, tc client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, TemporalTimeout)
	defer cancel()
	if r.noStuckQuery {
		return nil
	}
	n, err := tc.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: stuckQuery})
	if _, ok := errors.AsType[*serviceerror.InvalidArgument](err); ok {
		r.noStuckQuery = true
		r.log.Info("this Temporal does not report which runs are stuck", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("asking Temporal for stuck runs: %w", err)
	}

	if n.GetCount() > 0 && n.GetCount() != r.Counts().Stuck {
		r.log.Error("workflow code fails repeatedly, so runs are stuck", "runs", n.GetCount())
	}
	r.repairs.count(func(c *apitypes.Repairs) { c.Stuck = n.GetCount() })

	return nil
}

// ClockSet shifts the time windows of all grants, such as the netboot window, after the wall clock was
// set. A window ends at a stored wall-clock time: without the shift, setting the clock forward would close
// a window while its machine boots, and setting it backward would leave the window open for too long.
func (r *Reconciler) ClockSet(ctx context.Context, from, to time.Time) {
	r.repairs.count(func(c *apitypes.Repairs) { c.ClockSteps++ })
	n, err := r.stores.Grants.ShiftWindows(ctx, from, to)
	if err != nil {
		r.log.Error("the clock was set, but netboot and secrets windows could not be shifted with it", "by", to.Sub(from), "error", err)
		return
	}
	r.log.Warn("the clock was set; windows were shifted with it, and deadlines use the elapsed time",
		"by", to.Sub(from), "windows", n)
	if to.Before(from) {
		// Temporal's clock does not go back: its timers stop until the wall clock reaches the latest time that Temporal
		// has read.
		r.log.Error("the clock was set back: Temporal's timers stop until the clock shows the former time again", "until", from)
	}
}
