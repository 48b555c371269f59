package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

type reconcileStore interface {
	Grants(ctx context.Context) ([]inventory.Grant, error)
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	EndGrant(ctx context.Context, o inventory.Owner) error
	Workflow(ctx context.Context, run string) (inventory.Workflow, error)
	Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error)
	Resumable(ctx context.Context, run string) error
	PutWorkflow(ctx context.Context, w inventory.Workflow) error
	ShiftWindows(ctx context.Context, from, to time.Time) (int, error)
	Agent(ctx context.Context, o inventory.Owner) (inventory.Agent, error)
	NextAssignment(ctx context.Context, o inventory.Owner) (inventory.Assignment, error)
	AppendEvents(ctx context.Context, es []inventory.Event) error
	PendingSignals(ctx context.Context, o inventory.Owner) (int, error)
	Operation(ctx context.Context, run string) (inventory.Operation, error)
	Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error)
	PutOperation(ctx context.Context, o inventory.Operation) error
	Intake(ctx context.Context) (why string, err error)
	OpenIntake(ctx context.Context) error
}

// Reconciler repairs what runs that ended from outside left open, and notices
// agents that fell silent. These are two loops of the server and not workflows:
// they must work when workers or Temporal do not. The one that watches agents
// never asks Temporal, so that it keeps its time when Temporal hangs.
//
// A pass over many runs takes seconds, and the event pump and the workers may
// lag behind. What a pass read at its beginning is therefore read again before
// anything is repaired; see judgeGrant and judgeRecord for the order.
type Reconciler struct {
	Store                reconcileStore
	Temporal             Temporal
	Guard                *guard.Guard // of what agents and Temporal have said
	Log                  *slog.Logger
	Now                  func() time.Time
	Elapsed              func() time.Duration // by a clock that nobody sets
	Up                   func() time.Duration // since when agents are listened to, by the same
	LostAfter, IdleAfter time.Duration
	Held                 []inventory.HeldRun // by a restore from a backup

	settled map[string]bool // those of Held that are over
	agents  *agents
	pump    *Pump
	blind   bool // Temporal is too old to know the search attribute of stuckQuery

	mu              sync.Mutex
	counts          Counts
	idle            map[string]idleness
	recentlyUnknown map[string]time.Duration // run → since when Temporal does not know it
	silent          map[string]string        // machine → key of the last agent-lost
}

// idleness records which agent-idle events a run was sent.
type idleness struct {
	owner inventory.Owner
	since time.Time
	told  int
	next  time.Time
}

// Counts is what the loop has repaired since the server started.
type Counts struct {
	GrantsEnded     int64 `json:"grantsEnded"`
	PersonsExpired  int64 `json:"personsExpired"`
	RecordsRepaired int64 `json:"recordsRepaired"`
	AgentsLost      int64 `json:"agentsLost"`
	AgentsIdle      int64 `json:"agentsIdle"`
	// ClockSteps is how often somebody has set the clock of this server.
	ClockSteps int64 `json:"clockSteps"`
	// SignalsRefused is how many events Temporal would not take.
	SignalsRefused int64 `json:"signalsRefused"`
	// RunsFenced is how often a run was told that its machine is not its own.
	RunsFenced int64 `json:"runsFenced"`
	// Stuck is how many runs' workflow code fails again and again now.
	Stuck int64 `json:"stuck"`
}

const (
	reconcileEvery = 15 * time.Second
	agentsEvery    = 5 * time.Second
	// unknownAfter is for how long Temporal must not have known a run before
	// that counts.
	unknownAfter = 30 * time.Second
	idleAtMost   = 10 * time.Minute // between two agent-idle of one idleness
)

// stuckQuery finds runs whose workflow code panics: they stay Running, and
// their own timers cannot speak.
const stuckQuery = "TemporalReportedProblems IS NOT NULL AND ExecutionStatus='Running'"

// Counts returns what was repaired so far.
func (r *Reconciler) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts
	c.SignalsRefused = r.pump.Refused()
	return c
}

func (r *Reconciler) count(f func(c *Counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.counts)
}

// Run looks at all grants and open records at start and every 15 s, and at
// agents every 5 s, until ctx is done.
func (r *Reconciler) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() {
		for {
			r.pass(ctx, "runs", r.Runs)
			pause := reconcileEvery
			if len(r.settled) < len(r.Held) {
				pause = agentsEvery // those that are held are told soon
			}
			if !sleep(ctx, pause) {
				return
			}
		}
	})
	loops.Go(func() {
		for sleep(ctx, agentsEvery) {
			r.pass(ctx, "agents", r.Agents)
		}
	})
	loops.Wait()
	return nil
}

