package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func TestProvision(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	rec := w.record()
	require.Equal(t, inventory.StateSuccess, rec.State)
	require.Equal(t, inventory.PhaseDone, rec.Phase)
	require.Equal(t, "D1", rec.Disk.Serial)
	require.Equal(t, "phone-home", rec.Evidence)
	for _, a := range rec.Actions {
		require.Equal(t, action.Success, a.State, a.Name)
		require.Positive(t, a.Timeout)
	}
	require.Equal(t, 1, w.cycles)
	w.closed()
}

func TestAnotherWorkflowIDTouchesNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: "machine/other", TaskQueue: workflows.TaskQueue})
	w.env.ExecuteWorkflow(workflows.Provision, contract.ProvisionInput{Machine: machine})
	require.ErrorContains(t, w.env.GetWorkflowError(), `must run under the id "machine/um760"`)
	require.Zero(t, w.calls)
	require.Zero(t, w.cycles)
	g, err := w.Store.Grants.Grant(t.Context(), machine)
	require.NoError(t, err)
	require.Zero(t, g.Epoch)
}

func TestFailingActionEndsTheRunAndResumes(t *testing.T) {
	w := newWorld(t, nil)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 1 {
			return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire", Log: "smoke"}
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "disk on fire")
	rec := w.record()
	require.Equal(t, inventory.StateFailed, rec.State)
	require.Contains(t, rec.Message, "disk on fire")
	require.Equal(t, action.Failed, rec.Actions[1].State)
	w.closed()
}

func TestRetriesFromFailedStep(t *testing.T) {
	w := newWorld(t, nil)
	tries := 0
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 1 {
			if tries++; tries == 1 {
				return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
			}
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Retries: contract.Retries{Count: 1}}))
	rec := w.record()
	require.Equal(t, 2, rec.Actions[1].Attempt)
	require.Equal(t, 1, rec.Actions[0].Attempt)
	require.Equal(t, 1, w.cycles)
	w.closed()
}

func TestRetriesFromStart(t *testing.T) {
	w := newWorld(t, nil)
	tries := 0
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 1 {
			if tries++; tries == 1 {
				return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
			}
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Retries: contract.Retries{Count: 1, From: "start"}}))
	require.Equal(t, 2, w.record().Actions[0].Attempt)
	require.Equal(t, 2, w.cycles)
	w.closed()
}

func TestAgentLostInAnActionIsTriedAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 0 && a.Key.Attempt == 1 {
			w.after(10*time.Minute, func() { w.signal(inventory.EventAgentLost, a.Epoch, a.Boot, &a.Key) })
			return nil
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	rec := w.record()
	require.Equal(t, 2, rec.Actions[0].Attempt)
	require.Equal(t, 2, w.cycles)
	w.closed()
}

// TestBootsAreCountedPerRun: agents that are lost after their hello use up boots, too, and the run
// asks an operator instead of failing.
func TestBootsAreCountedPerRun(t *testing.T) {
	w := newWorld(t, nil)
	tries := 0
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 1 {
			if tries++; tries <= inventory.MaxBoots {
				return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
			}
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Retry} }
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Retries: contract.Retries{Count: inventory.MaxBoots, From: "start"}}))
	require.Equal(t, inventory.MaxBoots+1, w.cycles)
	require.Len(t, w.asked, 1)
	w.closed()
}

func TestActionTimeoutWithALivingAgentStopsIt(t *testing.T) {
	w := newWorld(t, nil)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 0 { // sends heartbeats, but never ends
			var beat func()
			beat = func() {
				if w.env.IsWorkflowCompleted() {
					return
				}
				w.hear(a.Boot)
				if stops, err := w.Store.Assignments.Stops(context.Background(), a.Owner); err == nil && len(stops) > 0 {
					w.reports(a, action.Result{Key: a.Key, State: action.Stopped})
					return
				}
				w.after(10*time.Second, beat)
			}
			w.after(10*time.Second, beat)
			return nil
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	err := w.run(contract.ProvisionInput{Machine: machine})
	require.ErrorContains(t, err, "did not end within its timeout")
	require.Equal(t, inventory.StateTimeout, w.record().State)
	require.True(t, w.on, "the agent stopped on its own; its power must stay")
	w.closed()
}

func TestCancelStopsTheAgentAndCloses(t *testing.T) {
	w := newWorld(t, nil)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		w.after(time.Minute, w.env.CancelWorkflow)
		return nil // ignores the order to stop: the power is cut
	}
	err := w.run(contract.ProvisionInput{Machine: machine})
	require.True(t, temporal.IsCanceledError(err), "%v", err)
	require.Equal(t, inventory.StateCancelled, w.record().State)
	require.False(t, w.on)
	w.closed()
}

