package workflows

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// rackOne selects the machines of a rescue.
var rackOne = selector.Selector{{Key: "rack", Operator: selector.In, Values: []string{"1"}}}

// rescue is a test of Recover with machines m1 … mn. fates sets the course of their runs: "ok",
// "bad", "asks", "works", or several such as "asks then ok". A run makes a step whenever its record
// is read, because the skipping clock does not skip while an activity reads.
type rescue struct {
	*play
	fates        map[string]string
	looks        map[string]int
	began        []string
	now, atATime int
	cancelAt     int // the reading of a record, from 1, at which to cancel; 0: never
	// unanswered reports whether a machine keeps its question; nil: the question is answered at the
	// next reading.
	unanswered func() bool
	atStart    func(machine string)      // called when a run starts
	hold       func(machine string) bool // reports whether a run makes no step
}

func newRescue(t *testing.T, fates ...string) *rescue {
	t.Helper()
	r := &rescue{play: newPlay(t), fates: map[string]string{}, looks: map[string]int{}}
	for i, f := range fates {
		name := fmt.Sprintf("m%d", i+1)
		r.fates[name] = f
		r.machines = append(r.machines, inventory.Machine{Name: name, Labels: map[string]string{"rack": "1"}})
	}
	r.read = r.goOn
	r.env.SetStartWorkflowOptions(as("recover/flood"))
	r.env.RegisterWorkflowWithOptions(Recover, workflow.RegisterOptions{Name: inventory.TypeRecover})
	for _, kind := range []string{inventory.TypeProvision, inventory.TypeReprovision} {
		r.env.RegisterWorkflowWithOptions(r.install, workflow.RegisterOptions{Name: kind})
	}
	return r
}

// install simulates the run of a machine.
func (r *rescue) install(ctx workflow.Context, in contract.ProvisionInput) error {
	info := workflow.GetInfo(ctx)
	if info.WorkflowExecution.ID != MachineID(in.Machine) || in.Parent != "recover/flood" {
		return fmt.Errorf("run %q of machine %q has the parent %q", info.WorkflowExecution.ID, in.Machine, in.Parent)
	}
	w := inventory.Workflow{
		Run:      info.WorkflowExecution.RunID,
		Machine:  in.Machine,
		Type:     info.WorkflowType.Name,
		Template: in.Template,
		Image:    in.Image,
		State:    inventory.StateRunning,
		Phase:    inventory.PhaseAction,
	}
	r.put(w)
	r.mu.Lock()
	r.began = append(r.began, in.Machine)
	r.now++
	r.atATime = max(r.atATime, r.now)
	r.mu.Unlock()
	if r.atStart != nil {
		r.atStart(in.Machine)
	}
	return nil
}

// cancelled simulates the server's handling of a request to cancel a run.
func (r *rescue) cancelled(_, _, run string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.runs[run]
	w.State, w.Phase, w.Message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	r.runs[run] = w
	return nil
}

// goOn makes one step of a run: first running or a question, then its fate.
func (r *rescue) goOn(w *inventory.Workflow) {
	r.looks[""]++
	if r.looks[""] == r.cancelAt {
		r.env.CancelWorkflow()
	}
	if r.hold != nil && r.hold(w.Machine) {
		return
	}
	r.looks[w.Machine]++
	look, fate := r.looks[w.Machine], r.fates[w.Machine]
	if r.cancelAt > 0 || inventory.Final(w.State) || look == 1 {
		return
	}
	if look == 2 {
		r.now--
	}
	if w.Phase == inventory.PhaseWaiting && r.unanswered != nil && r.unanswered() {
		r.looks[w.Machine]--
		return
	}
	for step := range strings.SplitSeq(fate, " then ") {
		if fate = step; look == 2 {
			break
		}
		look--
	}
	switch fate {
	case "asks":
		w.Phase, w.Message = inventory.PhaseWaiting, "its BMC does not answer"
	case "works":
		w.Phase, w.Message = inventory.PhaseAction, ""
	case "bad":
		w.State, w.Phase, w.Message = inventory.StateFailed, inventory.PhaseFailed, "disk on fire"
	default:
		w.State, w.Phase, w.Message = inventory.StateSuccess, inventory.PhaseDone, "installed and ready"
	}
}

