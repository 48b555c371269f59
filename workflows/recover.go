package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// defaultConcurrency is how many machines of a recovery are under way at once.
const defaultConcurrency = 2

// recovery is a run of Recover: an operation whose rows are machines, several
// of which are under way at a time.
type recovery struct {
	*operation
	in    RecoverInput
	limit int
	busy  int // machines that hold one of limit places
	open  int // coroutines
}

// Recover wipes many machines and installs each by its own template: group
// after group, a few at a time, and no further once too many have gone wrong.
// Each is a Reprovision of its own, which outlives this workflow.
//
// A machine that waits for a person gives its place to the next one. The
// recovery ends when each machine has an outcome, of which waiting for a person
// is one: its run stays open and asks, and nobody has to stay up for the rest.
// Its id is recover/<name>.
func Recover(ctx workflow.Context, in RecoverInput) (out Recovered, err error) {
	o, err := newOperation(ctx, RecoverType, RecoverID(in.Name), in.Name, in)
	if err != nil {
		return out, err
	}
	r := &recovery{operation: o, in: in, limit: in.Concurrency}
	if r.limit == 0 {
		r.limit = defaultConcurrency
	}
	defer func() {
		if err != nil {
			err = r.end(ctx, err)
		} else {
			err = r.finish(ctx)
		}
		out = r.result()
	}()
	return out, r.carryOut(ctx)
}

func (r *recovery) carryOut(ctx workflow.Context) error {
	if err := r.at(ctx, inventory.PhasePlan, "finding the machines"); err != nil {
		return err
	}
	if r.limit < 0 || r.in.AbortAfter < 0 {
		return temporal.NewNonRetryableApplicationError("concurrency and abortAfter cannot be negative", activities.TypeInvalid, nil)
	}
	var groups [][]string
	q := activities.RecoverRequest{Machines: r.in.Machines, Selector: r.in.Selector, Order: r.in.Order}
	if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, planning), do.RecoverTargets, q).Get(ctx, &groups); err != nil {
		return err
	}
	for _, g := range groups {
		for _, m := range g {
			r.record.Steps = append(r.record.Steps, inventory.OperationStep{
				Name: m, Machine: m, Does: "wipe the machine and install it", Waits: "until the installed system has phoned home, or a person is asked",
				Undo: "none: what was on the disk is gone", State: inventory.StepPending,
			})
		}
	}
	if err := r.say(ctx); err != nil {
		return err
	}
	row := 0
	for _, g := range groups {
		for range g {
			s := &r.record.Steps[row]
			row++
			if err := workflow.Await(ctx, func() bool { return r.busy < r.limit }); err != nil {
				return r.drain(ctx, err)
			}
			if bad := r.bad(); r.in.AbortAfter > 0 && bad >= r.in.AbortAfter {
				s.State, s.Message = inventory.StepSkipped, fmt.Sprintf("not begun: %d machines had gone wrong before its turn", bad)
				continue
			}
			r.busy++
			r.open++
			workflow.Go(ctx, func(ctx workflow.Context) {
				r.one(ctx, s)
				r.busy--
				r.open--
			})
		}
		if err := workflow.Await(ctx, func() bool { return r.open == 0 }); err != nil {
			return r.drain(ctx, err)
		}
	}
	// Who waited may have been answered meanwhile.
	for i := range r.record.Steps {
		if s := &r.record.Steps[i]; s.State == inventory.StepWaiting {
			r.open++
			workflow.Go(ctx, func(ctx workflow.Context) {
				r.again(ctx, s)
				r.open--
			})
		}
	}
	if err := workflow.Await(ctx, func() bool { return r.open == 0 }); err != nil {
		return r.drain(ctx, err)
	}
	return nil
}

// drain waits until each machine that was under way has ended, too.
func (r *recovery) drain(ctx workflow.Context, err error) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if e := workflow.Await(ctx, func() bool { return r.open == 0 }); e != nil {
		return e
	}
	return err
}

// one takes a machine to its outcome.
func (r *recovery) one(ctx workflow.Context, s *inventory.OperationStep) {
	s.State, s.Since = inventory.StepRunning, workflow.Now(ctx)
	r.note(ctx)
	in := ProvisionInput{Machine: s.Machine, Template: r.in.Template, Parent: r.record.ID}
	found, err := r.child(ctx, s, ReprovisionType, s.Machine, in, true)
	r.outcome(ctx, s, found, err)
}

