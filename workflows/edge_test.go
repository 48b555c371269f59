package workflows_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestUnreadableSignalIsIgnored: a client that reaches Temporal can send anything,
// including an operator's typing error.
func TestUnreadableSignalIsIgnored(t *testing.T) {
	w := newWorld(t, nil)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		w.after(100*time.Millisecond, func() { w.env.SignalWorkflow(workflows.SignalDecide, "retry") })
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Less(t, w.record().Actions[0].Seconds, time.Minute.Seconds(), "the report waited for the deadline")
	require.Equal(t, 1, w.cycles)
	w.closed()
}

// TestHelloInTheSameTaskAsTheDeadlineCounts: the hello arrives in the same workflow task as
// the evidence of a silent agent.
func TestHelloInTheSameTaskAsTheDeadlineCounts(t *testing.T) {
	w := newWorld(t, nil)
	w.noAgent = func(boot int) bool { return boot == 1 }
	w.waiting = func() {
		w.waiting = nil
		g, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		h := action.Hello{Machine: machine, Nonce: "late", MAC: mac, Facts: action.Facts{Disks: w.disks}}
		_, err = w.Store.Agents.Redeem(
			t.Context(),
			inventory.Redemption{
				Owner:        g.Owner,
				Boot:         g.Boot,
				Hello:        h,
				TokenFor:     func(n string) string { return n },
				SecretsUntil: w.env.Now().Add(time.Hour),
			},
		)
		require.NoError(t, err)
		w.env.SignalWorkflowSkippingWorkflowTask(workflows.SignalEvent, workflows.Event{Kind: inventory.EventHello, Epoch: g.Epoch, Boot: g.Boot})
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, w.cycles, "the machine was switched off under its agent")
	w.closed()
}

func TestClaimConflictStartsTheMachineOnce(t *testing.T) {
	w := newWorld(t, nil)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 0 && a.Key.Attempt == 1 {
			w.after(time.Minute, func() { w.signal(inventory.EventClaimConflict, a.Epoch, a.Boot, nil) })
			return nil
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Restart} }
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Len(t, w.asked, 1)
	require.Equal(t, 2, w.cycles)
	w.closed()
}

func TestAgentThatFindsNoRowGetsItAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 0 && len(w.assigned) == 1 { // as if its row had been lost
			w.after(time.Minute, func() { w.signal(inventory.EventAgentIdle, a.Epoch, a.Boot, nil) })
			return nil
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, w.assigned[0], w.assigned[1])
	require.Less(t, w.record().Actions[0].Seconds, (5 * time.Minute).Seconds())
	w.closed()
}

// loses makes the agent fall silent in its first attempt at an action.
func (w *world) loses(index int, then func(a inventory.Assignment)) {
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == index && a.Key.Attempt == 1 {
			w.after(2*time.Minute, func() {
				w.signal(inventory.EventAgentLost, a.Epoch, a.Boot, &a.Key)
				then(a)
			})
			return nil
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
}

func TestReportOfReturningAgentCounts(t *testing.T) {
	w := newWorld(t, nil)
	w.loses(0, func(a inventory.Assignment) {
		w.after(30*time.Second, func() { w.reports(a, action.Result{Key: a.Key, State: action.Success}) })
	})
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, w.record().Actions[0].Attempt)
	require.Equal(t, 1, w.cycles)
	w.closed()
}

func TestCancelWhileASilentAgentIsStoppedTakesThePower(t *testing.T) {
	w := newWorld(t, nil)
	w.loses(0, func(inventory.Assignment) { w.after(20*time.Second, w.env.CancelWorkflow) })
	err := w.run(contract.ProvisionInput{Machine: machine})
	require.True(t, temporal.IsCanceledError(err), "%v", err)
	require.False(t, w.on, "the agent may still be writing")
	w.closed()
}

// TestTheBoundDiskStaysBound: a selector that fits another disk after a reboot
// must not spread one installation over two disks.
func TestTheBoundDiskStaysBound(t *testing.T) {
	w := newWorld(t, func(m *inventory.Machine) { m.DiskSelector = &inventory.DiskSelector{Model: "X"} })
	w.disks = []action.Disk{{Path: "/dev/vda", Serial: "D1", Model: "X", Size: 1 << 30}}
	w.loses(1, func(inventory.Assignment) {
		w.disks = []action.Disk{{Path: "/dev/vda", Serial: "D2", Model: "X", Size: 1 << 30}}
	})
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted by the operator")
	require.Len(t, w.asked, 1)
	require.Contains(t, w.asked[0].Text, "no disk matches")
	require.Len(t, w.assigned, 2, "nothing was handed out for the other disk")
	w.closed()
}