func (r *rescue) run(in contract.RecoverInput) (Recovered, error) {
	r.Helper()
	in.Name = "flood"
	r.env.ExecuteWorkflow(inventory.TypeRecover, in)
	require.True(r, r.env.IsWorkflowCompleted())
	var out Recovered
	err := r.env.GetWorkflowError()
	if err == nil {
		require.NoError(r, r.env.GetWorkflowResult(&out))
	}
	return out, err
}

func outcomes(out Recovered) (all []string) {
	for _, m := range out.Machines {
		all = append(all, m.Machine+" "+m.Outcome)
	}
	return all
}

func TestRecoverRecordsEachOutcome(t *testing.T) {
	r := newRescue(t, "ok", "asks then ok", "ok", "bad")
	r.hold = func(string) bool { return len(r.began) < 2 }
	out, err := r.run(contract.RecoverInput{Selector: rackOne})
	require.NoError(t, err, "the workflow completes with its result")
	require.Equal(t, []string{"m1 installed", "m2 installed", "m3 installed", "m4 failed"}, outcomes(out))
	require.Equal(t, inventory.StateFailed, out.State)
	require.Equal(t, "3 of 4 machines installed, 1 failed", out.Message)
	require.Equal(t, "disk on fire", out.Machines[3].Message)
	require.Equal(t, 2, r.atATime, "two at a time, unless it is said otherwise")
	last := r.last()
	require.Equal(t, inventory.StateFailed, last.State)
	require.Equal(t, out.Message, last.Message)
	require.Equal(t, []string{"m1 done", "m2 done", "m3 done", "m4 failed"}, r.states())
	for i, s := range last.Steps {
		require.Equal(t, out.Machines[i].Run, s.Run)
		require.NotEmpty(t, s.Run)
	}
}

func TestRecoverGoesGroupByGroup(t *testing.T) {
	r := newRescue(t, "ok", "ok", "ok")
	r.hold = func(machine string) bool { return machine != "m3" && len(r.began) < 3 }
	out, err := r.run(contract.RecoverInput{Machines: []string{"m1", "m2", "m3"}, Order: [][]string{{"m3"}}, Concurrency: 3, Template: "t"})
	require.NoError(t, err)
	require.Equal(t, inventory.StateSuccess, out.State)
	require.Equal(t, "3 of 3 machines installed", out.Message)
	require.Equal(t, "m3", r.began[0])
	require.Equal(t, 2, r.atATime, "the second group begins when the first has ended")
	for _, w := range r.runs {
		require.Equal(t, "t", w.Template)
	}
}

func TestRecoverStopsWhenTooManyGoWrong(t *testing.T) {
	r := newRescue(t, "bad", "asks then bad", "ok", "ok")
	out, err := r.run(contract.RecoverInput{Machines: []string{"m1", "m2", "m3", "m4"}, Concurrency: 1, AbortAfter: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"m1 failed", "m2 failed", "m3 not-begun", "m4 not-begun"}, outcomes(out))
	require.Equal(t, []string{"m1", "m2"}, r.began)
	require.Contains(t, out.Machines[3].Message, "2 machines had already failed or waited for an operator")
}

