package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
)

// budget is what is left of the global timeout. It is paused while the run waits for the operator.
type budget struct {
	left     time.Duration // time left when since was set; zero means no limit
	since    time.Time     // when the timeout started or resumed; zero while it is paused
	deadline time.Time     // end of the present wait, for Status
}

// remaining returns the time that is left at now, or false if there is no limit.
func (b *budget) remaining(now time.Time) (time.Duration, bool) {
	if b.left == 0 || b.since.IsZero() {
		return b.left, b.left != 0
	}
	return b.left - now.Sub(b.since), true
}

// pause stops the global timeout; resume starts it again.
func (b *budget) pause(now time.Time) {
	if left, limited := b.remaining(now); limited {
		b.left = max(left, time.Millisecond) // zero would mean no limit
	}
	b.since = time.Time{}
}

func (b *budget) resume(now time.Time) { b.since = now }

// A wait describes a wait for an event of the machine or its agent.
type wait struct {
	limit time.Duration
	// attempt is the attempt whose report ends the wait; zero if none does.
	attempt action.Key
	// served means that the wait depends on this server, so that only time in which the server was up counts.
	served bool
	// unlimited means that neither the global timeout nor the loss of the machine ends the wait.
	unlimited bool
	// prolong, if not nil, is called when the wait becomes longer by left, for example to keep network boot allowed.
	prolong func(left time.Duration) error
}

// waitFor waits until done returns true, at most for w.limit. When that time is up, it calls evidence and waits
// longer if some of the time did not really pass, because the clock was set or this server was down. If ok is
// false, the time is up, and known is the last result of evidence.
func (r *machineRun) waitFor(ctx workflow.Context, w wait, done func() bool) (ok bool, known activities.EvidenceFound, err error) {
	await := r.await
	if w.unlimited {
		await = workflow.AwaitWithTimeout
	}

	for n, limit := 0, w.limit; ; n++ {
		began := workflow.Now(ctx)
		if ok, err := await(ctx, limit, done); ok || err != nil {
			return ok, known, err
		}
		known, err = r.evidence(ctx, w.attempt, activities.Wait{Began: began, For: limit, Served: w.served})
		if err != nil {
			return false, known, err
		}
		if done() || known.Left == 0 || n == maxProlongations {
			return done(), known, nil
		}
		limit = known.Left
		if w.prolong != nil {
			if err := w.prolong(limit); err != nil {
				return false, known, err
			}
		}
	}
}

// await waits until done returns true, at most for limit. It returns false if limit has passed by the workflow's clock; because
// that clock may have been set, the caller must then call evidence. It returns errTimeout if the global timeout has passed and
// evidence has confirmed that; by then, all signals received so far have been processed.
func (r *machineRun) await(ctx workflow.Context, limit time.Duration, done func() bool) (bool, error) {
	b := &r.budget
	for n := 0; ; n++ {
		patience := limit
		left, limited := b.remaining(workflow.Now(ctx))
		if limited = limited && left < limit; limited {
			patience = max(left, 0)
		}
		b.deadline = workflow.Now(ctx).Add(patience)
		_, err := workflow.AwaitWithTimeout(ctx, patience, func() bool { return done() || r.signals.fenced })
		b.deadline = time.Time{}
		switch {
		case err != nil || done():
			return err == nil, err
		case r.signals.fenced:
			return false, r.signals.explainLoss()
		case !limited:
			return false, nil
		}

		known, err := r.evidence(ctx, action.Key{}, activities.Wait{Began: b.since, For: b.left})
		if err != nil {
			return false, err
		}
		if done() {
			return true, nil
		}
		if known.Left == 0 || n == maxProlongations {
			return false, errTimeout
		}
		b.left, b.since = known.Left, workflow.Now(ctx)
	}
}

// evidence returns what the server knows about the machine's agent, and how much of the wait w did not really pass. Call it before
// a deadline takes effect. When it returns, all signals that arrived during the call have been processed, and if the report of the
// attempt is stored, it is in signals.results.
func (r *machineRun) evidence(ctx workflow.Context, attempt action.Key, w activities.Wait) (known activities.EvidenceFound, err error) {
	q := activities.EvidenceRequest{Owner: r.grant.owner, Key: attempt, Wait: w}
	if err := execute(ctx, patient, &known, do.Evidence, q); err != nil {
		return known, err
	}

	// This coroutine runs before receiveSignals does, so signals from the same workflow task
	// as the evidence are not processed yet.
	turns := 0
	if err := workflow.Await(ctx, func() bool { turns++; return turns > 1 }); err != nil {
		return known, err
	}

	if known.Boot == r.boot.number && known.Kind != activities.Silent {
		r.signals.helloBoot = max(r.signals.helloBoot, known.Boot)
	}

	if known.Kind == activities.Report && !r.signals.completed(attempt) {
		r.signals.results[attempt] = ActionCompleted{
			Key: attempt, State: known.State, ExitCode: known.ExitCode,
			Message: known.Message,
		}
	}
	return known, nil
}
