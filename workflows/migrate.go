package workflows

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// Names of the steps of Migrate.
const (
	stepPrecheck    = "precheck"
	stepImages      = "images"
	stepRelayAdd    = "relay-add"
	stepDrain       = "drain"
	stepHandOver    = "hand-over"
	stepRelayRemove = "relay-remove"
	stepVerify      = "verify"
)

// migration is a run of Migrate.
type migration struct {
	*operation
	in       MigrateInput
	attempts int
	moved    bool // past the commit point
	force    bool // a person's word: although runs are open
}

// Migrate moves the site to a peer that stands by, and goes on there itself.
// Until the target has activated it, which is one moment, everything can be
// taken back; after that there is only a migration back. The hand-over itself is
// the server's: whoever stops Temporal cannot be run by it. Its id is
// migrate/<name>.
func Migrate(ctx workflow.Context, in MigrateInput) error {
	o, err := newOperation(ctx, MigrateType, MigrateID(in.Name), in.Name, in)
	if err != nil {
		return err
	}
	m := &migration{operation: o, in: in}
	steps := m.steps()
	o.table(steps, nil)
	err = m.precheck(ctx)
	if err == nil {
		err = o.carryOut(ctx, steps, nil)
	}
	if err != nil && !m.moved {
		if e := o.rollBack(ctx, steps); e != nil {
			err = fmt.Errorf("%w; %w", err, e)
		}
	}
	return o.end(ctx, err)
}

func (m *migration) request() activities.MigrateRequest {
	return activities.MigrateRequest{Target: m.in.Target, ID: m.record.ID}
}

// precheck refuses at once: nobody is asked about a target that cannot take
// over.
func (m *migration) precheck(ctx workflow.Context) error {
	if m.in.Target == "" {
		return temporal.NewNonRetryableApplicationError("target: name a peer (ingot peer list)", activities.TypeInvalid, nil)
	}
	if err := m.at(ctx, stepPrecheck, "asking %s whether it could take over", m.in.Target); err != nil {
		return err
	}
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, planning), do.CheckTarget, m.request()).Get(ctx, nil)
}

func (m *migration) steps() []step {
	target := m.in.Target
	run := func(ctx workflow.Context, o workflow.ActivityOptions, activity any, args ...any) error {
		return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), activity, args...).Get(ctx, nil)
	}
	relay := func(ctx workflow.Context, row *inventory.OperationStep, q activities.RelaySwitchRequest) error {
		if m.in.Genesis == "" {
			row.Message = "no lab file names a router: its relay is yours to change"
			return nil
		}
		q.Genesis = m.in.Genesis
		q.Target = target
		var there bool
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, switching), do.RelaySwitch, q).Get(ctx, &there)
		if err == nil && !there {
			row.Message = "the lab has no router"
		}
		return err
	}
	return []step{
		{
			name: stepPrecheck, budget: 5 * time.Minute, must: true,
			does:   fmt.Sprintf("Asks %s whether it could take over: the same version, room, its ports free, a standby that owns no site epoch.", target),
			undoes: "none: it only asks",
			do: func(ctx workflow.Context, _ *inventory.OperationStep) error {
				return run(ctx, planning, do.CheckTarget, m.request())
			},
		},
		{
			name: stepImages, budget: 12 * time.Hour,
			does:   fmt.Sprintf("Copies the images that %s lacks, by digest, while everything goes on.", target),
			undoes: "none: they lie there and do no harm",
			do: func(ctx workflow.Context, row *inventory.OperationStep) error {
				sent := 0
				err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, long), do.SyncImages, m.request()).Get(ctx, &sent)
				if err == nil {
					row.Message = fmt.Sprintf("%d sent, the others were there", sent)
				}
				return err
			},
		},
		{
			name: stepRelayAdd, budget: 10 * time.Minute,
			does:   fmt.Sprintf("Lists %s in the router's DHCP relay, beside this server; a standby does not answer.", target),
			undoes: "removes that line",
			do: func(ctx workflow.Context, row *inventory.OperationStep) error {
				return relay(ctx, row, activities.RelaySwitchRequest{Listed: true})
			},
			undo: func(ctx workflow.Context) error {
				return relay(ctx, &inventory.OperationStep{}, activities.RelaySwitchRequest{})
			},
		},
		{
			name: stepDrain, budget: 2 * time.Hour,
			does: "Refuses new runs, and lets those under way end.", waits: "until no run of a machine is open, or a person says that it moves although some are",
			undoes: "takes new runs again",
			do: func(ctx workflow.Context, _ *inventory.OperationStep) error {
				return run(ctx, quick, do.CloseIntake, m.request())
			},
			ready: func(ctx workflow.Context, within time.Duration) error { return m.drained(ctx, within) },
			undo:  func(ctx workflow.Context) error { return run(ctx, quick, do.OpenIntake) },
		},
		{
			name: stepHandOver, budget: 30 * time.Minute, must: true,
			does:   fmt.Sprintf("Moves the site to %s: this server falls silent, its databases and keys are sent and proven, and %s activates them, which is the commit point.", target, target),
			undoes: "before the commit point: the target refuses the hand-over for ever and this server goes on; after it: none, there is only a migration back",
			do:     m.handOver,
		},
		{
			name: stepRelayRemove, budget: 10 * time.Minute,
			does:   "Removes the retired server from the router's DHCP relay.",
			undoes: "none: the server there is retired and answers nobody",
			do: func(ctx workflow.Context, row *inventory.OperationStep) error {
				return relay(ctx, row, activities.RelaySwitchRequest{Source: true})
			},
		},
		{
			name: stepVerify, budget: 10 * time.Minute,
			does:   "Looks at the site where it has come to: its keys open, machines can be booted, the BMCs answer.",
			undoes: "none: it only looks",
			do: func(ctx workflow.Context, row *inventory.OperationStep) error {
				var notes []string
				err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, patient), do.VerifyMoved).Get(ctx, &notes)
				row.Message = strings.Join(notes, "; ")
				return err
			},
		},
	}
}

