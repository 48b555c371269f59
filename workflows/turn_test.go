package workflows_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// turns is a machine of an operation together/pair: its task t2 waits for the task t1 of machine other.
type turns struct {
	*world
	in    contract.ProvisionInput
	run   string                               // of this machine
	asked []activities.TurnRequest             // attempts to wait
	wait  func() time.Duration                 // how long the other machine needs; nil: no time
	ready func(q activities.TurnRequest) error // the answer after that; nil: it is the turn
	waits int
	begun []time.Time // when actions of t2, and the reboot after them, were assigned
}

func newTurns(t *testing.T, w *world, run string) *turns {
	t.Helper()
	p := &turns{world: w, run: run, in: contract.ProvisionInput{
		Machine: machine, Template: "pair", HardwareMap: map[string]string{"device_1": machine, "device_2": "other"}, Parent: "together/pair",
	}}
	p.do.ProbeEvery = time.Millisecond
	p.template("")
	require.NoError(t, w.Store.Machines.PutMachines(t.Context(), []inventory.Machine{
		{Name: "other", Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:02"}}},
	}, true, "test"))
	p.operation(inventory.StateRunning, inventory.PhaseArm)
	p.other(inventory.StateRunning, action.Running)
	agent := p.agentFor
	p.agentFor = func(a inventory.Assignment) *action.Result {
		p.assigns(a)
		return agent(a)
	}
	p.parent = p.takesGrant
	return p
}

// newTurnsOf returns a machine whose run has the id that the test environment gives.
func newTurnsOf(t *testing.T) *turns {
	t.Helper()
	return newTurns(t, newWorld(t, nil), "default-test-run-id").scripted()
}

// scripted replaces the activity that waits by p.ready.
func (p *turns) scripted() *turns {
	p.env.OnActivity("AwaitTurn", mock.Anything, mock.Anything).Return(func(_ context.Context, q activities.TurnRequest) error {
		p.asked = append(p.asked, q)
		if p.ready != nil {
			return p.ready(q)
		}
		return nil
	}).AfterFn(func() time.Duration {
		p.waits++
		if p.wait == nil {
			return 0
		}
		return p.wait()
	}).Maybe()
	return p
}

func (p *turns) template(global string) {
	p.t.Helper()
	require.NoError(p.t, p.Store.Templates.PutTemplate(p.t.Context(), inventory.Template{Name: "pair", Source: `version: "0.1"
name: pair
` + global + `
tasks:
- {name: t0, worker: "{{.device_1}}", actions: [{name: a, image: noop, timeout: 60}]}
- {name: t1, worker: "{{.device_2}}", actions: [{name: b, image: noop, timeout: 60}]}
- {name: t2, worker: "{{.device_1}}", actions: [{name: c, image: noop, timeout: 600}, {name: d, image: noop, timeout: 60}]}
`}, "test"))
}

func (p *turns) operation(state, step string) {
	p.t.Helper()
	require.NoError(p.t, p.Store.Operations.PutOperation(p.t.Context(), inventory.Operation{
		Run: "o1", ID: "together/pair", Type: inventory.TypeTogether, Name: "pair", State: state, Step: step,
		Steps: []inventory.OperationStep{{Name: "other", Machine: "other", Run: "other-1"}, {Name: machine, Machine: machine, Run: p.run}},
	}))
}

func (p *turns) other(state string, t1 action.State) {
	p.t.Helper()
	require.NoError(p.t, p.Store.Workflows.PutWorkflow(p.t.Context(), inventory.Workflow{
		Run: "other-1", ID: "machine/other", Type: inventory.TypeProvision, Machine: "other", State: state, Epoch: 1,
		Updated: p.env.Now(), Message: "disk on fire", Actions: []inventory.ActionRecord{
			{Name: "b", Task: "t1", State: t1},
			{Name: "e", Task: "t3", State: action.Pending},
		},
	}))
}

// takesGrant takes the grants of the operation.
func (p *turns) takesGrant() {
	require.NoError(p.t, p.Store.Grants.TakeGrants(p.t.Context(), []inventory.Claimant{
		{Machine: machine, Run: p.run, Workflow: "machine/" + machine},
	}))
}

// assigns notes that an action is assigned.
func (p *turns) assigns(a inventory.Assignment) {
	if a.Key.Action > 0 {
		require.NotEmpty(p.t, p.asked, "a task is begun before its turn")
		p.begun = append(p.begun, p.env.Now())
	}
}

// never is longer than any run of these tests.
const never = 1000 * 24 * time.Hour

func after(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func (p *turns) messagesHave(text string) {
	p.t.Helper()
	require.Contains(p.t, p.messages, text)
}

// TestTogetherTaskWaitsForItsTurn uses the real activities. The run waits first for its grant and then for its turn (security S68).
func TestTogetherTaskWaitsForItsTurn(t *testing.T) {
	p := newTurns(t, newWorld(t, nil), "default-test-run-id")
	p.asked = []activities.TurnRequest{{}} // assigns checks the other machine instead
	looks := 0
	p.parent = func() {
		looks++
		g, err := p.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		switch {
		case looks < 5:
			require.Empty(t, g.Run, "the run takes no grant itself")
			require.Zero(t, p.cycles)
		case looks == 5:
			p.takesGrant()
			p.operation(inventory.StateRunning, inventory.PhaseAction)
		case len(p.assigned) == 1 && looks == 20:
			p.other(inventory.StateRunning, action.Success)
		}
	}
	p.agentFor = func(a inventory.Assignment) *action.Result {
		if w, err := p.Store.Workflows.Workflow(t.Context(), "other-1"); a.Key.Action > 0 {
			require.NoError(t, err)
			require.Equal(t, action.Success, w.Actions[0].State, "a task is begun before its turn")
			g, err := p.Store.Grants.Grant(t.Context(), machine)
			require.NoError(t, err)
			require.GreaterOrEqual(t, g.SecretsUntil.Sub(p.env.Now()), time.Hour, "the wait may have been longer than the window")
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, p.world.run(p.in))
	require.GreaterOrEqual(t, looks, 20)
	p.messagesHave(inventory.PhaseArm + ": waiting until all machines of together/pair are planned")
	p.messagesHave(inventory.PhaseAction + `: waiting for task "t1" of machine other`)
	require.Equal(t, inventory.StateSuccess, p.record().State)
	require.Equal(t, 1, p.cycles)
	p.closed()
}

// TestTogetherTurnIsAwaitedOnce: before the first action of the task, whatever happens in it.
func TestTogetherTurnIsAwaitedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		fails  int // the action that fails once
		choice string
		waits  int
	}{
		"nothing fails":                       {-1, "", 1},
		"retry of the first action":           {1, contract.Retry, 1},
		"retry of the second action":          {2, contract.Retry, 1},
		"restart in the task":                 {2, contract.Restart, 1},
		"restart before the task":             {0, contract.Restart, 1},
		"the first action of all is repeated": {0, contract.Retry, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTurnsOf(t)
			p.in.Policy = contract.Pause
			failed := false
			p.agentFor = func(a inventory.Assignment) *action.Result {
				p.assigns(a)
				if a.Key.Action == c.fails && !failed {
					failed = true
					return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
				}
				return &action.Result{Key: a.Key, State: action.Success}
			}
			p.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: c.choice} }
			require.NoError(t, p.world.run(p.in))
			require.Equal(t, c.waits, p.waits)
			q := p.asked[0]
			require.Equal(t, inventory.Turn{Task: "t2", Machine: "other", After: "t1"}, q.Turn)
			require.Equal(t, "together/pair", q.Parent)
			require.Equal(t, inventory.Owner{Machine: machine, Run: p.run, Epoch: q.Owner.Epoch}, q.Owner)
			require.Positive(t, q.Owner.Epoch)
			p.closed()
		})
	}
}

