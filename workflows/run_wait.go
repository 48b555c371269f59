package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
)

// budget is what is left of the global timeout. It rests while the operator is
// awaited.
type budget struct {
	left     time.Duration // zero: there is no limit
	since    time.Time     // when it began to run; zero while it rests
	deadline time.Time     // of the present wait, for the status
}

// remaining returns what is left now; false: there is no limit.
func (b *budget) remaining(now time.Time) (time.Duration, bool) {
	if b.left == 0 || b.since.IsZero() {
		return b.left, b.left != 0
	}
	return b.left - now.Sub(b.since), true
}

// pause stops the global timeout; resume lets it run on.
func (b *budget) pause(now time.Time) {
	if left, limited := b.remaining(now); limited {
		b.left = max(left, time.Millisecond) // zero would be no limit
	}
	b.since = time.Time{}
}

func (b *budget) resume(now time.Time) { b.since = now }

// A wait is for something that the machine or its agent does.
type wait struct {
	limit time.Duration
	// attempt is the one whose report ends the wait; zero: none.
	attempt action.Key
	// served: what is awaited needs this server, so only time counts in which it was up.
	served bool
	// unlimited: the global timeout does not end the wait, nor does the loss of the machine.
	unlimited bool
	// prolong keeps open what the wait needs, when it goes on; nil: nothing.
	prolong func(left time.Duration) error
}

// waitFor waits until done. A deadline never acts alone: when the time is up, it
// asks for evidence, and goes on waiting for what of the time has not really
// passed, because the clock was set or this server was away. False: the time is
// up; the evidence is what is known then.
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

// await waits until done, at most for limit. False means that the time is up, and
// nothing more: see evidence. errTimeout means that the global timeout has passed,
// and that all signals that had come by then were taken in.
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
			return false, r.fencedError()
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

// evidence asks what is known before a deadline acts, and how much of the wait
// that ended has not really been waited. All signals that came meanwhile have been
// taken in when it returns, and so has the report of the attempt.
func (r *machineRun) evidence(ctx workflow.Context, attempt action.Key, w activities.Wait) (known activities.EvidenceFound, err error) {
	q := activities.EvidenceRequest{Owner: r.owner, Key: attempt, Wait: w}
	if err := execute(ctx, patient, &known, do.Evidence, q); err != nil {
		return known, err
	}

	// This coroutine runs before receiveSignals does: what came in the same workflow
	// task as the evidence has yet to be taken in.
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

func (r *machineRun) fencedError() error {
	if r.signals.held {
		return errHeld
	}
	return errFenced
}