func (r *Reconciler) pass(ctx context.Context, what string, f func(context.Context) error) {
	defer r.Guard.Recover("reconciling " + what)
	if err := f(ctx); err != nil && ctx.Err() == nil {
		r.Log.Warn("reconciling", "what", what, "error", err)
	}
}

// sleep waits for d; false: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Runs makes one pass over grants and open records. Without Temporal only
// what people armed and let expire is closed. When Temporal hangs, the pass
// ends after a few time-outs, however many runs there are.
func (r *Reconciler) Runs(ctx context.Context) error {
	gs, err := r.Store.Grants(ctx)
	if err != nil {
		return fmt.Errorf("reading grants: %w", err)
	}
	expired := r.expirePersons(ctx, gs)
	tc, ok := r.Temporal()
	if !ok {
		return expired
	}
	ws, err := r.Store.Workflows(ctx, inventory.WorkflowFilter{Open: true, Limit: maxOpen})
	if err != nil {
		return errors.Join(expired, fmt.Errorf("reading open workflows: %w", err))
	}
	ops, err := r.Store.Operations(ctx, inventory.OperationFilter{Open: true, Limit: maxOpen})
	if err != nil {
		return errors.Join(expired, fmt.Errorf("reading open operations: %w", err))
	}

	open := map[string]bool{}
	var judge []func(context.Context) error
	for _, g := range gs {
		if !g.Person() {
			open[g.Run] = true
			judge = append(judge, func(ctx context.Context) error { return r.judgeGrant(ctx, tc, g) })
		}
	}
	for _, w := range ws {
		if !open[w.Run] {
			open[w.Run] = true
			judge = append(judge, func(ctx context.Context) error { return r.judgeRecord(ctx, tc, w) })
		}
	}
	for _, o := range ops {
		open[o.Run] = true
		judge = append(judge, func(ctx context.Context) error { return r.judgeOperation(ctx, tc, o) })
	}

	reopened, judged := r.reopen(ctx), r.each(ctx, judge)
	r.mu.Lock()
	maps.DeleteFunc(r.recentlyUnknown, func(run string, _ time.Duration) bool { return !open[run] })
	r.mu.Unlock()
	errs := []error{expired, reopened, judged}
	if !errors.Is(judged, errHangs) {
		errs = append(errs, r.settle(ctx, tc))
		if len(open) > 0 {
			errs = append(errs, r.stuck(ctx, tc))
		}
	}
	return errors.Join(errs...)
}

// expirePersons ends the grants of people whose netboot windows have expired.
func (r *Reconciler) expirePersons(ctx context.Context, gs []inventory.Grant) error {
	var errs []error
	now := r.Now()
	for _, g := range gs {
		if !g.Person() || now.Before(g.NetbootUntil) {
			continue
		}
		if err := r.Store.EndGrant(ctx, g.Owner); err != nil {
			errs = append(errs, fmt.Errorf("ending the grant of %q: %w", g.Machine, err))
			continue
		}
		r.Log.Info("closed a netboot window that expired", "machine", g.Machine, "by", g.Run)
		r.count(func(c *Counts) { c.PersonsExpired++ })
	}
	return errors.Join(errs...)
}

const (
	askedAtOnce = 16 // questions to Temporal
	hungAfter   = 16 // of them one after another without an answer
)

// errHangs is a Temporal that answers nothing.
var errHangs = errors.New("no answer from Temporal")