// again looks once more at a machine that waited for a person: nothing is
// started, whatever has become of its run. One that asks still is left alone,
// also by a cancellation.
func (r *recovery) again(ctx workflow.Context, s *inventory.OperationStep) {
	forever := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 365 * 24 * time.Hour, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second},
	})
	var found activities.Outcome
	err := workflow.ExecuteActivity(forever, do.AwaitRun, activities.OutcomeRequest{Run: s.Run, Asking: true}).Get(ctx, &found)
	if err == nil {
		r.outcome(ctx, s, found, nil)
	}
}

// outcome writes down what has become of a machine.
func (r *recovery) outcome(ctx workflow.Context, s *inventory.OperationStep, found activities.Outcome, err error) {
	s.Message, s.Ended = found.Message, workflow.Now(ctx)
	switch {
	case err != nil:
		s.State, s.Message = inventory.StepFailed, cause(err)
		if temporal.IsCanceledError(err) {
			s.Message = "cancelled"
		}
	case found.State == inventory.StateSuccess:
		s.State = inventory.StepDone
	case inventory.Final(found.State):
		s.State = inventory.StepFailed
	default:
		s.State, s.Ended = inventory.StepWaiting, time.Time{}
	}
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	r.note(ctx)
}

// note is say where nothing can be done about its failure: the next record
// tells the same.
func (r *recovery) note(ctx workflow.Context) {
	if err := r.say(ctx); err != nil {
		r.log.Error("recording a recovery", "error", err)
	}
}

// counts returns how many machines are in each state of a step.
func (r *recovery) counts() map[string]int {
	n := map[string]int{}
	for _, s := range r.record.Steps {
		n[s.State]++
	}
	return n
}

// bad counts the machines that have gone wrong, or wait for a person.
func (r *recovery) bad() int {
	n := r.counts()
	return n[inventory.StepFailed] + n[inventory.StepWaiting]
}

// summary says how far the recovery is.
func (r *recovery) summary() string {
	n := r.counts()
	text := fmt.Sprintf("%d of %d machines installed", n[inventory.StepDone], len(r.record.Steps))
	for _, x := range []struct{ state, words string }{
		{inventory.StepRunning, "under way"},
		{inventory.StepPending, "to come"},
		{inventory.StepFailed, "failed"},
		{inventory.StepWaiting, "waiting for a person"},
		{inventory.StepSkipped, "not begun"},
	} {
		if n[x.state] > 0 {
			text += fmt.Sprintf(", %d %s", n[x.state], x.words)
		}
	}
	return text
}

func (r *recovery) say(ctx workflow.Context) error {
	return r.at(ctx, inventory.PhaseAction, "%s", r.summary())
}

// finish gives the record of a recovery that came to its end its final state.
func (r *recovery) finish(ctx workflow.Context) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	phase := inventory.PhaseDone
	r.record.State, r.record.Ended = inventory.StateSuccess, workflow.Now(ctx)
	if r.counts()[inventory.StepDone] < len(r.record.Steps) {
		phase, r.record.State = inventory.PhaseFailed, inventory.StateFailed
		r.record.Next = "ingot recover status " + r.in.Name
	}
	if err := r.final(ctx, phase, r.summary()); err != nil {
		return err
	}
	return workflow.Await(ctx, func() bool { return workflow.AllHandlersFinished(ctx) })
}

// result is what the workflow completes with.
func (r *recovery) result() Recovered {
	out := Recovered{State: r.record.State, Message: r.record.Message, Machines: []RecoveredMachine{}}
	for _, s := range r.record.Steps {
		m := RecoveredMachine{Machine: s.Machine, Run: s.Run, Message: s.Message, Outcome: OutcomeFailed}
		switch s.State {
		case inventory.StepDone:
			m.Outcome = OutcomeInstalled
		case inventory.StepWaiting:
			m.Outcome = OutcomeWaiting
		case inventory.StepPending, inventory.StepSkipped:
			m.Outcome = OutcomeNotBegun
		}
		out.Machines = append(out.Machines, m)
	}
	return out
}