// The others begin only when each canary is installed, though a canary waits for its operator.
func TestRecoverInstallsTheCanariesFirst(t *testing.T) {
	r := newRescue(t, "asks then ok", "ok", "ok", "ok")
	// The question is answered when the record shows it.
	r.unanswered = func() bool { return r.operations[len(r.operations)-1].Step != inventory.PhaseWaiting }
	var early []string
	r.atStart = func(machine string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, w := range r.runs {
			if (w.Machine == "m1" || w.Machine == "m4") && machine != "m1" && machine != "m4" && w.State != inventory.StateSuccess {
				early = append(early, machine)
			}
		}
	}
	in := contract.RecoverInput{
		Machines: []string{"m4", "m1", "m2", "m3"}, Concurrency: 4, Canary: 2, First: true, Image: "debian-12",
	}
	out, err := r.run(in)
	require.NoError(t, err)
	require.Equal(t, []string{"m4 installed", "m1 installed", "m2 installed", "m3 installed"}, outcomes(out))
	require.Empty(t, early)
	for _, w := range r.runs {
		require.Equal(t, inventory.TypeProvision, w.Type)
		require.Equal(t, "debian-12", w.Image)
	}
}

func TestRecoverStopsWhenACanaryFails(t *testing.T) {
	r := newRescue(t, "ok", "asks then bad", "ok", "ok", "ok")
	out, err := r.run(contract.RecoverInput{Selector: rackOne, Canary: 3, Concurrency: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"m1 installed", "m2 failed", "m3 installed", "m4 not-begun", "m5 not-begun"}, outcomes(out))
	require.Equal(t, "not begun: the canary m2 was not installed", out.Machines[4].Message)

	r = newRescue(t, "bad", "ok", "ok")
	out, err = r.run(contract.RecoverInput{Selector: rackOne, Canary: 2, Concurrency: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"m1 failed", "m2 not-begun", "m3 not-begun"}, outcomes(out), "nor is another canary started")
}

// A paused recovery starts no machine; those that it has started go on.
func TestRecoverPauses(t *testing.T) {
	r := newRescue(t, "ok", "ok", "ok")
	order := func(id string, paused bool) {
		r.env.UpdateWorkflow(UpdatePause, id, updates{r.play}, contract.PauseOrder{Paused: paused, By: "alice"})
	}
	var begun []string
	r.atStart = func(machine string) {
		if machine != "m1" {
			return
		}
		order("pause", true)
		r.env.RegisterDelayedCallback(func() {
			r.mu.Lock()
			begun = append(begun, r.began...)
			r.mu.Unlock()
			order("resume", false)
		}, time.Hour)
	}
	out, err := r.run(contract.RecoverInput{Machines: []string{"m1", "m2", "m3"}, Concurrency: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"m1"}, begun, "within an hour")
	require.Equal(t, []string{"m1 installed", "m2 installed", "m3 installed"}, outcomes(out))
	var shown []string
	for _, o := range r.operations {
		if strings.Contains(o.Message, "paused by alice") {
			shown = append(shown, o.Next)
		}
	}
	require.NotEmpty(t, shown)
	require.Equal(t, "ingot operation resume recover/flood", shown[len(shown)-1])
	require.NotContains(t, r.last().Message, "paused")
}

// The place of a machine that waits for an operator goes to the next machine, and the recovery
// waits for it. The waiting machine has neither ended nor failed, and does not count as running.
func TestRecoverWaitsForAnOperator(t *testing.T) {
	r := newRescue(t, "asks then ok", "asks then bad", "ok", "ok", "ok")
	r.unanswered = func() bool { return r.operations[len(r.operations)-1].Step != inventory.PhaseWaiting }
	out, err := r.run(contract.RecoverInput{Selector: rackOne, Concurrency: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"m1 installed", "m2 failed", "m3 installed", "m4 installed", "m5 installed"}, outcomes(out))
	require.Equal(t, []string{"m1", "m2", "m3", "m4", "m5"}, r.began, "nothing is begun a second time")
	var waited []inventory.Operation
	for _, o := range r.operations {
		if o.Step == inventory.PhaseWaiting {
			waited = append(waited, o)
		}
	}
	require.NotEmpty(t, waited)
	o := waited[0]
	require.Equal(t, inventory.StateRunning, o.State)
	require.Equal(t, "3 of 5 machines installed, 2 waiting for an operator", o.Message)
	require.Equal(t, "ingot recover status flood", o.Next)
	for _, s := range o.Steps[:2] {
		require.Equal(t, inventory.StepWaiting, s.State)
		require.False(t, s.Asked.IsZero(), "since when the operator is awaited")
		require.Equal(t, s.Worked(s.Asked), s.Worked(s.Asked.Add(time.Hour)), "waiting is not work")
	}
	for i, s := range r.last().Steps {
		require.Zero(t, s.Asked)
		require.False(t, s.Ended.IsZero(), "%d: %s", i, s.Machine)
	}
}