// each calls all functions, askedAtOnce at a time, and joins their errors. One that
// panics is counted, and the others are called. When
// hungAfter of them in a row fail because Temporal is away, it skips the rest
// and returns errHangs.
func (r *Reconciler) each(ctx context.Context, all []func(context.Context) error) error {
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
			defer r.Guard.Recover("reconciling a run")
			err := f(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err == nil || !away(err) {
				silent, looked = 0, looked+1
			} else if silent++; silent == hungAfter {
				stop()
			}
			if err != nil && silent <= 1 { // the first of many says it all
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

// judgeGrant ends the grant of a run that is over, and repairs its record. A
// run returns its grant before Temporal closes it. A grant that is still held
// when it is read after Temporal's answer was left behind.
func (r *Reconciler) judgeGrant(ctx context.Context, tc client.Client, g inventory.Grant) error {
	e, err := r.look(ctx, tc, g.Workflow, g.Run)
	if err != nil || !r.over(g.Run, e) {
		return err
	}
	now, err := r.Store.Grant(ctx, g.Machine)
	if err != nil {
		return err
	}
	if now.Owner == g.Owner {
		if err := r.Store.EndGrant(ctx, g.Owner); err != nil {
			return fmt.Errorf("ending the grant of %q: %w", g.Machine, err)
		}
		r.Log.Warn("ended the grant of a run that is over", "machine", g.Machine, "run", g.Run, "as", e.String())
		r.count(func(c *Counts) { c.GrantsEnded++ })
	}
	return r.repair(ctx, tc, g.Run, e)
}

// judgeRecord repairs the record of a run that is over. It signals a running
// run that has lost its grant, which would otherwise notice at its next effect
// or deadline. A run that waits for an operator has noticed already, and one of
// epoch 0 never took a grant.
//
// A run that is ending has returned its grant, too, and has a workflow task or
// an activity pending until it is closed. Only a run that has neither, as seen
// after its grant was gone, waits for events that cannot come.
func (r *Reconciler) judgeRecord(ctx context.Context, tc client.Client, w inventory.Workflow) error {
	g, err := r.Store.Grant(ctx, w.Machine)
	if err != nil {
		return err
	}
	e, err := r.look(ctx, tc, w.ID, w.Run)
	switch {
	case err != nil:
		return err
	case r.over(w.Run, e):
		return r.repair(ctx, tc, w.Run, e)
	case !e.resting || g.Run == w.Run || w.Epoch == 0 || w.Phase == inventory.PhaseWaiting:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, asked)
	defer cancel()
	err = tc.SignalWorkflow(ctx, w.ID, w.Run, workflows.SignalEvent, workflows.Event{Kind: r.lostKind(w.Run), Epoch: w.Epoch})
	if err != nil {
		return fmt.Errorf("telling run %q that its machine was taken: %w", w.Run, err)
	}
	r.Log.Warn("told a run that its machine is not its own any more", "machine", w.Machine, "run", w.Run, "because", r.lostKind(w.Run))
	r.count(func(c *Counts) { c.RunsFenced++ })
	return nil
}

// end is how Temporal sees a run.
type end struct {
	known   bool
	status  enumspb.WorkflowExecutionStatus
	resting bool // running, with neither a workflow task nor an activity pending
}

func (e end) String() string {
	if !e.known {
		return "unknown"
	}
	return e.status.String()
}

// over tells whether a run is over. One that Temporal does not know counts as
// over when that has been so for a while.
func (r *Reconciler) over(run string, e end) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !e.known {
		now := r.Elapsed()
		since, seen := r.recentlyUnknown[run]
		if !seen {
			if r.recentlyUnknown == nil {
				r.recentlyUnknown = map[string]time.Duration{}
			}
			r.recentlyUnknown[run] = now
		}
		return seen && now-since > unknownAfter
	}
	delete(r.recentlyUnknown, run)
	switch e.status {
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED,
		enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT, enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
		return true
	}
	return false
}

// look asks Temporal for a run. "Unknown" comes back only from a Temporal that
// is healthy and has the namespace: else it is an error.
func (r *Reconciler) look(ctx context.Context, tc client.Client, id, run string) (end, error) {
	ctx, cancel := context.WithTimeout(ctx, asked)
	defer cancel()
	d, err := tc.DescribeWorkflowExecution(ctx, id, run)
	var gone *serviceerror.NotFound
	if errors.As(err, &gone) {
		if _, err := tc.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
			return end{}, fmt.Errorf("asking Temporal for its health: %w", err)
		}
		return end{}, nil
	}
	if err != nil {
		return end{}, fmt.Errorf("asking Temporal for run %q of %q: %w", run, id, err)
	}
	status := d.GetWorkflowExecutionInfo().GetStatus()
	resting := status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING && d.GetPendingWorkflowTask() == nil && len(d.GetPendingActivities()) == 0
	return end{true, status, resting}, nil
}

// repair gives the record of a run that is over its final state. It reads the
// record first: a run writes its last one before Temporal closes it.
func (r *Reconciler) repair(ctx context.Context, tc client.Client, run string, e end) error {
	w, err := r.Store.Workflow(ctx, run)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the record of run %q: %w", run, err)
	}
	if inventory.Final(w.State) {
		return nil
	}
	w.State, w.Phase, w.Message = inventory.StateFailed, inventory.PhaseFailed, "terminated from outside"
	switch {
	case !e.known:
		w.Message = "Temporal does not know this run any more"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:
		w.State, w.Phase, w.Message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		w.State, w.Message = inventory.StateTimeout, "the run was given a time-out from outside, and it passed"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_FAILED:
		w.Message = "the run failed and recorded no reason"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
		w.Message = "the run goes on under another run id"
	case e.status == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
		w.Message = "the run ended and recorded no state"
		get, cancel := context.WithTimeout(ctx, asked)
		defer cancel()
		var out workflows.Outcome
		if err := tc.GetWorkflow(get, w.ID, w.Run).Get(get, &out); err == nil && inventory.Final(out.State) {
			w.State, w.Message = out.State, out.Message
			switch out.State {
			case inventory.StateSuccess:
				w.Phase = inventory.PhaseDone
			case inventory.StateCancelled:
				w.Phase = inventory.PhaseCancelled
			}
		}
	}
	now := r.Now()
	w.Question, w.Ended, w.Updated = nil, now, now
	w.Next = r.nextAfter(ctx, w)
	w.Actions = append([]inventory.ActionRecord(nil), w.Actions...)
	for i := range w.Actions {
		if w.Actions[i].State == action.Running {
			w.Actions[i].State, w.Actions[i].Message = action.Failed, "the run ended while this action was running"
		}
	}
	if err := r.Store.PutWorkflow(ctx, w); err != nil {
		return fmt.Errorf("repairing the record of run %q: %w", w.Run, err)
	}
	r.Log.Warn("repaired the record of a run that is over", "machine", w.Machine, "run", w.Run, "as", e.String())
	r.count(func(c *Counts) { c.RecordsRepaired++ })
	return nil
}

