package workflows

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// pair is a test of ProvisionTogether with machines m1 … mn. fates sets the course of their runs: "ok", "unplanned" (the run fails in
// plan), "bad" (it fails later), "asks", or "waits" (it ends only when it is cancelled). A run makes a step whenever its record is read.
type pair struct {
	*play
	fates map[string]string
	looks map[string]int // readings of the records of a machine's run
	// did is what happened, in order: "start m1", "arm m1 m2", "cancel m1".
	did    []string
	inputs map[string]contract.ProvisionInput
	// on is called when something happens; a key is one of did, or "record STEP".
	on map[string]func()
	// arm returns the error of taking the grants.
	arm     func(q activities.ArmTogetherRequest) error
	choices []string // answers of the operator, in order
	busy    string   // a machine whose workflow id is taken
}

func newPair(t *testing.T, fates ...string) *pair {
	t.Helper()
	p := &pair{
		play: newPlay(t), fates: map[string]string{}, looks: map[string]int{}, inputs: map[string]contract.ProvisionInput{},
		on: map[string]func(){},
	}
	for n, f := range fates {
		name := fmt.Sprintf("m%d", n+1)
		p.fates[name] = f
		p.machines = append(p.machines, inventory.Machine{Name: name})
	}
	p.read, p.wrote = p.goOn, p.written
	p.env.Intercept(&occupied{p: p})
	p.env.SetStartWorkflowOptions(as("together/pair"))
	p.env.RegisterWorkflowWithOptions(ProvisionTogether, workflow.RegisterOptions{Name: inventory.TypeTogether})
	p.env.RegisterWorkflowWithOptions(p.install, workflow.RegisterOptions{Name: inventory.TypeProvision})
	p.env.OnRequestCancelExternalWorkflow(mock.Anything, mock.Anything, mock.Anything).Return(p.cancelled).Maybe()
	p.env.OnActivity(do.ArmTogether, mock.Anything, mock.Anything).Return(p.armed).Maybe()
	return p
}

// happens notes what happens. The caller holds p.mu.
func (p *pair) happens(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	p.did = append(p.did, what)
	if f := p.on[what]; f != nil {
		f()
	}
}

