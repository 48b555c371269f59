package workflows

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/inventory"
)

// rescue is a test of Recover over machines m1 … mn, whose runs do as fates say:
// "ok", "bad", "asks", "asks then ok", "asks then bad". A run goes on whenever
// its record is looked at, because a clock that skips does not while somebody
// looks.
type rescue struct {
	*play
	fates        map[string]string
	looks        map[string]int
	began        []string
	now, atATime int
	cancelAt     int // a look at any run, from 1; 0: never
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
	r.env.RegisterWorkflowWithOptions(Recover, workflow.RegisterOptions{Name: RecoverType})
	r.env.RegisterWorkflowWithOptions(r.reprovision, workflow.RegisterOptions{Name: ReprovisionType})
	return r
}

// reprovision stands for the run of a machine.
func (r *rescue) reprovision(ctx workflow.Context, in ProvisionInput) error {
	info := workflow.GetInfo(ctx)
	if info.WorkflowExecution.ID != MachineID(in.Machine) || in.Parent != "recover/flood" {
		return fmt.Errorf("run %q of machine %q has the parent %q", info.WorkflowExecution.ID, in.Machine, in.Parent)
	}
	w := inventory.Workflow{Run: info.WorkflowExecution.RunID, Machine: in.Machine, Template: in.Template, State: inventory.StateRunning, Phase: inventory.PhaseAction}
	r.put(w)
	r.mu.Lock()
	r.began = append(r.began, in.Machine)
	r.now++
	r.atATime = max(r.atATime, r.now)
	r.mu.Unlock()
	return nil
}

// cancelled is what the server does with the wish to cancel a run.
func (r *rescue) cancelled(_, _, run string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.runs[run]
	w.State, w.Phase, w.Message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	r.runs[run] = w
	return nil
}

// goOn takes a run a step further: under way, then its fate, or first asking.
func (r *rescue) goOn(w *inventory.Workflow) {
	r.looks[""]++
	if r.looks[""] == r.cancelAt {
		r.env.CancelWorkflow()
	}
	r.looks[w.Machine]++
	look, fate := r.looks[w.Machine], r.fates[w.Machine]
	if r.cancelAt > 0 || inventory.Final(w.State) || look == 1 {
		return
	}
	if look == 2 {
		r.now--
	}
	if rest, asks := strings.CutPrefix(fate, "asks"); asks {
		w.Phase, w.Message = inventory.PhaseWaiting, "its BMC does not answer"
		if look == 2 || rest == "" {
			return
		}
		fate = strings.TrimPrefix(rest, " then ")
	}
	w.State, w.Phase, w.Message = inventory.StateSuccess, inventory.PhaseDone, "installed and ready"
	if fate == "bad" {
		w.State, w.Phase, w.Message = inventory.StateFailed, inventory.PhaseFailed, "disk on fire"
	}
}

func (r *rescue) run(in RecoverInput) (Recovered, error) {
	r.Helper()
	in.Name = "flood"
	r.env.ExecuteWorkflow(RecoverType, in)
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

func TestRecoverTellsTheOutcomeOfEachMachine(t *testing.T) {
	r := newRescue(t, "ok", "asks", "ok", "bad")
	out, err := r.run(RecoverInput{Selector: map[string]string{"rack": "1"}})
	require.NoError(t, err, "the workflow completes with its result")
	require.Equal(t, []string{"m1 installed", "m2 waiting-for-person", "m3 installed", "m4 failed"}, outcomes(out))
	require.Equal(t, inventory.StateFailed, out.State)
	require.Equal(t, "2 of 4 machines installed, 1 failed, 1 waiting for a person", out.Message)
	require.Equal(t, "its BMC does not answer", out.Machines[1].Message)
	require.Equal(t, "disk on fire", out.Machines[3].Message)
	require.Equal(t, 2, r.atATime, "two at a time, unless it is said otherwise")
	last := r.last()
	require.Equal(t, inventory.StateFailed, last.State)
	require.Equal(t, out.Message, last.Message)
	require.Equal(t, []string{"m1 done", "m2 waiting", "m3 done", "m4 failed"}, r.states())
	for i, s := range last.Steps {
		require.Equal(t, out.Machines[i].Run, s.Run)
		require.NotEmpty(t, s.Run)
	}
}

func TestRecoverGoesGroupByGroup(t *testing.T) {
	r := newRescue(t, "ok", "ok", "ok")
	out, err := r.run(RecoverInput{Machines: []string{"m1", "m2", "m3"}, Order: [][]string{{"m3"}}, Concurrency: 3, Template: "t"})
	require.NoError(t, err)
	require.Equal(t, inventory.StateSuccess, out.State)
	require.Equal(t, "3 of 3 machines installed", out.Message)
	require.Equal(t, "m3", r.began[0])
	require.Equal(t, 2, r.atATime, "the second group begins when the first is over")
	for _, w := range r.runs {
		require.Equal(t, "t", w.Template)
	}
}

func TestRecoverStopsWhenTooManyGoWrong(t *testing.T) {
	r := newRescue(t, "bad", "asks", "ok", "ok")
	out, err := r.run(RecoverInput{Machines: []string{"m1", "m2", "m3", "m4"}, Concurrency: 1, AbortAfter: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"m1 failed", "m2 waiting-for-person", "m3 not-begun", "m4 not-begun"}, outcomes(out))
	require.Equal(t, []string{"m1", "m2"}, r.began)
	require.Contains(t, out.Machines[3].Message, "2 machines had gone wrong")
}

// Who was waited for may have come while others were installed. A run that a
// person ended is not begun again.
func TestRecoverLooksAgainAtWhatWaited(t *testing.T) {
	r := newRescue(t, "asks then ok", "asks then bad", "ok", "ok", "ok")
	out, err := r.run(RecoverInput{Selector: map[string]string{"rack": "1"}, Concurrency: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"m1 installed", "m2 failed", "m3 installed", "m4 installed", "m5 installed"}, outcomes(out))
	require.Equal(t, []string{"m1", "m2", "m3", "m4", "m5"}, r.began)
}

func TestRecoverPassesACancellationOn(t *testing.T) {
	r := newRescue(t, "ok", "ok", "ok")
	r.cancelAt = 3
	r.env.OnRequestCancelExternalWorkflow(mock.Anything, mock.Anything, mock.Anything).Return(r.cancelled)
	_, err := r.run(RecoverInput{Selector: map[string]string{"rack": "1"}})
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
	_, err := r.run(RecoverInput{Machines: []string{"m9"}})
	require.ErrorContains(t, err, `there is no machine "m9"`)
	require.Empty(t, r.began)
	require.Equal(t, inventory.StateFailed, r.last().State)
	r = newRescue(t, "ok")
	_, err = r.run(RecoverInput{Machines: []string{"m1"}, Concurrency: -1})
	require.ErrorContains(t, err, "cannot be negative")
}