// nextAfter is the command that helps after a run that was ended from outside.
func (r *Reconciler) nextAfter(ctx context.Context, w inventory.Workflow) string {
	attempted := slices.ContainsFunc(w.Actions, func(a inventory.ActionRecord) bool { return a.Attempt > 0 })
	switch {
	case w.State == inventory.StateSuccess || w.Type == workflows.BMCJobType: // which are not retried
		return ""
	case attempted && r.Store.Resumable(ctx, w.Run) == nil:
		return "ingot workflow retry " + w.Run + " --from " + fromFailed
	}
	return retryFromStart(w.Run)
}

// stuck counts runs whose workflow code fails.
func (r *Reconciler) stuck(ctx context.Context, tc client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, asked)
	defer cancel()
	if r.blind {
		return nil
	}
	n, err := tc.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: stuckQuery})
	var never *serviceerror.InvalidArgument
	if errors.As(err, &never) {
		r.blind = true
		r.Log.Info("this Temporal does not tell which runs are stuck", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("asking Temporal for stuck runs: %w", err)
	}
	if n.GetCount() > 0 && n.GetCount() != r.Counts().Stuck {
		r.Log.Error("the code of workflows fails again and again", "runs", n.GetCount())
	}
	r.count(func(c *Counts) { c.Stuck = n.GetCount() })
	return nil
}

// Stepped is told that somebody has set the clock, which showed from and then
// to. Windows are lengths of time
// that are stored by the wall clock: they move with it, or a step forward would
// close them under machines that boot, and one backward leave them open.
func (r *Reconciler) Stepped(ctx context.Context, from, to time.Time) {
	r.count(func(c *Counts) { c.ClockSteps++ })
	n, err := r.Store.ShiftWindows(ctx, from, to)
	if err != nil {
		r.Log.Error("the clock was set, and windows could not be moved with it", "by", to.Sub(from), "error", err)
		return
	}
	r.Log.Warn("the clock was set; deadlines and windows go by what has really passed", "by", to.Sub(from), "windows", n)
	if to.Before(from) {
		// It gives no timer a time before one that it has read already.
		r.Log.Error("the clock was set back: Temporal's timers rest until it shows that time again", "until", from)
	}
}

// Agents makes one pass over the agents of live grants: those that have work
// and are silent, and those that ask for work in vain.
func (r *Reconciler) Agents(ctx context.Context) error {
	gs, err := r.Store.Grants(ctx)
	if err != nil {
		return fmt.Errorf("reading grants: %w", err)
	}
	idle := map[string]idleness{}
	var errs []error
	for _, g := range gs {
		if g.Person() {
			continue
		}
		a, err := r.Store.Agent(ctx, g.Owner)
		if errors.Is(err, inventory.ErrNotFound) || errors.Is(err, inventory.ErrFenced) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reading the agent of %q: %w", g.Machine, err))
			continue
		}
		if a.Revoked || a.Conflict {
			continue
		}
		as, err := r.Store.NextAssignment(ctx, g.Owner)
		has := err == nil && (as.Boot == 0 || as.Boot == a.Boot)
		if err != nil && !errors.Is(err, inventory.ErrNotFound) && !errors.Is(err, inventory.ErrFenced) {
			errs = append(errs, fmt.Errorf("reading the assignment of %q: %w", g.Machine, err))
			continue
		}
		if err := r.lost(ctx, g, a, as, has); err != nil {
			errs = append(errs, err)
		}
		if i, err := r.idling(ctx, g, a, as, has); err != nil {
			errs = append(errs, err)
		} else if !i.since.IsZero() {
			idle[g.Machine] = i
		}
	}
	r.mu.Lock()
	r.idle = idle
	r.mu.Unlock()
	return errors.Join(errs...)
}