// install simulates the start of a machine's run.
func (p *pair) install(ctx workflow.Context, in contract.ProvisionInput) error {
	info := workflow.GetInfo(ctx)
	if info.WorkflowExecution.ID != MachineID(in.Machine) || in.Parent != "together/pair" {
		return fmt.Errorf("run %q of machine %q has the parent %q", info.WorkflowExecution.ID, in.Machine, in.Parent)
	}
	p.put(inventory.Workflow{
		Run: info.WorkflowExecution.RunID, Machine: in.Machine, State: inventory.StatePreparing, Phase: inventory.PhasePlan,
		Started: workflow.Now(ctx), Input: []byte(`{"parent":"together/pair"}`),
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inputs[in.Machine] = in
	p.happens("start %s", in.Machine)
	return nil
}

// goOn makes one step of a run.
func (p *pair) goOn(w *inventory.Workflow) {
	p.looks[w.Machine]++
	if f := p.on["look at "+w.Machine+" in "+w.Phase]; f != nil {
		f()
	}
	if inventory.Final(w.State) {
		return
	}
	fate := p.fates[w.Machine]
	fails := func(message string) {
		w.State, w.Phase, w.Message = inventory.StateFailed, inventory.PhaseFailed, message
	}
	switch {
	case w.Phase == inventory.PhasePlan && p.looks[w.Machine] < 3: // it takes a while
	case w.Phase == inventory.PhasePlan && fate == "unplanned":
		fails("no image")
	case w.Phase == inventory.PhasePlan:
		w.Phase = inventory.PhaseArm
	case w.Epoch == 0 || fate == "waits":
	case fate == "bad":
		fails("disk on fire")
	case fate == "asks" && w.Phase == inventory.PhaseAction:
		w.Phase, w.Message = inventory.PhaseWaiting, "which disk?"
	default:
		w.State, w.Phase, w.Message = inventory.StateSuccess, inventory.PhaseDone, "installed and ready"
	}
}

// armed simulates taking the grants.
func (p *pair) armed(_ context.Context, q activities.ArmTogetherRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for _, r := range q.Runs {
		if w := p.runs[r.Run]; w.Phase != inventory.PhaseArm && w.Epoch == 0 {
			p.Errorf("the grants are taken while %s is in phase %q", r.Machine, w.Phase)
		}
		names = append(names, r.Machine)
	}
	if p.arm != nil {
		if err := p.arm(q); err != nil {
			p.happens("refuse %s", strings.Join(names, " "))
			return err
		}
	}
	for _, r := range q.Runs {
		if w := p.runs[r.Run]; !inventory.Final(w.State) {
			w.Epoch, w.Phase = 1, inventory.PhaseAction
			p.runs[r.Run] = w
		}
	}
	p.happens("arm %s", strings.Join(names, " "))
	return nil
}

// cancelled simulates a run that is cancelled.
func (p *pair) cancelled(_, id, run string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.runs[run]
	if !ok || MachineID(w.Machine) != id {
		p.Errorf("run %q of %q is cancelled", run, id)
	}
	if inventory.Final(w.State) {
		return temporal.NewApplicationError("not found", "")
	}
	w.State, w.Phase, w.Message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	p.runs[run] = w
	p.happens("cancel %s", w.Machine)
	return nil
}

// written answers the questions of the operation.
func (p *pair) written(o inventory.Operation) {
	if f := p.on["record "+o.Step]; f != nil {
		f()
	}
	q := o.Question
	if q == nil || slices.ContainsFunc(p.questions, func(x inventory.Question) bool { return x.ID == q.ID }) {
		return
	}
	p.questions = append(p.questions, *q)
	if len(p.choices) == 0 {
		return
	}
	choice := p.choices[0]
	p.choices = p.choices[1:]
	p.env.RegisterDelayedCallback(func() {
		p.mu.Lock()
		p.decided = true
		p.mu.Unlock()
		p.env.UpdateWorkflow(UpdateDecide, "update-"+q.ID, updates{p.play}, contract.Decision{Question: q.ID, Choice: choice})
	}, time.Minute)
}

// occupied makes the start of the busy machine's run fail as a worker does.
type occupied struct {
	interceptor.WorkerInterceptorBase
	p *pair
}

func (o *occupied) InterceptWorkflow(
	_ workflow.Context,
	next interceptor.WorkflowInboundInterceptor,
) interceptor.WorkflowInboundInterceptor {
	return &occupiedInbound{interceptor.WorkflowInboundInterceptorBase{Next: next}, o.p}
}

type occupiedInbound struct {
	interceptor.WorkflowInboundInterceptorBase
	p *pair
}

func (i *occupiedInbound) Init(next interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&occupiedOutbound{interceptor.WorkflowOutboundInterceptorBase{Next: next}, i.p})
}

type occupiedOutbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	p *pair
}

func (o *occupiedOutbound) ExecuteChildWorkflow(ctx workflow.Context, typ string, args ...any) workflow.ChildWorkflowFuture {
	if args[0].(contract.ProvisionInput).Machine != o.p.busy {
		return o.Next.ExecuteChildWorkflow(ctx, typ, args...)
	}
	f, set := workflow.NewFuture(ctx)
	set.SetError(&temporal.ChildWorkflowExecutionAlreadyStartedError{})
	return occupiedChild{Future: f}
}

type occupiedChild struct{ workflow.Future }

func (c occupiedChild) GetChildWorkflowExecution() workflow.Future { return c.Future }

func (occupiedChild) SignalChildWorkflow(workflow.Context, string, any) workflow.Future { return nil }

// run runs the operation. The hardware map names the machines in the reverse order of their names.
func (p *pair) run(in contract.TogetherInput) error {
	p.Helper()
	in.Name, in.Template, in.HardwareMap = "pair", "t", map[string]string{}
	for n, m := range p.machines {
		in.HardwareMap[fmt.Sprintf("device_%d", len(p.machines)-n)] = m.Name
	}
	p.env.ExecuteWorkflow(inventory.TypeTogether, in)
	require.True(p, p.env.IsWorkflowCompleted())
	o := p.last()
	require.True(p, inventory.Final(o.State))
	require.Nil(p, o.Question)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.runs { // whatever has happened, the operation ends after its runs
		require.True(p, inventory.Final(w.State) || w.Machine == p.busy, "the run of %s is open", w.Machine)
	}
	for _, s := range o.Steps {
		require.NotContains(p, []string{inventory.StepRunning, inventory.StepWaiting}, s.State, s.Machine)
		require.Zero(p, s.Asked)
	}
	return p.env.GetWorkflowError()
}

