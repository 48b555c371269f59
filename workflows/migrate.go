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
	"github.com/ingotmetal/ingot/workflows/contract"
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
	in       contract.MigrateInput
	attempts int
	moved    bool // the target has become the active server
	force    bool // the operator has decided to move although runs are open
}

// Migrate makes a standby peer, the target, the active server, and continues there. The target activates the data that it has
// received in one atomic step. Until then, every step can be undone; afterwards, only a migration back helps. The server process
// does the hand-over itself, because the hand-over stops Temporal and with it every activity. The workflow id is migrate/<name>.
func Migrate(ctx workflow.Context, in contract.MigrateInput) error {
	o, err := newOperation(ctx, inventory.TypeMigrate, contract.MigrateID(in.Name), in.Name, in)
	if err != nil {
		return err
	}

	m := &migration{operation: o, in: in}
	steps := m.steps()
	o.recordTable(steps, nil)
	err = m.precheck(ctx)
	if err == nil {
		err = o.runSteps(ctx, steps, nil)
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

// precheck returns an error if the target cannot take over; it does not ask the operator.
func (m *migration) precheck(ctx workflow.Context) error {
	if err := invalid(m.in.Validate()); err != nil {
		return err
	}
	if err := m.showStep(ctx, stepPrecheck, "asking %s whether it can take over", m.in.Target); err != nil {
		return err
	}
	return execute(ctx, planning, nil, do.CheckTarget, m.request())
}

func (m *migration) steps() []step {
	target := m.in.Target

	return []step{
		{
			name: stepPrecheck, budget: 5 * time.Minute, must: true,
			does: fmt.Sprintf("Checks that %s can take over: the same version, enough space, free ports, and a standby that "+
				"owns no site epoch.", target),
			undoes: "none: this step only asks",
			do: func(ctx workflow.Context, _ *inventory.OperationStep) error {
				return execute(ctx, planning, nil, do.CheckTarget, m.request())
			},
		},
		{
			name: stepImages, budget: 12 * time.Hour,
			does:   fmt.Sprintf("Copies the images that %s lacks, by digest, while this server goes on working.", target),
			undoes: "none: the copied images do no harm",
			do: func(ctx workflow.Context, row *inventory.OperationStep) error {
				sent := 0
				err := execute(ctx, outside, &sent, do.SyncImages, m.request())
				if err == nil {
					row.Message = fmt.Sprintf("%d sent; the target already had the others", sent)
				}
				return err
			},
		},
		{
			name: stepRelayAdd, budget: 10 * time.Minute,
			does:   fmt.Sprintf("Adds %s to the router's DHCP relay, next to this server; as a standby, it does not answer.", target),
			undoes: "removes that entry",
			do: func(ctx workflow.Context, row *inventory.OperationStep) error {
				return m.switchRelay(ctx, row, activities.RelaySwitchRequest{Listed: true})
			},
			undo: func(ctx workflow.Context) error {
				return m.switchRelay(ctx, &inventory.OperationStep{}, activities.RelaySwitchRequest{})
			},
		},
		{
			name: stepDrain, budget: 2 * time.Hour,
			does:   "Refuses new runs, and waits until open runs have ended.",
			waits:  "until no machine has an open run, or the operator moves the site with open runs",
			undoes: "accepts new runs again",
			do: func(ctx workflow.Context, _ *inventory.OperationStep) error {
				return execute(ctx, quick, nil, do.CloseIntake, m.request())
			},
			ready: m.awaitDrained,
			undo:  func(ctx workflow.Context) error { return execute(ctx, quick, nil, do.OpenIntake) },
		},
		{
			name: stepHandOver, budget: 30 * time.Minute, must: true,
			does: fmt.Sprintf("Moves the site to %s: this server stops answering, its databases and keys are sent and verified, "+
				"and %s activates them, which is the commit point.", target, target),
			undoes: "before the commit point: the target permanently refuses the hand-over, and this server goes on working; " +
				"after the commit point: none, only a migration back",
			do: m.moveSite,
		},
		{
			name: stepRelayRemove, budget: 10 * time.Minute,
			does:   "Removes the retired server from the router's DHCP relay.",
			undoes: "none: the removed server is retired and answers no one",
			do: func(ctx workflow.Context, row *inventory.OperationStep) error {
				return m.switchRelay(ctx, row, activities.RelaySwitchRequest{Source: true})
			},
		},
		{
			name: stepVerify, budget: 10 * time.Minute,
			does:   "Checks the moved site: the new server can read its keys and boot machines, and the BMCs answer.",
			undoes: "none: this step only checks",
			do: func(ctx workflow.Context, row *inventory.OperationStep) error {
				var notes []string
				err := execute(ctx, patient, &notes, do.VerifyMoved)
				row.Message = strings.Join(notes, "; ")
				return err
			},
		},
	}
}

// switchRelay sets the servers in the DHCP relay of the lab's router. If no lab file names a router, switchRelay only notes in row
// that the operator must change the relay.
func (m *migration) switchRelay(
	ctx workflow.Context, row *inventory.OperationStep, q activities.RelaySwitchRequest,
) error {
	if m.in.Genesis == "" {
		row.Message = "no lab file names a router: change the router's DHCP relay by hand"
		return nil
	}

	q.Genesis, q.Target = m.in.Genesis, m.in.Target
	var there bool
	err := execute(ctx, switching, &there, do.RelaySwitch, q)
	if err == nil && !there {
		row.Message = "the lab has no router"
	}
	return err
}

// awaitDrained waits until no machine has an open run. The operator may decide not to wait; open runs then
// continue at the target.
func (m *migration) awaitDrained(ctx workflow.Context, within time.Duration) error {
	open, err := m.openRuns(ctx)
	if err != nil || len(open) == 0 {
		return err
	}

	waiting, stop := workflow.WithCancel(ctx)
	defer stop()
	options := workflow.ActivityOptions{
		ScheduleToCloseTimeout: within, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryForever,
	}
	empty := workflow.ExecuteActivity(workflow.WithActivityOptions(waiting, options), do.AwaitDrained)
	text := fmt.Sprintf("runs are open: %s. The site moves when these runs have ended; skip moves it now, and the runs continue on the target",
		strings.Join(open, ", "))
	p := m.newPrompt(ctx, stepDrain, text, []string{contract.Skip, contract.Abort})
	p.withdrawn = empty.IsReady
	switch d, err := m.ask(ctx, p); {
	case err != nil:
		return err
	case d != nil:
		m.force = true
		return nil
	}

	if err := empty.Get(ctx, nil); err == nil || temporal.IsCanceledError(err) {
		return err
	}

	if open, err = m.openRuns(ctx); err != nil || len(open) == 0 {
		return err
	}
	return fmt.Errorf("runs are open: %s; retry waits longer, skip moves the site with open runs", strings.Join(open, ", "))
}

func (m *migration) openRuns(ctx workflow.Context) (open []string, err error) {
	err = execute(ctx, quick, &open, do.OpenRuns)
	return open, err
}

// moveSite requests the hand-over from the server process and waits for its result. The wait may begin on this
// server and end at the target.
func (m *migration) moveSite(ctx workflow.Context, row *inventory.OperationStep) error {
	m.attempts++
	// The id of the hand-over contains the first run id, which a reset does not change. A repeated request is therefore recognized.
	run := cmp.Or(workflow.GetInfo(ctx).FirstRunID, m.record.Run)
	h := inventory.HandOver{ID: fmt.Sprintf("%s-%d", run, m.attempts), Target: m.in.Target, Force: m.force}
	for _, r := range m.record.Steps {
		h.Force = h.Force || r.Name == stepDrain && r.State == inventory.StepSkipped
	}

	// The operator may have undone the drain, and so have allowed new runs again.
	if err := execute(ctx, quick, nil, do.CloseIntake, m.request()); err != nil {
		return err
	}

	var out activities.HandedOver
	err := execute(ctx, quick, nil, do.RequestHandOver, h)
	if err == nil {
		err = execute(ctx, following, &out, do.AwaitHandOver, h.ID)
	}

	cancelled := temporal.IsCanceledError(err)
	switch {
	case cancelled:
		// The hand-over may have succeeded despite the cancellation: ask the server.
		rest, done := workflow.NewDisconnectedContext(ctx)
		defer done()
		if err := execute(rest, quick, nil, do.WithdrawHandOver, h.ID); err != nil {
			return err
		}
		if err := execute(rest, following, &out, do.AwaitHandOver, h.ID); err != nil {
			return err
		}
	case err != nil:
		return err
	}

	m.moved = out.Moved
	switch {
	case m.moved && cancelled:
		row.Message = "the site had already moved when the migration was cancelled"
		return err
	case m.moved:
		row.Message = "the site is " + m.in.Target
		return nil
	case cancelled:
		return err
	}
	return fmt.Errorf("the site was not moved: %s", out.Why)
}
