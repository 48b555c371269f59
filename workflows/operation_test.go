package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// Parts of a store, under names that none of their methods has, so that a struct can embed them.
type (
	someMachines   = activities.Machines
	someOperations = activities.Operations
	someWorkflows  = activities.Workflows
)

// book is the part of the inventory that an operation uses.
type book struct {
	someMachines
	someOperations
	someWorkflows

	mu         sync.Mutex
	operations []inventory.Operation
	runs       map[string]inventory.Workflow
	machines   []inventory.Machine
	read       func(w *inventory.Workflow) // called when a record is read; may be nil
	wrote      func(o inventory.Operation) // called when a record is written; may be nil
	decided    bool                        // the question of the last record is answered
}

func (b *book) PutOperation(ctx context.Context, o inventory.Operation) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.decided && o.Question == nil || inventory.Final(o.State) {
		b.decided = false
		if activity.GetInfo(ctx).IsLocalActivity {
			return fmt.Errorf("%s: a task that is carried out again may decide in another way than this record tells", o.Message)
		}
	}
	// Like a store, keep a copy that shares no memory with the workflow.
	raw, err := json.Marshal(o)
	var kept inventory.Operation
	if err == nil {
		err = json.Unmarshal(raw, &kept)
	}
	// Like the store, refuse a record that a newer one has overtaken: coroutines write side by side.
	if n := len(b.operations); n == 0 || kept.Run != b.operations[n-1].Run || kept.Seq > b.operations[n-1].Seq {
		b.operations = append(b.operations, kept)
	}
	if b.wrote != nil {
		b.wrote(kept)
	}
	return err
}

func (b *book) Operations(context.Context, inventory.OperationFilter) ([]inventory.Operation, error) {
	return nil, nil
}

func (b *book) Machines(context.Context) ([]inventory.Machine, error) { return b.machines, nil }

func (b *book) last() inventory.Operation {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.operations[len(b.operations)-1]
}

func (b *book) put(w inventory.Workflow) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs[w.Run] = w
}

func (b *book) Workflow(_ context.Context, run string) (inventory.Workflow, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w, ok := b.runs[run]; ok {
		if b.read != nil {
			b.read(&w)
			b.runs[run] = w
		}
		return w, nil
	}
	return inventory.Workflow{}, inventory.ErrNotFound
}

func (b *book) Workflows(context.Context, inventory.WorkflowFilter) ([]inventory.Workflow, error) {
	return nil, errors.New("no operation of these tests asks for lists")
}

func (b *book) LatestWorkflow(_ context.Context, machine string) (inventory.Workflow, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.runs {
		if w.Machine == machine {
			return w, nil
		}
	}
	return inventory.Workflow{}, inventory.ErrNotFound
}

// play is a test of one operation: its steps and the operators' answers.
type play struct {
	*testing.T
	*book
	suite  testsuite.WorkflowTestSuite
	env    *Environment
	said   []string // steps carried out, in order
	answer func(q inventory.Question) string
	// questions are the questions that were asked.
	questions []inventory.Question
	// have returns the run of an operation that has installed a machine; nil means none.
	have func(q activities.InstalledRequest) activities.OwnRun
}

func newPlay(t *testing.T) *play {
	t.Helper()
	p := &play{T: t, book: &book{runs: map[string]inventory.Workflow{}}}
	p.env = NewEnvironment(&p.suite)
	p.env.SetStartWorkflowOptions(as("genesis/lab"))
	p.env.RegisterActivity(
		activities.New(activities.Config{
			Store:  activities.Store{Machines: p.book, Operations: p.book, Workflows: p.book},
			Clocks: activities.Clocks{ProbeEvery: time.Millisecond},
		}),
	)
	p.env.OnActivity(do.Installed, mock.Anything, mock.Anything).
		Return(func(_ context.Context, q activities.InstalledRequest) (activities.OwnRun, error) {
			if p.have == nil {
				return activities.OwnRun{}, nil
			}
			return p.have(q), nil
		}).
		Maybe()
	return p
}