// TestTogetherGlobalTimeoutPassesInTheWait: a machine does not wait for ever.
func TestTogetherGlobalTimeoutPassesInTheWait(t *testing.T) {
	p := newTurnsOf(t)
	p.template("global_timeout: 7200")
	p.wait = after(never)
	began := p.env.Now()
	require.ErrorContains(t, p.world.run(p.in), "global timeout")
	require.Equal(t, inventory.StateTimeout, p.record().State)
	require.GreaterOrEqual(t, p.env.Now().Sub(began), 2*time.Hour)
	require.Empty(t, p.begun)
	require.Equal(t, "ingot together retry pair", p.record().Next)
	p.closed()

	// Without a limit, it waits as long as the other machine needs.
	p = newTurnsOf(t)
	p.template("global_timeout: 1000000")
	p.wait = after(7 * 24 * time.Hour)
	require.NoError(t, p.world.run(p.in))
	require.Len(t, p.begun, 3)
	require.GreaterOrEqual(t, p.begun[0].Sub(began), 7*24*time.Hour)
	p.closed()
}

func TestTogetherClaimConflictInTheWait(t *testing.T) {
	for choice, wrong := range map[string]string{contract.Restart: "", contract.Abort: "aborted by the operator"} {
		t.Run(choice, func(t *testing.T) {
			p := newTurnsOf(t)
			p.wait = func() time.Duration {
				if p.waits > 1 {
					return time.Minute
				}
				p.after(10*time.Minute, func() { p.signal(inventory.EventClaimConflict, 1, 1, nil) })
				return never
			}
			p.answer = func(q inventory.Question) *contract.Decision {
				require.Contains(t, q.Text, "another client presented this boot's claim")
				require.Empty(t, p.begun, "a task is begun before its turn")
				return &contract.Decision{Choice: choice}
			}
			err := p.world.run(p.in)
			require.Len(t, p.world.asked, 1)
			if wrong != "" {
				require.ErrorContains(t, err, wrong)
				require.Empty(t, p.begun)
			} else {
				require.NoError(t, err)
				require.Len(t, p.begun, 3)
				require.Equal(t, 2, p.waits)
				require.Equal(t, int64(2), p.asked[0].Owner.Epoch, "it waits again, under the new epoch")
				require.Equal(t, 2, p.record().Actions[0].Attempt)
			}
			p.closed()
		})
	}
}