// long is for activities that take hours, heartbeat, and go on where they broke off.
var long = workflow.ActivityOptions{
	StartToCloseTimeout: 365 * 24 * time.Hour, HeartbeatTimeout: 30 * time.Second,
	RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second},
}

// following is long for what is cut off when the site moves: it begins anew soon.
var following = workflow.ActivityOptions{
	StartToCloseTimeout: 365 * 24 * time.Hour, HeartbeatTimeout: 10 * time.Second,
	RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 5 * time.Second},
}

// switching is for the relay: a router that does not answer is a matter for a
// person in the end.
var switching = workflow.ActivityOptions{
	ScheduleToCloseTimeout: 10 * time.Minute, HeartbeatTimeout: 30 * time.Second,
	RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second},
}

// drained waits until no run of a machine is open. Meanwhile a person may say
// that the site moves although some are: they go on where it has moved to.
func (m *migration) drained(ctx workflow.Context, within time.Duration) error {
	open, err := m.openRuns(ctx)
	if err != nil || len(open) == 0 {
		return err
	}
	waiting, stop := workflow.WithCancel(ctx)
	defer stop()
	empty := workflow.ExecuteActivity(workflow.WithActivityOptions(waiting, workflow.ActivityOptions{
		ScheduleToCloseTimeout: within, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second},
	}), do.AwaitDrained)
	d, err := m.unless(ctx, empty, stepDrain, fmt.Sprintf("runs are open: %s. Their end is awaited; skip moves the site although they are, and they go on there", strings.Join(open, ", ")), Skip, Abort)
	switch {
	case err != nil:
		return err
	case d != nil && d.Choice == Skip:
		m.force = true
		return nil
	case d != nil:
		return errAborted
	}
	if err := empty.Get(ctx, nil); err == nil || temporal.IsCanceledError(err) {
		return err
	}
	if open, err = m.openRuns(ctx); err != nil || len(open) == 0 {
		return err
	}
	return fmt.Errorf("runs are open: %s; retry waits on, skip moves although they are", strings.Join(open, ", "))
}

func (m *migration) openRuns(ctx workflow.Context) (open []string, err error) {
	err = workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), do.OpenRuns).Get(ctx, &open)
	return open, err
}

// unless shows a question for as long as something is awaited; nil is nobody's
// answer.
func (m *migration) unless(ctx workflow.Context, until workflow.Future, step, text string, choices ...string) (*Decision, error) {
	m.asked++
	id := fmt.Sprintf("%s.%d", step, m.asked)
	m.decision = nil
	m.record.Question = &inventory.Question{ID: id, Text: text, Choices: choices, Since: workflow.Now(ctx)}
	m.record.Next = fmt.Sprintf("ingot operation decide %s --question %s --choice %s", m.record.ID, id, choices[0])
	if err := m.write(ctx); err != nil {
		return nil, err
	}
	if err := workflow.Await(ctx, func() bool { return m.decision != nil || until.IsReady() }); err != nil {
		return nil, err
	}
	d := m.decision
	m.decision, m.record.Question, m.record.Next = nil, nil, ""
	if d != nil {
		return d, m.commit(ctx)
	}
	return nil, m.write(ctx)
}

// handOver writes the wish and waits. The wait may begin here and end where the
// site has moved to.
func (m *migration) handOver(ctx workflow.Context, row *inventory.OperationStep) error {
	m.attempts++
	// A reset from outside changes the run id, and must not move the site again.
	run := cmp.Or(workflow.GetInfo(ctx).FirstRunID, m.record.Run)
	h := inventory.HandOver{ID: fmt.Sprintf("%s-%d", run, m.attempts), Target: m.in.Target, Force: m.force}
	for _, r := range m.record.Steps {
		h.Force = h.Force || r.Name == stepDrain && r.State == inventory.StepSkipped
	}
	// A drain that was undone meanwhile.
	if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), do.CloseIntake, m.request()).Get(ctx, nil); err != nil {
		return err
	}
	var out activities.HandedOver
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), do.RequestHandOver, h).Get(ctx, nil)
	if err == nil {
		err = workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, following), do.AwaitHandOver, h.ID).Get(ctx, &out)
	}
	cancelled := temporal.IsCanceledError(err)
	if cancelled {
		// It may have happened: what is told next says so.
		rest, done := workflow.NewDisconnectedContext(ctx)
		defer done()
		if err := workflow.ExecuteActivity(workflow.WithActivityOptions(rest, quick), do.WithdrawHandOver, h.ID).Get(rest, nil); err != nil {
			return err
		}
		if err := workflow.ExecuteActivity(workflow.WithActivityOptions(rest, following), do.AwaitHandOver, h.ID).Get(rest, &out); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	m.moved = out.Moved
	switch {
	case m.moved && cancelled:
		row.Message = "the site had moved before it was cancelled"
		return err
	case m.moved:
		row.Message = "the site is " + m.in.Target
		return nil
	case cancelled:
		return err
	}
	return fmt.Errorf("the site was not moved: %s", out.Why)
}