// run runs steps as operation genesis/lab and returns its error.
func (p *play) run(steps func(o *operation) []step, finished map[string]bool, rollBack bool) error {
	p.Helper()
	var asked int
	watch := func() {}
	watch = func() {
		if len(p.operations) > 0 {
			if q := p.last().Question; q != nil && p.answer != nil && len(p.questions) == asked {
				p.questions = append(p.questions, *q)
				asked++
				if choice := p.answer(*q); choice != "" {
					p.decided = true
					p.env.UpdateWorkflow(UpdateDecide, fmt.Sprint("update-", asked), updates{p}, contract.Decision{Question: q.ID, Choice: choice})
				}
			} else if q == nil {
				asked = len(p.questions)
			}
		}
		if !p.env.IsWorkflowCompleted() {
			p.env.RegisterDelayedCallback(watch, 10*time.Second)
		}
	}
	p.env.RegisterDelayedCallback(watch, 0)
	p.env.ExecuteWorkflow(func(ctx workflow.Context, in GenesisInput) (err error) {
		o, err := newOperation(ctx, inventory.TypeGenesis, GenesisID(in.Name), in.Name, in)
		if err != nil {
			return err
		}
		defer func() { err = o.end(ctx, err) }()
		table := steps(o)
		o.recordTable(table, finished)
		err = o.runSteps(ctx, table, finished)
		if err != nil && rollBack {
			err = errors.Join(err, o.rollBack(ctx, table))
		}
		return err
	}, GenesisInput{Name: "lab"})
	require.True(p, p.env.IsWorkflowCompleted())
	return p.env.GetWorkflowError()
}

type updates struct{ *play }

func (u updates) Accept()             {}
func (u updates) Reject(err error)    { u.Error("refused:", err) }
func (u updates) Complete(any, error) {}

func (p *play) say(format string, args ...any) { p.said = append(p.said, fmt.Sprintf(format, args...)) }

// act returns a step that records what it does, and that fails as long as fails says so.
func (p *play) act(name string, fails func(what string) error) step {
	note := func(what string) error {
		p.say("%s %s", what, name)
		if fails == nil {
			return nil
		}
		return fails(what)
	}
	return step{
		name: name, machine: "m-" + name, does: "does " + name, waits: "waits for " + name, undoes: "takes back " + name, budget: time.Hour,
		do:    func(workflow.Context, *inventory.OperationStep) error { return note("do") },
		ready: func(workflow.Context, time.Duration) error { return note("look at") },
		undo:  func(workflow.Context) error { return note("undo") },
	}
}

// times makes a step fail n times.
func times(n int, in string) func(string) error {
	return func(what string) error {
		if what == in && n > 0 {
			n--
			return temporal.NewNonRetryableApplicationError("no luck", "Test", nil)
		}
		return nil
	}
}

func (p *play) states() (out []string) {
	for _, s := range p.last().Steps {
		out = append(out, s.Name+" "+s.State)
	}
	return out
}

func TestOperationGoesThroughItsTable(t *testing.T) {
	p := newPlay(t)
	require.NoError(t, p.run(func(*operation) []step { return []step{p.act("a", nil), p.act("b", nil)} }, nil, false))
	require.Equal(t, []string{"do a", "look at a", "do b", "look at b"}, p.said)
	o := p.last()
	require.Equal(t, inventory.StateSuccess, o.State)
	require.Equal(t, inventory.PhaseDone, o.Step)
	require.Equal(t, []string{"a done", "b done"}, p.states())
	require.JSONEq(t, `{"name":"lab"}`, string(o.Input))
	require.Equal(t, "m-b", o.Steps[1].Machine)
	require.False(t, o.Steps[1].Ended.IsZero())
	for _, x := range p.operations[:len(p.operations)-1] {
		require.Equal(t, inventory.StateRunning, x.State)
	}
}

func TestOperationAsksAboutAStepThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		fails   func(string) error
		answers []string
		want    []string
		states  []string
		err     string
	}{
		"retry":            {times(1, "do"), []string{contract.Retry}, []string{"do a", "do a", "look at a", "do b"}, []string{"a done", "b done"}, ""},
		"undo, then retry": {times(1, "do"), []string{contract.Undo, contract.Retry}, []string{"do a", "undo a", "do a", "look at a", "do b"}, []string{"a done", "b done"}, ""},
		"undo, then abort": {times(1, "do"), []string{contract.Undo, contract.Abort}, []string{"do a", "undo a"}, []string{"a undone", "b pending"}, "aborted by the operator"},
		"an undo that fails is asked about": {
			func(what string) error { return temporal.NewNonRetryableApplicationError(what+" broke", "Test", nil) },
			[]string{contract.Undo, contract.Abort},
			[]string{"do a", "undo a"},
			[]string{"a failed", "b pending"},
			"aborted by the operator",
		},
		"skip":  {times(1, "do"), []string{contract.Skip}, []string{"do a", "do b"}, []string{"a skipped", "b done"}, ""},
		"abort": {times(1, "do"), []string{contract.Abort}, []string{"do a"}, []string{"a failed", "b pending"}, "aborted by the operator"},
		// The first probe exceeded its budget, and the last check succeeded.
		"late, but there": {times(1, "look at"), nil, []string{"do a", "look at a", "look at a", "do b"}, []string{"a done", "b done"}, ""},
		"not there":       {times(2, "look at"), []string{contract.Retry}, []string{"do a", "look at a", "look at a", "do a", "look at a", "do b"}, []string{"a done", "b done"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t)
			n := 0
			p.answer = func(q inventory.Question) string {
				require.Less(t, n, len(c.answers), q.Text)
				require.Contains(t, q.Choices, c.answers[n])
				n++
				return c.answers[n-1]
			}
			second := p.act("b", nil)
			second.ready = nil
			err := p.run(func(*operation) []step { return []step{p.act("a", c.fails), second} }, nil, false)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
				require.Equal(t, inventory.StateFailed, p.last().State)
			}
			require.Equal(t, c.want, p.said)
			require.Equal(t, c.states, p.states())
			require.Equal(t, len(c.answers), n)
			if n > 0 {
				require.Contains(t, p.questions[0].Text, "step a: ")
				require.Equal(t, "a.1", p.questions[0].ID)
			}
		})
	}
}

func TestStepThatCannotBeSkipped(t *testing.T) {
	p := newPlay(t)
	p.answer = func(inventory.Question) string { return contract.Abort }
	s := p.act("a", times(1, "do"))
	s.must = true
	require.ErrorContains(t, p.run(func(*operation) []step { return []step{s, p.act("b", nil)} }, nil, false), "aborted")
	require.Equal(t, []string{contract.Retry, contract.Undo, contract.Abort}, p.questions[0].Choices)
}

func TestOperationProvesWhatIsDoneAlready(t *testing.T) {
	p := newPlay(t)
	gone := p.act("gone", times(1, "look at"))
	err := p.run(
		func(*operation) []step { return []step{p.act("done", nil), gone, p.act("new", nil)} },
		map[string]bool{"done": true, "gone": true},
		false,
	)
	require.NoError(t, err)
	require.Equal(t, []string{"look at done", "look at gone", "do gone", "look at gone", "do new", "look at new"}, p.said,
		"what is still done is not repeated, and what is not done any more is")
}

func TestCancelledOperationIsTakenBackInReverse(t *testing.T) {
	p := newPlay(t)
	last := p.act("c", nil)
	last.ready = func(ctx workflow.Context, _ time.Duration) error { return workflow.Sleep(ctx, time.Hour) }
	never := p.act("d", nil)
	fixed := p.act("b", nil)
	fixed.undo = nil
	p.env.RegisterDelayedCallback(p.env.CancelWorkflow, 10*time.Minute)
	err := p.run(func(*operation) []step { return []step{p.act("a", nil), fixed, last, never} }, nil, true)
	require.ErrorContains(t, err, "canceled")
	require.Equal(t, []string{"do a", "look at a", "do b", "look at b", "do c", "undo c", "undo a"}, p.said)
	require.Equal(t, []string{"a undone", "b done", "c undone", "d pending"}, p.states())
	require.Equal(t, inventory.StateCancelled, p.last().State)
}

func TestOperationRefusesAnotherID(t *testing.T) {
	p := newPlay(t)
	o := as("genesis/other")
	p.env.SetStartWorkflowOptions(o)
	require.ErrorContains(t, p.run(func(*operation) []step { return nil }, nil, false), `must run under the id "genesis/lab"`)
}