func TestEachQuestionAboutDisksHasItsOwnName(t *testing.T) {
	w := newWorld(t, nil)
	w.loses(0, func(inventory.Assignment) { w.disks = nil })
	w.disks = append(w.disks, action.Disk{Path: "/dev/vdb", Serial: "D2", Size: 1 << 30, Blank: true})
	w.answer = func(inventory.Question) *contract.Decision {
		if len(w.asked) == 1 {
			return &contract.Decision{Choice: contract.Retry, DiskSelector: &inventory.DiskSelector{Serial: "D2"}}
		}
		return &contract.Decision{Choice: contract.Abort}
	}
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted by the operator")
	require.Len(t, w.asked, 2)
	require.NotEqual(t, w.asked[0].ID, w.asked[1].ID)
	w.closed()
}

// TestWindowIsOpenAfterOperatorHelped: the window is closed while an operator is asked
// about the BMC, and the next boot needs it open.
func TestWindowIsOpenAfterOperatorHelped(t *testing.T) {
	w := newWorld(t, nil)
	w.noPXE = inventory.ErrUnsupported
	w.answer = func(inventory.Question) *contract.Decision {
		w.noPXE = nil
		return &contract.Decision{Choice: contract.Retry}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Len(t, w.asked, 1)
	require.Equal(t, 1, w.cycles, "the first boot found its window closed")
	w.closed()
}

// TestResumeWritesTheSeedAgain: the seed has the nonce and URLs of the run that wrote it,
// which are no longer valid.
func TestResumeWritesTheSeedAgain(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	first, err := w.do.Plan(ctx, activities.PlanRequest{Run: "r1", Machine: machine})
	require.NoError(t, err)
	require.Len(t, first.Actions, 3)
	require.NoError(t, w.Store.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "r1", Machine: machine, State: inventory.StateFailed,
		Actions: []inventory.ActionRecord{{State: action.Success}, {State: action.Success}, {State: action.Failed}},
	}))
	again, err := w.do.Plan(ctx, activities.PlanRequest{Run: "r2", Machine: machine, Resume: "r1"})
	require.NoError(t, err)
	require.Equal(t, 1, again.From)
}

// TestResumeAsksWhenTheSelectorNamesAnotherDisk: the operator has corrected the selector
// since.
func TestResumeAsksWhenTheSelectorNamesAnotherDisk(t *testing.T) {
	w := newWorld(t, func(m *inventory.Machine) { m.DiskSelector = &inventory.DiskSelector{Serial: "D2"} })
	ctx := t.Context()
	g, err := w.Store.Grants.TakeGrant(ctx, machine, "r2", workflows.MachineID(machine), false)
	require.NoError(t, err)
	_, err = w.Store.Grants.AllowBoot(ctx, g.Owner, 1, time.Now().Add(time.Hour))
	require.NoError(t, err)
	d1, d2 := action.Disk{Serial: "D1", Size: 1}, action.Disk{Serial: "D2", Size: 1}
	h := action.Hello{Machine: machine, Nonce: "n", Facts: action.Facts{Disks: []action.Disk{d1, d2}}}
	_, err = w.Store.Agents.Redeem(
		ctx,
		inventory.Redemption{
			Owner:        g.Owner,
			Boot:         1,
			Hello:        h,
			TokenFor:     func(n string) string { return n },
			SecretsUntil: time.Now().Add(time.Hour),
		},
	)
	require.NoError(t, err)
	require.NoError(t, w.Store.Plans.PutPlan(ctx, inventory.Plan{Run: "r2"}))
	b, err := w.do.Bind(ctx, activities.BindRequest{Owner: g.Owner, Disk: &d1})
	require.NoError(t, err)
	require.Nil(t, b.Disk)
	require.Contains(t, b.Reason, "does not match the machine's disk selector")
	b, err = w.do.Bind(ctx, activities.BindRequest{Owner: g.Owner, Disk: &d2})
	require.NoError(t, err)
	require.Equal(t, "D2", b.Disk.Serial)
}

// TestRetriedFailuresAreRecorded: includes local activities, which Temporal does not
// show.
func TestRetriedFailuresAreRecorded(t *testing.T) {
	w := newWorld(t, nil)
	troubles := activities.NewTroubles(time.Now)
	w.env.Intercept(troubles)
	const run = "default-test-run-id"
	var seen [][]string
	w.full = func() error {
		seen = append(seen, troubles.Of(run))
		if len(seen) < 4 {
			return errors.New("database or disk is full")
		}
		return nil
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Empty(t, seen[0])
	require.Equal(t, []string{"Record failed 1 times: database or disk is full"}, seen[1])
	require.Equal(t, []string{"Record failed 3 times: database or disk is full"}, seen[3])
	require.Empty(t, seen[4], "it worked")
	require.Empty(t, troubles.Of(run))
	w.untouched()
}