func TestTogetherPlansAllBeforeItTakesAny(t *testing.T) {
	p := newPair(t, "ok", "ok", "ok")
	in := contract.TogetherInput{Image: "debian", Retries: contract.Retries{Count: 2}, Policy: contract.Pause, By: "ann"}
	require.NoError(t, p.run(in))
	require.Equal(t, []string{"start m1", "start m2", "start m3", "arm m1 m2 m3"}, p.did)
	require.Equal(t, []string{"m1 done", "m2 done", "m3 done"}, p.states())
	o := p.last()
	require.Equal(t, inventory.StateSuccess, o.State)
	require.Equal(t, "3 machines are installed", o.Message)
	require.Empty(t, o.Next)
	for _, s := range o.Steps {
		require.Equal(t, s.Machine, p.runs[s.Run].Machine)
		require.False(t, s.Ended.IsZero())
	}
	require.Equal(t, contract.ProvisionInput{
		Machine: "m2", Template: "t", Image: "debian", HardwareMap: map[string]string{"device_1": "m3", "device_2": "m2", "device_3": "m1"},
		Retries: contract.Retries{Count: 2}, Policy: contract.Pause, Parent: "together/pair", By: "ann",
	}, p.inputs["m2"])
}

// TestTogetherTouchesNoMachineIfOneCannotBePlanned also has a run fail after it was planned.
func TestTogetherTouchesNoMachineIfOneCannotBePlanned(t *testing.T) {
	p := newPair(t, "ok", "unplanned", "ok")
	require.ErrorContains(t, p.run(contract.TogetherInput{}), `machine "m2": no image`)
	require.Equal(t, []string{"start m1", "start m2", "start m3", "cancel m1", "cancel m3"}, p.did)
	require.Equal(t, []string{"m1 failed", "m2 failed", "m3 failed"}, p.states())
	require.Equal(t, "no image", p.last().Steps[1].Message)
	require.Equal(t, "ended as CANCELLED: cancelled", p.last().Steps[0].Message)
	require.Equal(t, inventory.StateFailed, p.last().State)
	require.Equal(t, "ingot together retry pair", p.last().Next)

	// A machine was taken by another run in the meantime.
	p = newPair(t, "ok", "ok")
	p.arm = func(activities.ArmTogetherRequest) error {
		return temporal.NewNonRetryableApplicationError("no machine is touched: m2 is taken", activities.TypeConflict, nil)
	}
	require.ErrorContains(t, p.run(contract.TogetherInput{}), "no machine is touched: m2 is taken")
	require.Equal(t, []string{"start m1", "start m2", "refuse m1 m2", "cancel m1", "cancel m2"}, p.did)
}

// TestTogetherOfABusyMachine: the runs that were started are cancelled. The busy machine's run is left alone: also one that an earlier
// operation of this name has started, because it carries out another request.
func TestTogetherOfABusyMachine(t *testing.T) {
	for name, parent := range map[string]string{"another run": "", "an earlier operation": "together/pair"} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, "ok", "ok", "ok")
			p.busy = "m2"
			p.put(inventory.Workflow{
				Run: "other", Machine: "m2", State: inventory.StateRunning, Phase: inventory.PhaseAction, Epoch: 1,
				Started: p.env.Now().Add(-time.Hour), Input: []byte(`{"parent":"` + parent + `"}`),
			})
			require.ErrorContains(t, p.run(contract.TogetherInput{}), `machine "m2" is busy with another run (ingot workflow get m2)`)
			require.Equal(t, []string{"start m1", "cancel m1"}, p.did)
			require.Equal(t, []string{"m1 failed", "m2 failed", "m3 pending"}, p.states())
			require.Equal(t, inventory.StateRunning, p.runs["other"].State)
			require.Empty(t, p.last().Steps[1].Run)
		})
	}
}