// TestTogetherRunLosesItsMachineInTheWait: it does not wait for its turn before it notices that, and its operator is asked.
func TestTogetherRunLosesItsMachineInTheWait(t *testing.T) {
	for name, c := range map[string]struct {
		wait  time.Duration
		ready func(p *turns, q activities.TurnRequest) error
	}{
		"by a signal":     {wait: never},
		"by the activity": {ready: func(p *turns, q activities.TurnRequest) error { return p.do.AwaitTurn(t.Context(), q) }},
		"by a restore of the server": {ready: func(*turns, activities.TurnRequest) error {
			return temporal.NewNonRetryableApplicationError("this run began before the server was restored", activities.TypeHeld, nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTurnsOf(t)
			var taken inventory.Grant
			p.wait = func() time.Duration {
				var err error
				taken, err = p.Store.Grants.TakeGrant(t.Context(), machine, "job", "bmc/um760/off", true)
				require.NoError(t, err)
				if c.wait > 0 {
					p.after(time.Minute, func() { p.signal(inventory.EventFenced, 1, 1, nil) })
				}
				return c.wait
			}
			p.ready = func(q activities.TurnRequest) error { return c.ready(p, q) }
			require.ErrorContains(t, p.world.run(p.in), "aborted by the operator")
			require.Len(t, p.world.asked, 1)
			require.Equal(t, []string{contract.Abort}, p.world.asked[0].Choices)
			require.Empty(t, p.begun)
			g, err := p.Store.Grants.Grant(t.Context(), machine)
			require.NoError(t, err)
			require.Equal(t, taken.Owner, g.Owner, "the new owner keeps the machine")
		})
	}
}

func TestTogetherRunIsCancelledWhileItWaits(t *testing.T) {
	p := newTurnsOf(t)
	p.wait = func() time.Duration {
		p.after(time.Minute, p.env.CancelWorkflow)
		return never
	}
	err := p.world.run(p.in)
	require.True(t, temporal.IsCanceledError(err), "%v", err)
	require.Equal(t, inventory.StateCancelled, p.record().State)
	require.Empty(t, p.begun)
	p.closed()

	// While it waits for its grant, which the operation takes at the same moment.
	p = newTurnsOf(t)
	p.parent = func() {
		p.takesGrant()
		p.parent = nil
		p.env.CancelWorkflow()
	}
	err = p.world.run(p.in)
	require.True(t, temporal.IsCanceledError(err), "%v", err)
	require.Zero(t, p.cycles)
	p.closed()
}

// TestTogetherAgentIsLostInTheWait: that is noticed when the task is assigned. The machine is restarted, and the task is not awaited again.
func TestTogetherAgentIsLostInTheWait(t *testing.T) {
	p := newTurnsOf(t)
	p.wait = after(time.Hour)
	p.agentFor = func(a inventory.Assignment) *action.Result {
		p.assigns(a)
		if a.Key.Action > 0 && a.Boot == 1 {
			p.after(time.Minute, func() { p.signal(inventory.EventAgentLost, a.Epoch, a.Boot, &a.Key) })
			return nil
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, p.world.run(p.in))
	require.Equal(t, 2, p.cycles)
	rec := p.record()
	require.Equal(t, []int{1, 2, 1}, []int{rec.Actions[0].Attempt, rec.Actions[1].Attempt, rec.Actions[2].Attempt})
	require.Equal(t, 1, p.waits)
	p.closed()
}

// TestTogetherWaitFails: the other machine's run or the operation has ended.
func TestTogetherWaitFails(t *testing.T) {
	p := newTurnsOf(t)
	p.ready = func(q activities.TurnRequest) error {
		p.other(inventory.StateFailed, action.Failed)
		return p.do.AwaitTurn(t.Context(), q)
	}
	require.ErrorContains(t, p.world.run(p.in),
		`task "t2" was not begun: machine "other" ended as FAILED before its task "t1" was done: disk on fire`)
	rec := p.record()
	require.Equal(t, inventory.StateFailed, rec.State)
	require.Equal(t, action.Success, rec.Actions[0].State)
	require.Equal(t, action.Pending, rec.Actions[1].State)
	require.Equal(t, "ingot together retry pair", rec.Next)
	require.Empty(t, p.begun)
	p.closed()

	p = newTurnsOf(t)
	p.parent = func() { p.operation(inventory.StateFailed, inventory.PhaseFailed) }
	require.ErrorContains(t, p.world.run(p.in), "together/pair has ended, or did not start this run")
	require.Zero(t, p.cycles+p.offs, "the machine is touched")
	require.Zero(t, p.record().Epoch)
	p.closed()
}

// TestTogetherRetryWaitsForItsTurn: a run that continues a failed one waits before the action that failed.
func TestTogetherRetryWaitsForItsTurn(t *testing.T) {
	first := newWorld(t, nil)
	first.runID("r1")
	p := newTurns(t, first, "r1").scripted()
	p.agentFor = func(a inventory.Assignment) *action.Result {
		p.assigns(a)
		if a.Key.Action == 2 {
			return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.ErrorContains(t, p.world.run(p.in), "disk on fire")

	again := newTurns(t, first.another("r2"), "r2").scripted()
	again.in.Resume = "r1"
	again.wait = after(time.Hour)
	require.NoError(t, again.world.run(again.in))
	require.Len(t, again.begun, 2, "the actions before it are done")
	require.NotEmpty(t, again.asked)
	again.closed()
}

// TestTogetherUnwind makes the run fail at each of its outer calls in turn, as TestUnwind does.
func TestTogetherUnwind(t *testing.T) {
	for n := 1; ; n++ {
		p := newTurnsOf(t)
		p.failAt = n
		err := p.world.run(p.in)
		if !p.failing {
			require.NoError(t, err)
			require.Greater(t, n, 20, "a run makes more calls than that")
			return
		}
		g, e := p.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, e)
		require.False(t, g.NetbootOpen(p.env.Now()), "call %d fails: network boot is still allowed", n)
		require.Empty(t, g.Run, fmt.Sprintf("call %d fails: the grant is still held", n))
	}
}