// lost tells the run of an agent that has work, fetched or not, and is silent.
// Silence is judged by the clock that nobody sets, and counts from when this
// server began to listen at the earliest: while it was away or stood still,
// nobody did.
func (r *Reconciler) lost(ctx context.Context, g inventory.Grant, a inventory.Agent, as inventory.Assignment, has bool) error {
	if !has {
		return nil
	}
	heard, silence := a.LastSeen, r.Up()
	if s, ok := r.agents.sign(a); ok {
		heard, silence = s.seen, min(silence, s.silence)
	}
	if silence < r.LostAfter {
		return nil
	}
	// One event per silence: the key names the attempt and its last sign of life.
	key := as.Key.String() + "@" + strconv.FormatInt(heard.Unix(), 10)
	r.mu.Lock()
	told := r.silent[g.Machine] == key
	r.mu.Unlock()
	if told {
		return nil
	}
	err := r.tell(ctx, g, a, inventory.EventAgentLost, key,
		"the agent has been silent since "+heard.UTC().Format(time.RFC3339), &as.Key, func(c *Counts) { c.AgentsLost++ })
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.silent == nil {
			r.silent = map[string]string{}
		}
		r.silent[g.Machine] = key
	}
	return err
}

// idling tells the run of an agent that asks for work and gets none: its
// assignment may have been lost with a restored database. The first word comes
// after IdleAfter, the next ones at growing intervals; none while a person is
// awaited.
func (r *Reconciler) idling(ctx context.Context, g inventory.Grant, a inventory.Agent, as inventory.Assignment, has bool) (idleness, error) {
	s, ok := r.agents.sign(a)
	if !ok || s.idleSince.IsZero() || has && !as.Delivered.IsZero() {
		return idleness{}, nil
	}
	r.mu.Lock()
	i := r.idle[g.Machine]
	r.mu.Unlock()
	if i.owner != g.Owner || !i.since.Equal(s.idleSince) {
		i = idleness{owner: g.Owner, since: s.idleSince, next: s.idleSince.Add(r.IdleAfter)}
	}
	now := r.Now()
	if now.Before(i.next) {
		return i, nil
	}
	// The run assigns more work only after it has received the events of the
	// work before. While the pump is behind, agent-idle would only add to them.
	behind, err := r.Store.PendingSignals(ctx, g.Owner)
	if err != nil {
		return i, err
	}
	if behind > 0 {
		i.next = now.Add(r.IdleAfter)
		return i, nil
	}
	w, err := r.Store.Workflow(ctx, g.Run)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return i, fmt.Errorf("reading the record of run %q: %w", g.Run, err)
	}
	if w.Phase == inventory.PhaseWaiting {
		return i, nil
	}
	i.next = now.Add(min(r.IdleAfter<<min(i.told, 10), idleAtMost))
	i.told++
	var key *action.Key
	if has {
		key = &as.Key
	}
	return i, r.tell(ctx, g, a, inventory.EventAgentIdle, strconv.FormatInt(s.idleSince.Unix(), 10)+"."+strconv.Itoa(i.told),
		"the agent asks for work and there is none", key, func(c *Counts) { c.AgentsIdle++ })
}

// tell appends an event about a, which the pump passes on to the run.
func (r *Reconciler) tell(ctx context.Context, g inventory.Grant, a inventory.Agent, kind, key, message string, k *action.Key, add func(*Counts)) error {
	detail, err := json.Marshal(attemptDetail{Key: k})
	if err != nil {
		return fmt.Errorf("encoding %s: %w", kind, err)
	}
	err = r.Store.AppendEvents(ctx, []inventory.Event{{
		Machine: g.Machine, Run: g.Run, Epoch: g.Epoch, Boot: a.Boot, Kind: kind, Key: key, At: r.Now(), Count: 1, Message: message, Detail: detail,
	}})
	if err != nil {
		return fmt.Errorf("appending %s of %q: %w", kind, g.Machine, err)
	}
	r.count(add)
	return nil
}