// After its operator's answer, a machine is running again, and it may ask again.
func TestRecoverFollowsContinuingMachine(t *testing.T) {
	r := newRescue(t, "asks then works then asks then ok")
	out, err := r.run(contract.RecoverInput{Machines: []string{"m1"}})
	require.NoError(t, err)
	require.Equal(t, []string{"m1 installed"}, outcomes(out))
	var states []string
	for _, o := range r.operations {
		if len(o.Steps) > 0 && (len(states) == 0 || states[len(states)-1] != o.Steps[0].State) {
			states = append(states, o.Steps[0].State)
		}
	}
	require.Equal(t, []string{"pending", "running", "waiting", "running", "waiting", "done"}, states)
}

// A cancellation ends the running machines and does not touch those that wait for an operator.
func TestRecoverCancelledWhileAMachineWaits(t *testing.T) {
	r := newRescue(t, "ok", "asks")
	r.unanswered = func() bool {
		if r.operations[len(r.operations)-1].Step == inventory.PhaseWaiting {
			r.env.CancelWorkflow()
		}
		return true
	}
	_, err := r.run(contract.RecoverInput{Machines: []string{"m1", "m2"}})
	var cancelled *temporal.CanceledError
	require.ErrorAs(t, err, &cancelled)
	require.Equal(t, inventory.StateCancelled, r.last().State)
	require.Equal(t, []string{"m1 done", "m2 waiting"}, r.states())
	r.mu.Lock() // a cancelled activity may still be reading
	defer r.mu.Unlock()
	for _, w := range r.runs {
		require.NotEqual(t, inventory.StateCancelled, w.State)
	}
}

// A recovery of many machines fills its history and continues as new, with the same record and with
// the running and remaining machines.
func TestRecoverContinuesWhenItsHistoryIsFull(t *testing.T) {
	first := newRescue(t, "asks then ok", "ok", "ok", "ok", "ok")
	first.unanswered = func() bool { return true }
	first.atStart = func(machine string) {
		if machine == "m4" {
			first.env.SetContinueAsNewSuggested(true)
		}
	}
	in := contract.RecoverInput{Selector: rackOne, Order: [][]string{{"m1"}, {"m2", "m3", "m4"}}}
	_, err := first.run(in)
	var full *workflow.ContinueAsNewError
	require.ErrorAs(t, err, &full)
	require.ElementsMatch(t, []string{"m1", "m2", "m3", "m4"}, first.began)
	require.Equal(t, inventory.StepWaiting, first.last().Steps[0].State)
	kept := first.last()
	require.Equal(t, inventory.StateRunning, kept.State, "the record is not over")

	var next contract.RecoverInput
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(full.Input, &next))
	require.NotNil(t, next.Continued)
	require.Equal(t, kept.Run, next.Continued.Run)
	next.Continued.Machines[0].Asked = next.Continued.Machines[0].Asked.Add(-time.Hour)

	second := newRescue(t, "asks then ok", "ok", "ok", "ok", "ok")
	first.mu.Lock()
	second.runs = maps.Clone(first.runs) // the remaining runs of the first execution continue in the second
	first.mu.Unlock()
	second.env.SetContinuedExecutionRunID("the-first")
	out, err := second.run(next)
	require.NoError(t, err)
	require.Equal(t, []string{"m5"}, second.began, "what is under way is not begun again")
	require.Equal(t, []string{"m1 installed", "m2 installed", "m3 installed", "m4 installed", "m5 installed"}, outcomes(out))
	require.Equal(t, "5 of 5 machines installed", out.Message)
	require.Greater(t, second.operations[0].Seq, kept.Seq, "no record of before is newer")
	last := second.last()
	require.Equal(t, kept.Run, last.Run)
	require.Equal(t, kept.Started.UnixNano(), last.Started.UnixNano())
	require.JSONEq(t, string(kept.Input), string(last.Input), "what was asked for, and nothing of the state")
	for i, s := range last.Steps {
		require.Equal(t, kept.Steps[i].Name, s.Name)
		require.Equal(t, kept.Steps[i].Does, s.Does)
		if s.Machine != "m5" {
			require.Equal(t, next.Continued.Machines[i].Run, s.Run)
			require.Equal(t, next.Continued.Machines[i].Since.UnixNano(), s.Since.UnixNano())
		}
	}
	require.GreaterOrEqual(t, last.Steps[0].Waited, time.Hour, "the wait of before counts")
}