// TestOperationAndTheRunsOfMachines starts a machine's run, finds its own run again, and does not
// touch a run that someone else has started.
func TestOperationAndTheRunsOfMachines(t *testing.T) {
	for name, c := range map[string]struct {
		ends    inventory.Workflow // the record that the child writes last
		want    activities.Outcome
		message string
	}{
		"success":                   {ends: inventory.Workflow{State: inventory.StateSuccess, Phase: inventory.PhaseDone}, want: activities.Outcome{State: inventory.StateSuccess, Phase: inventory.PhaseDone}},
		"failure":                   {ends: inventory.Workflow{State: inventory.StateFailed, Phase: inventory.PhaseFailed, Message: "bad disk"}, want: activities.Outcome{State: inventory.StateFailed, Phase: inventory.PhaseFailed, Message: "bad disk"}},
		"asking, where that counts": {ends: inventory.Workflow{State: inventory.StateRunning, Phase: inventory.PhaseWaiting, Message: "which disk?"}, want: activities.Outcome{State: inventory.StateRunning, Phase: inventory.PhaseWaiting, Message: "which disk?", Asks: true}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t)
			p.env.RegisterWorkflowWithOptions(func(ctx workflow.Context, in contract.ProvisionInput) error {
				info := workflow.GetInfo(ctx)
				require.Equal(t, "machine/m1", info.WorkflowExecution.ID)
				require.Equal(t, "genesis/lab", in.Parent)
				w := c.ends
				w.Run, w.Machine = info.WorkflowExecution.RunID, in.Machine
				p.put(w)
				return nil
			}, workflow.RegisterOptions{Name: inventory.TypeProvision})
			var got activities.Outcome
			err := p.run(func(o *operation) []step {
				return []step{
					{
						name:   "install",
						does:   "installs",
						undoes: "none: test",
						budget: time.Hour,
						do: func(ctx workflow.Context, s *inventory.OperationStep) (err error) {
							got, err = o.runMachine(ctx, s, inventory.TypeProvision, "m1", contract.ProvisionInput{Machine: "m1", Parent: o.record.ID})
							return err
						},
					},
				}
			}, nil, false)
			require.NoError(t, err)
			require.Equal(t, p.last().Steps[0].Run, got.Run)
			require.NotEmpty(t, got.Run)
			got.Run = ""
			require.Equal(t, c.want, got)
		})
	}
}

// Between a run's last record and its end in Temporal, the run no longer holds the machine, but no
// other run of the machine can start.
func TestEndingRunIsAwaited(t *testing.T) {
	p := newPlay(t)
	p.env.Intercept(&existing{})
	p.answer = func(q inventory.Question) string { t.Error(q.Text); return contract.Abort }
	began := 0
	p.env.RegisterWorkflowWithOptions(func(ctx workflow.Context, in contract.ProvisionInput) error {
		began++
		p.put(inventory.Workflow{Run: workflow.GetInfo(ctx).WorkflowExecution.RunID, Machine: in.Machine, State: inventory.StateSuccess})
		return workflow.Sleep(ctx, 10*time.Second)
	}, workflow.RegisterOptions{Name: inventory.TypeProvision})
	require.NoError(t, p.run(func(o *operation) []step {
		install := step{
			name:   "install",
			does:   "installs",
			undoes: "none: test",
			budget: time.Hour,
			do: func(ctx workflow.Context, s *inventory.OperationStep) error {
				_, err := o.runMachine(ctx, s, inventory.TypeProvision, "m1", contract.ProvisionInput{Machine: "m1", Parent: o.record.ID})
				return err
			},
		}
		return []step{install, install}
	}, nil, false))
	require.Equal(t, 2, began)
	require.Empty(t, p.questions)
}

// existing makes the test environment report an existing run with the error of a worker.
type existing struct {
	interceptor.WorkerInterceptorBase
}

func (*existing) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &existingInbound{interceptor.WorkflowInboundInterceptorBase{Next: next}}
}

type existingInbound struct {
	interceptor.WorkflowInboundInterceptorBase
}

func (e *existingInbound) Init(next interceptor.WorkflowOutboundInterceptor) error {
	return e.Next.Init(&existingOutbound{interceptor.WorkflowOutboundInterceptorBase{Next: next}})
}

type existingOutbound struct {
	interceptor.WorkflowOutboundInterceptorBase
}

func (e *existingOutbound) ExecuteChildWorkflow(ctx workflow.Context, typ string, args ...any) workflow.ChildWorkflowFuture {
	return existingChild{e.Next.ExecuteChildWorkflow(ctx, typ, args...)}
}

type existingChild struct{ workflow.ChildWorkflowFuture }

func (c existingChild) GetChildWorkflowExecution() workflow.Future {
	return existingStart{c.ChildWorkflowFuture.GetChildWorkflowExecution()}
}

type existingStart struct{ workflow.Future }

func (s existingStart) Get(ctx workflow.Context, v any) error {
	err := s.Future.Get(ctx, v)
	if err != nil && strings.Contains(err.Error(), "already started") {
		return &temporal.ChildWorkflowExecutionAlreadyStartedError{}
	}
	return err
}

func as(id string) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{ID: id, TaskQueue: TaskQueue}
}