func TestTwoDisksAskOperator(t *testing.T) {
	w := newWorld(t, nil)
	w.disks = append(w.disks, action.Disk{Path: "/dev/vdb", Serial: "D2", Size: 1 << 30, Blank: true})
	w.answer = func(q inventory.Question) *contract.Decision {
		require.Len(t, q.Disks, 2)
		g, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		require.False(t, g.NetbootOpen(w.env.Now()), "the window is closed while an operator is awaited")
		return &contract.Decision{Choice: contract.Retry, DiskSelector: &inventory.DiskSelector{Serial: "D2"}}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, "D2", w.record().Disk.Serial)
	w.closed()
}

func TestRefusingBMCAsksOperator(t *testing.T) {
	w := newWorld(t, nil)
	w.bmcDown = inventory.ErrRefused
	w.answer = func(inventory.Question) *contract.Decision {
		w.bmcDown = nil
		return &contract.Decision{Choice: contract.Retry}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Len(t, w.asked, 1)
	w.closed()
}

func TestManualPowerContinuesOnSignal(t *testing.T) {
	w := newWorld(t, func(m *inventory.Machine) { m.BMC = nil })
	w.after(3*time.Hour, func() {
		g, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		require.True(t, g.NetbootOpen(w.env.Now()), "with manual power the window stays open")
		w.env.SignalWorkflow(workflows.SignalPoweredOn, nil)
		w.after(time.Minute, w.boots)
	})
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	w.closed()
}

func TestDecisionAnswersOneQuestion(t *testing.T) {
	w := newWorld(t, nil)
	w.disks = nil
	w.answer = func(q inventory.Question) *contract.Decision {
		w.after(time.Minute, func() { // for a question that does not exist
			w.env.SignalWorkflow(workflows.SignalDecide, contract.Decision{Question: "9.bind.9", Choice: contract.Abort})
		})
		w.disks = []action.Disk{{Path: "/dev/vda", Serial: "D1", Size: 1 << 30, Blank: true}}
		return &contract.Decision{Choice: contract.Abort}
	}
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted by the operator")
	w.closed()
}

// TestUnwind makes the run fail at each of its outer calls in turn, after the call took effect. The
// machine's windows must always be closed afterwards, unless closing them is the call that fails.
func TestUnwind(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t, nil)
		w.failAt = n
		err := w.run(contract.ProvisionInput{Machine: machine})
		if !w.failing {
			require.NoError(t, err)
			require.Greater(t, n, 20, "a run makes more calls than that")
			return
		}
		g, e := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, e)
		require.False(t, g.NetbootOpen(w.env.Now()), "call %d fails: network boot is still allowed", n)
		require.Empty(t, g.Run, "call %d fails: the grant is still held", n)
	}
}

// TestGlobalTimeoutCountsStoredReport: the run's time-out expires while the report is in the
// database and its signal has not arrived.
func TestGlobalTimeoutCountsStoredReport(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.Store.Templates.PutTemplate(t.Context(), inventory.Template{Name: "short", Source: `version: "0.1"
name: short
global_timeout: 300
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - {name: a, image: noop, timeout: 600}
  - {name: b, image: poweroff, timeout: 60}
`}, "test"))
	w.agentFor = func(a inventory.Assignment) *action.Result {
		r := action.Result{Key: a.Key, ID: "r", State: action.Success}
		if a.Key.Action == 0 {
			w.after(time.Second, func() {
				_, err := w.Store.Assignments.Report(t.Context(), a.Owner, a.Boot, r)
				require.NoError(t, err)
			})
			return nil
		}
		return &r
	}
	// The report counts, whatever the time-out means for the other actions.
	t.Log(w.run(contract.ProvisionInput{Machine: machine, Template: "short"}))
	require.Equal(t, action.Success, w.record().Actions[0].State)
	w.closed()
}