// A pause outlives the end of an execution whose history is full.
func TestRecoverContinuesPaused(t *testing.T) {
	r := newRescue(t, "ok", "ok")
	pause := func(id string) {
		r.env.UpdateWorkflow(UpdatePause, id, updates{r.play}, contract.PauseOrder{Paused: true, By: "alice"})
	}
	r.atStart = func(string) {
		pause("first")
		r.env.RegisterDelayedCallback(func() {
			r.env.SetContinueAsNewSuggested(true)
			pause("again") // wakes the workflow
		}, time.Hour)
	}
	_, err := r.run(contract.RecoverInput{Selector: rackOne, Concurrency: 1, Canary: 1})
	var full *workflow.ContinueAsNewError
	require.ErrorAs(t, err, &full)
	require.Equal(t, []string{"m1"}, r.began)
	var next contract.RecoverInput
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(full.Input, &next))
	require.Equal(t, "alice", next.Continued.Paused)
	require.Equal(t, []int{1, 1}, next.Continued.Groups)
	require.Equal(t, 1, next.Canary)
}

// A recovery accepts state only from its own previous execution.
func TestRecoverRefusesForgedState(t *testing.T) {
	r := newRescue(t, "ok")
	_, err := r.run(contract.RecoverInput{Machines: []string{"m1"}, Continued: &contract.RecoverState{}})
	require.ErrorContains(t, err, "continued")
	require.Empty(t, r.began)
}

func TestRecoverPassesACancellationOn(t *testing.T) {
	r := newRescue(t, "ok", "ok", "ok")
	r.cancelAt = 3
	r.env.OnRequestCancelExternalWorkflow(mock.Anything, mock.Anything, mock.Anything).Return(r.cancelled)
	_, err := r.run(contract.RecoverInput{Selector: rackOne})
	var cancelled *temporal.CanceledError
	require.ErrorAs(t, err, &cancelled)
	require.Len(t, r.began, 2)
	for _, w := range r.runs {
		require.Equal(t, inventory.StateCancelled, w.State)
	}
	require.Equal(t, inventory.StateCancelled, r.last().State)
	require.Equal(t, []string{"m1 failed", "m2 failed", "m3 pending"}, r.states())
}

func TestRecoverRefuses(t *testing.T) {
	r := newRescue(t, "ok")
	_, err := r.run(contract.RecoverInput{Machines: []string{"m9"}})
	require.ErrorContains(t, err, `there is no machine "m9"`)
	require.Empty(t, r.began)
	require.Equal(t, inventory.StateFailed, r.last().State)
	r = newRescue(t, "ok")
	_, err = r.run(contract.RecoverInput{Machines: []string{"m1"}, Concurrency: -1})
	require.ErrorContains(t, err, "invalid concurrency -1")
}