// TestTogetherWaitsForAllRuns: the failure of one machine does not end the others.
func TestTogetherWaitsForAllRuns(t *testing.T) {
	p := newPair(t, "bad", "asks", "bad")
	require.EqualError(t, messages(p.run(contract.TogetherInput{})), "m1: disk on fire; m3: disk on fire")
	require.Equal(t, []string{"start m1", "start m2", "start m3", "arm m1 m2 m3"}, p.did, "no run is cancelled")
	require.Equal(t, []string{"m1 failed", "m2 done", "m3 failed"}, p.states())
	var states []string
	for _, o := range p.operations {
		if s := o.Steps; len(s) > 0 && (len(states) == 0 || states[len(states)-1] != s[1].State) {
			states = append(states, s[1].State)
		}
	}
	require.Equal(t, []string{"pending", "running", "waiting", "done"}, states)
	n := slices.IndexFunc(p.operations, func(o inventory.Operation) bool {
		return len(o.Steps) > 0 && o.Steps[1].State == inventory.StepWaiting
	})
	require.False(t, p.operations[n].Steps[1].Asked.IsZero(), "since when the operator is awaited")
}

// messages returns the message of an error alone.
func messages(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s", messageOf(err))
}

// TestTogetherIsCancelled in each phase: no run stays open, and none keeps its machine (security S68).
func TestTogetherIsCancelled(t *testing.T) {
	for name, c := range map[string]struct {
		at    string
		clock bool // the grants are not taken because of the clock
		want  []string
		steps []string
	}{
		"when the first run is started": {
			at: "start m1", want: []string{"start m1", "cancel m1"}, steps: []string{"m1 failed", "m2 pending"},
		},
		"when all runs are started": {at: "start m2", want: []string{"start m1", "start m2", "cancel m1", "cancel m2"}},
		"while a run is planned":    {at: "look at m2 in plan", want: []string{"start m1", "start m2", "cancel m1", "cancel m2"}},
		"while the grants are taken": {
			at: "arm m1 m2", want: []string{"start m1", "start m2", "arm m1 m2", "cancel m1", "cancel m2"},
		},
		"when the grants are taken": {
			at: "record action", want: []string{"start m1", "start m2", "arm m1 m2", "cancel m1", "cancel m2"},
		},
		"during the installation": {
			at: "look at m2 in action", want: []string{"start m1", "start m2", "arm m1 m2", "cancel m1", "cancel m2"},
		},
		"while the operator is asked about the clock": {
			at: "record " + inventory.PhaseWaiting, clock: true, want: []string{"start m1", "start m2", "refuse m1 m2", "cancel m1", "cancel m2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, "waits", "waits")
			p.on[c.at] = p.env.CancelWorkflow
			if c.clock {
				p.arm = func(activities.ArmTogetherRequest) error { return clockBehind() }
			}
			err := p.run(contract.TogetherInput{})
			require.True(t, temporal.IsCanceledError(err), "%v", err)
			require.Equal(t, inventory.StateCancelled, p.last().State)
			sorted := slices.Clone(p.did) // the runs are cancelled side by side
			if n := len(sorted); n > 2 {
				slices.Sort(sorted[n-2:])
			}
			require.Equal(t, c.want, sorted)
			if c.steps == nil {
				c.steps = []string{"m1 failed", "m2 failed"}
			}
			require.Equal(t, c.steps, p.states())
		})
	}
}

func clockBehind() error {
	return temporal.NewNonRetryableApplicationError("this server's clock is behind", activities.TypeClock, nil)
}

func TestTogetherAsksAboutTheClock(t *testing.T) {
	for choice, wrong := range map[string]string{contract.Retry: "", contract.Continue: "", contract.Abort: "aborted by the operator"} {
		t.Run(choice, func(t *testing.T) {
			p := newPair(t, "ok", "ok", "ok")
			p.choices = []string{choice}
			p.env.OnActivity(do.TogetherMachines, mock.Anything, mock.Anything).
				Return([]activities.TogetherMachine{{Machine: "m1", Done: "old"}, {Machine: "m2"}, {Machine: "m3"}}, nil)
			calls := 0
			p.arm = func(q activities.ArmTogetherRequest) error {
				if calls++; calls == 1 {
					require.False(t, q.ClockRight)
					return clockBehind()
				}
				require.Equal(t, choice == contract.Continue, q.ClockRight)
				return nil
			}
			err := p.run(contract.TogetherInput{})
			require.Len(t, p.questions, 1)
			require.Equal(t, "m2.1", p.questions[0].ID, "a machine that is done does not wait")
			require.Equal(t, []string{contract.Retry, contract.Continue, contract.Abort}, p.questions[0].Choices)
			if wrong != "" {
				require.ErrorContains(t, err, wrong)
				require.Equal(t, []string{"start m2", "start m3", "refuse m2 m3", "cancel m2", "cancel m3"}, p.did)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{"start m2", "start m3", "refuse m2 m3", "arm m2 m3"}, p.did)
			require.GreaterOrEqual(t, p.last().Steps[1].Waited, time.Minute)
		})
	}
}