// TestBMCJobContinuesAfterWorkerLoss: tasks that are done according to the record are not repeated.
func TestBMCJobContinuesAfterWorkerLoss(t *testing.T) {
	w := newWorld(t, nil)
	tasks := []inventory.BMCTask{{Power: "cycle"}, {Power: "off"}}
	w.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: workflows.BMCJobID(machine, "j1"), TaskQueue: workflows.TaskQueue})
	w.on, w.cycles = true, 1
	done := []inventory.BMCTask{{Power: "cycle", State: inventory.StateSuccess}, {Power: "off", State: inventory.StateRunning}}
	require.NoError(t, w.Store.BMCJobs.PutBMCJob(t.Context(), inventory.BMCJob{
		Machine: machine, Name: "j1", Run: "default-test-run-id", State: inventory.StateRunning, Tasks: done, Started: w.env.Now(),
	}))
	w.env.ExecuteWorkflow(workflows.BMCJob, contract.BMCJobInput{Machine: machine, Job: "j1", Tasks: tasks})
	require.NoError(t, w.env.GetWorkflowError())
	require.Equal(t, 1, w.cycles, "the cycle was repeated")
	require.False(t, w.on)
	w.closed()
}

// TestFencedRunAsksAtOnce: a forced job takes the machine during an action. The run notices that,
// asks an operator, and does not disturb the new owner.
func TestFencedRunAsksAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	var taken inventory.Grant
	w.agentFor = func(a inventory.Assignment) *action.Result {
		w.after(time.Minute, func() {
			var err error
			taken, err = w.Store.Grants.TakeGrant(t.Context(), machine, "job", workflows.BMCJobID(machine, "j"), true)
			require.NoError(t, err)
			w.signal(inventory.EventFenced, a.Epoch, a.Boot, nil)
		})
		return nil
	}
	begun := w.env.Now()
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted by the operator")
	require.Len(t, w.asked, 1)
	require.Equal(t, []string{contract.Abort}, w.asked[0].Choices)
	require.Less(t, w.asked[0].Since.Sub(begun), 30*time.Minute, "it asked before the action's deadline")
	g, err := w.Store.Grants.Grant(t.Context(), machine)
	require.NoError(t, err)
	require.Equal(t, taken.Owner, g.Owner, "the new owner keeps the machine")
}

// A BMC reports a restart that did not happen, and the agent of the boot before goes on. It ends the wait for the new boot, unless
// what it says may be older than the restart.
func TestAgentOfAnEarlierBootEndsTheWait(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		kind  string
		alive bool
		ends  bool
	}{
		"idle":                     {3 * time.Minute, inventory.EventAgentIdle, true, true},
		"hello":                    {3 * time.Minute, inventory.EventHello, true, true},
		"idle before the restart":  {3 * time.Minute, inventory.EventAgentIdle, false, false},
		"idle during the restart":  {30 * time.Second, inventory.EventAgentIdle, true, false},
		"hello before the restart": {3 * time.Minute, inventory.EventHello, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			var second, third time.Time
			w.agentFor = func(a inventory.Assignment) *action.Result {
				if a.Boot == 1 {
					w.after(10*time.Minute, func() { w.signal(inventory.EventAgentLost, a.Epoch, a.Boot, &a.Key) })
					return nil
				}
				return &action.Result{Key: a.Key, State: action.Success}
			}
			w.stray = func(g inventory.Grant) bool {
				switch g.Boot {
				case 2:
					second = w.env.Now()
					w.after(c.after, func() {
						if c.alive {
							w.hear(1)
						}
						w.signal(c.kind, g.Epoch, 1, nil)
					})
				case 3:
					third = w.env.Now()
				}
				return g.Boot == 2
			}
			require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
			require.Equal(t, c.ends, third.Sub(second) < 10*time.Minute, third.Sub(second))
			w.closed()
		})
	}
}