// TestTogetherResumes: what is done stays, and the others continue from their failed step.
func TestTogetherResumes(t *testing.T) {
	p := newPair(t, "ok", "ok", "ok")
	var asked activities.TogetherRequest
	p.env.OnActivity(do.TogetherMachines, mock.Anything, mock.Anything).
		Return(func(_ context.Context, q activities.TogetherRequest) ([]activities.TogetherMachine, error) {
			asked = q
			return []activities.TogetherMachine{{Machine: "m1", Done: "old"}, {Machine: "m2", Resume: "bad"}, {Machine: "m3"}}, nil
		})
	require.NoError(t, p.run(contract.TogetherInput{Resume: "op"}))
	require.Equal(t, []string{"start m2", "start m3", "arm m2 m3"}, p.did)
	require.Equal(t, "bad", p.inputs["m2"].Resume)
	require.Empty(t, p.inputs["m3"].Resume)
	require.Equal(t, "op", asked.Resume)
	require.Equal(t, "together/pair", asked.ID)
	require.Equal(t, "t", asked.Template)
	require.True(t, asked.Since.Equal(p.last().Started))
	require.Equal(t, []string{"m1 done", "m2 done", "m3 done"}, p.states())
	require.Equal(t, "old", p.last().Steps[0].Run)

	// Nothing is left to do.
	p = newPair(t, "ok", "ok")
	p.env.OnActivity(do.TogetherMachines, mock.Anything, mock.Anything).
		Return([]activities.TogetherMachine{{Machine: "m1", Done: "a"}, {Machine: "m2", Done: "b"}}, nil)
	require.NoError(t, p.run(contract.TogetherInput{Resume: "op"}))
	require.Equal(t, []string{"arm "}, p.did, "no run is started and no grant taken")
	require.Equal(t, "2 machines are installed", p.last().Message)
}

// TestResetOfATogetherInstallsNothingAgain: an operation that was reset finds its runs, whether they have ended, hold their grants, or wait
// for them.
func TestResetOfATogetherInstallsNothingAgain(t *testing.T) {
	p := newPair(t, "ok", "ok", "ok")
	p.have = func(q activities.InstalledRequest) activities.OwnRun {
		require.Equal(t, "together/pair", q.Parent)
		require.True(t, p.last().Started.Equal(q.Since), "a run of an earlier operation of this name does not count")
		return activities.OwnRun{Run: "before-" + q.Machine, Mine: true}
	}
	for m, w := range map[string]inventory.Workflow{
		"m1": {State: inventory.StateSuccess, Phase: inventory.PhaseDone, Epoch: 1},
		"m2": {State: inventory.StateRunning, Phase: inventory.PhaseAction, Epoch: 1},
		"m3": {State: inventory.StatePreparing, Phase: inventory.PhaseArm},
	} {
		w.Run, w.Machine = "before-"+m, m
		p.put(w)
	}
	require.NoError(t, p.run(contract.TogetherInput{}))
	require.Equal(t, []string{"arm m1 m2 m3"}, p.did, "a run that has had its grant is left out by ArmTogether")
	require.Equal(t, []string{"m1 done", "m2 done", "m3 done"}, p.states())
	require.Equal(t, "before-m2", p.last().Steps[1].Run)
}

func TestTogetherRefuses(t *testing.T) {
	p := newPair(t, "ok")
	require.ErrorContains(t, p.run(contract.TogetherInput{}), "at least two are needed")
	require.Empty(t, p.did)
	p = newPair(t, "ok", "ok")
	require.ErrorContains(t, p.run(contract.TogetherInput{Policy: "hope"}), `policy: invalid value "hope"`)
	require.Empty(t, p.did)
	p = newPair(t, "ok", "ok")
	p.env.SetStartWorkflowOptions(as("together/other"))
	p.env.ExecuteWorkflow(inventory.TypeTogether, contract.TogetherInput{Name: "pair", Template: "t"})
	require.ErrorContains(t, p.env.GetWorkflowError(), `must run under the id "together/pair"`)
	require.Empty(t, p.operations)
}
