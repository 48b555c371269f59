package activities

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// pairOf is the inventory of an operation together/pair with the machines server, which has a BMC, and client, which has none.
type pairOf struct {
	storeOperations
	*testing.T
	store *sqlite.Store
	a     *Activities
	began time.Time // of the operation
	now   time.Time
	reads int
	// onRead, unless it is nil, is called before the open operations are read for the n-th time.
	onRead func(n int)
}

func newPair(t *testing.T) *pairOf {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), keyring.New())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	at := time.Now()
	p := &pairOf{storeOperations: store.Operations, T: t, store: store, began: at, now: at}
	require.NoError(t, store.Machines.PutMachines(t.Context(), []inventory.Machine{
		{
			Name: "server", Interfaces: []inventory.Interface{{MAC: "02:00:00:00:00:a1"}},
			BMC: &inventory.BMC{Driver: inventory.DriverIPMI, Host: "10.0.1.9", User: "admin"},
		},
		{Name: "client", Interfaces: []inventory.Interface{{MAC: "02:00:00:00:00:b1"}}},
	}, false, "test"))
	p.a = New(Config{
		Store: Store{
			Machines: store.Machines, Operations: p, Workflows: store.Workflows, Grants: store.Grants, Plans: store.Plans,
			Events: store.Events, Keys: store.Keys,
		},
		Site:   Site{ImageURL: func() string { return "http://192.0.2.1/images" }},
		Log:    slog.New(slog.DiscardHandler),
		Clocks: Clocks{Now: func() time.Time { return p.now }, ProbeEvery: time.Millisecond},
	})
	return p
}

func (p *pairOf) Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error) {
	p.reads++
	if p.onRead != nil {
		p.onRead(p.reads)
	}
	if p.reads > endless {
		return nil, inventory.ErrUnsupported
	}
	return p.storeOperations.Operations(ctx, f)
}

// endless is more readings than an activity of these tests needs: it would wait for ever.
const endless = 1000

// request is the part of the inputs of operations and runs that the activities read.
type request struct {
	Parent      string            `json:"parent,omitempty"`
	Template    string            `json:"template"`
	HardwareMap map[string]string `json:"hardwareMap"`
	Resume      string            `json:"resume,omitempty"`
}

var pairMap = map[string]string{"device_1": "server", "device_2": "02-00-00-00-00-B1"}

// operation stores the record of an operation. steps are pairs of machine and run.
func (p *pairOf) operation(run, state, step, resume string, steps ...string) {
	p.Helper()
	p.operationOf(run, "together/pair", state, step, request{Template: "t", HardwareMap: pairMap, Resume: resume}, steps...)
}

func (p *pairOf) operationOf(run, id, state, step string, in request, steps ...string) {
	p.Helper()
	o := inventory.Operation{
		Run: run, ID: id, Type: inventory.TypeTogether, Name: "pair", State: state, Step: step, Started: p.began, Input: p.input(in),
	}
	for n := 0; n < len(steps); n += 2 {
		o.Steps = append(o.Steps, inventory.OperationStep{Name: steps[n], Machine: steps[n], Run: steps[n+1]})
	}
	require.NoError(p, p.store.Operations.PutOperation(p.Context(), o))
}

func (p *pairOf) input(in request) json.RawMessage {
	p.Helper()
	raw, err := json.Marshal(in)
	require.NoError(p, err)
	return raw
}

// run stores the record of a run of a machine. If its Input is nil, together/pair has started it.
func (p *pairOf) run(w inventory.Workflow) {
	p.Helper()
	w.ID = "machine/" + w.Machine
	if w.Type == "" {
		w.Type = inventory.TypeProvision
	}
	if w.Started.IsZero() {
		w.Started = p.began
	}
	if w.Input == nil {
		w.Input = p.input(request{Parent: "together/pair"})
	}
	require.NoError(p, p.store.Workflows.PutWorkflow(p.Context(), w))
}

// does carries out an activity as a worker does.
func (p *pairOf) does(activity, q any) error {
	p.Helper()
	p.reads = 0
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(slog.New(slog.DiscardHandler))
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&Errors{}}})
	env.RegisterActivity(p.a)
	_, err := env.ExecuteActivity(activity, q)
	return err
}

// refused requires an error of this type that is not retried.
func (p *pairOf) refused(err error, typ, message string) {
	p.Helper()
	app, ok := errors.AsType[*temporal.ApplicationError](err)
	require.True(p, ok, "%v", err)
	require.Equal(p, typ, app.Type(), err)
	require.True(p, app.NonRetryable())
	require.ErrorContains(p, err, message)
}

func (p *pairOf) grant(machine string) inventory.Grant {
	p.Helper()
	g, err := p.store.Grants.Grant(p.Context(), machine)
	require.NoError(p, err)
	return g
}

// TestTogetherMachines: a retry repeats nothing that an earlier operation has done (security S68).
func TestTogetherMachines(t *testing.T) {
	const failed, success = inventory.StateFailed, inventory.StateSuccess
	untouched := TogetherMachine{Machine: "client"}
	for name, c := range map[string]struct {
		set    func(p *pairOf)
		resume string
		client TogetherMachine
		typ    string // of the error
		wrong  string
	}{
		"fresh": {client: untouched},
		"done": {resume: "o1", client: TogetherMachine{Machine: "client", Done: "c1"}, set: func(p *pairOf) {
			p.operation("o1", failed, "failed", "", "client", "c1")
			p.run(inventory.Workflow{Run: "c1", Machine: "client", State: success, Epoch: 1, Digest: "d"})
		}},
		"failed with a plan": {resume: "o1", client: TogetherMachine{Machine: "client", Resume: "c1"}, set: func(p *pairOf) {
			p.operation("o1", failed, "failed", "", "client", "c1")
			p.run(inventory.Workflow{Run: "c1", Machine: "client", State: failed, Epoch: 1, Digest: "d"})
		}},
		"failed in plan": {resume: "o1", client: untouched, set: func(p *pairOf) {
			p.operation("o1", failed, "failed", "", "client", "c1")
			p.run(inventory.Workflow{Run: "c1", Machine: "client", State: failed})
		}},
		"not started": {resume: "o1", client: untouched, set: func(p *pairOf) { p.operation("o1", failed, "failed", "", "client", "") }},
		"failed in plan as it resumed a run": {resume: "o2", client: TogetherMachine{Machine: "client", Resume: "c1"}, set: func(p *pairOf) {
			p.operation("o1", failed, "failed", "", "client", "c1")
			p.operation("o2", failed, "failed", "o1", "client", "c2")
			p.run(inventory.Workflow{Run: "c1", Machine: "client", State: failed, Epoch: 1, Digest: "d"})
			p.run(inventory.Workflow{Run: "c2", Machine: "client", State: failed, Input: p.input(request{Resume: "c1"})})
		}},
		"not started by the operation that resumed another": {
			resume: "o2", client: TogetherMachine{Machine: "client", Resume: "c1"}, set: func(p *pairOf) {
				p.operation("o1", failed, "failed", "", "client", "c1")
				p.operation("o2", failed, "failed", "o1", "client", "")
				p.run(inventory.Workflow{Run: "c1", Machine: "client", State: failed, Epoch: 1, Digest: "d"})
			},
		},
		"done, and the operation that resumed it failed in plan": {
			resume: "o3", client: TogetherMachine{Machine: "client", Done: "c1"}, set: func(p *pairOf) {
				p.operation("o1", failed, "failed", "", "client", "c1")
				p.operation("o2", failed, "failed", "o1")
				p.operation("o3", failed, "failed", "o2")
				p.run(inventory.Workflow{Run: "c1", Machine: "client", State: success, Epoch: 1, Digest: "d"})
			},
		},
		"wiped since": {resume: "o1", typ: TypeConflict, wrong: `run "w" has installed or wiped machine "client" since`, set: func(p *pairOf) {
			p.operation("o1", failed, "failed", "", "client", "c1")
			p.run(inventory.Workflow{Run: "c1", Machine: "client", State: success, Epoch: 1, Digest: "d"})
			p.run(inventory.Workflow{Run: "w", Machine: "client", Type: inventory.TypeDecommission, State: success, Epoch: 2, Input: []byte("{}")})
		}},
		"an earlier operation of this name since": {resume: "o1", typ: TypeConflict, wrong: `run "c2" has installed`, set: func(p *pairOf) {
			p.operation("o1", failed, "failed", "", "client", "c1")
			p.run(inventory.Workflow{Run: "c1", Machine: "client", State: failed, Epoch: 1, Digest: "d"})
			p.run(inventory.Workflow{Run: "c2", Machine: "client", State: success, Epoch: 2, Started: p.began.Add(-time.Hour)})
		}},
		"installed by the operation itself before it was reset": {
			resume: "o1", client: TogetherMachine{Machine: "client", Done: "c2"}, set: func(p *pairOf) {
				p.operation("o1", failed, "failed", "", "client", "c1")
				p.run(inventory.Workflow{Run: "c1", Machine: "client", State: failed, Epoch: 1, Digest: "d", Started: p.began.Add(-time.Hour)})
				p.run(inventory.Workflow{Run: "c2", Machine: "client", State: success, Epoch: 2, Digest: "d"})
			},
		},
		"continued by the operation itself before it was reset": {
			resume: "o1", client: TogetherMachine{Machine: "client", Resume: "c2"}, set: func(p *pairOf) {
				p.operation("o1", failed, "failed", "", "client", "c1")
				p.run(inventory.Workflow{Run: "c1", Machine: "client", State: failed, Epoch: 1, Digest: "d", Started: p.began.Add(-time.Hour)})
				p.run(inventory.Workflow{Run: "c2", Machine: "client", State: inventory.StateRunning, Epoch: 2, Digest: "d"})
			},
		},
		"a run that is still open": {resume: "o1", typ: TypeConflict, wrong: `run "c1" of machine "client" is still open`, set: func(p *pairOf) {
			p.operation("o1", failed, "failed", "", "client", "c1")
			p.run(inventory.Workflow{Run: "c1", Machine: "client", State: inventory.StateRunning, Epoch: 1, Digest: "d"})
		}},
		"a run without a record": {resume: "o1", typ: TypeNotFound, wrong: `run "c1" of machine "client"`, set: func(p *pairOf) {
			p.operation("o1", failed, "failed", "", "client", "c1")
		}},
		"another operation": {resume: "o1", typ: TypeInvalid, wrong: `operation "o1" is together/other, not together/pair`, set: func(p *pairOf) {
			p.operationOf("o1", "together/other", failed, "failed", request{Template: "t", HardwareMap: pairMap}, "client", "c1")
		}},
		"another template": {resume: "o1", typ: TypeInvalid, wrong: "another template or hardware map", set: func(p *pairOf) {
			p.operationOf("o1", "together/pair", failed, "failed", request{Template: "u", HardwareMap: pairMap}, "client", "c1")
		}},
		"another hardware map": {resume: "o1", typ: TypeInvalid, wrong: "another template or hardware map", set: func(p *pairOf) {
			other := map[string]string{"device_1": "client", "device_2": "server"}
			p.operationOf("o1", "together/pair", failed, "failed", request{Template: "t", HardwareMap: other}, "client", "c1")
		}},
		"an open operation": {resume: "o1", typ: TypeConflict, wrong: `operation "o1" has not ended`, set: func(p *pairOf) {
			p.operation("o1", inventory.StateRunning, "action", "", "client", "c1")
		}},
		"no operation": {resume: "o9", typ: TypeNotFound, wrong: `operation "o9"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			if c.set != nil {
				c.set(p)
			}
			got, err := p.a.TogetherMachines(t.Context(), TogetherRequest{
				ID: "together/pair", Since: p.began, Template: "t", HardwareMap: pairMap, Resume: c.resume,
			})
			if c.typ != "" {
				p.refused(fail(err), c.typ, c.wrong)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []TogetherMachine{c.client, {Machine: "server"}}, got, "sorted by name")
		})
	}

	p := newPair(t)
	unknown := map[string]string{"device_1": "x", "device_2": "y"}
	_, err := p.a.TogetherMachines(t.Context(), TogetherRequest{ID: "together/pair", HardwareMap: unknown})
	p.refused(fail(err), TypeInvalid, `hardwareMap.device_2: "y" is neither`)
}

// TestOpenRunOfAnEarlierOperation: it carries out another request, although the operation has the same name.
func TestOpenRunOfAnEarlierOperation(t *testing.T) {
	p := newPair(t)
	p.run(inventory.Workflow{Run: "c1", Machine: "client", State: inventory.StateRunning, Started: p.began.Add(-time.Second)})
	for since, mine := range map[time.Time]bool{{}: true, p.began: false, p.began.Add(-time.Second): true} {
		own, err := p.a.OpenRun(t.Context(), OpenRunRequest{Machine: "client", Parent: "together/pair", Since: since})
		require.NoError(t, err)
		require.Equal(t, OwnRun{Run: "c1", Mine: mine}, own)
	}
}

// watchedRuns are the records of runs; onRead is called before one is read.
type watchedRuns struct {
	storeWorkflows
	reads  int
	onRead func(n int)
}

func (w *watchedRuns) Workflow(ctx context.Context, run string) (inventory.Workflow, error) {
	w.reads++
	w.onRead(w.reads)
	if w.reads > endless {
		return inventory.Workflow{}, inventory.ErrUnsupported
	}
	return w.storeWorkflows.Workflow(ctx, run)
}

func TestAwaitPlanned(t *testing.T) {
	const running = inventory.StatePreparing
	runs := []TogetherRun{{"client", "c1"}, {"server", "s1"}}
	planned := inventory.Workflow{Run: "c1", Machine: "client", State: running, Phase: inventory.PhaseArm, Seq: 1}
	taken := inventory.Workflow{Run: "s1", Machine: "server", State: running, Phase: inventory.PhasePower, Epoch: 3}
	for name, c := range map[string]struct {
		steps []inventory.Workflow // stored one after another, each before a later reading
		wrong string
	}{
		"both":                                   {steps: []inventory.Workflow{planned, taken}},
		"the first has its grant and has ended":  {steps: []inventory.Workflow{{Run: "c1", Machine: "client", State: inventory.StateFailed, Epoch: 1}, taken}},
		"one after it has planned for a while":   {steps: []inventory.Workflow{planned, {Run: "s1", Machine: "server", State: running, Phase: inventory.PhasePlan, Seq: 1}, {Run: "s1", Machine: "server", State: running, Phase: inventory.PhaseArm, Seq: 2}}},
		"one cannot be planned":                  {steps: []inventory.Workflow{{Run: "c1", Machine: "client", State: inventory.StateFailed, Phase: inventory.PhaseFailed, Message: "no image"}, taken}, wrong: `machine "client": no image`},
		"one was cancelled after it was planned": {steps: []inventory.Workflow{planned, {Run: "c1", Machine: "client", State: inventory.StateCancelled, Phase: inventory.PhaseCancelled, Message: "cancelled", Seq: 2}, taken}, wrong: `machine "client": cancelled`},
		"both cannot, and both are named":        {steps: []inventory.Workflow{{Run: "c1", Machine: "client", State: inventory.StateFailed, Message: "no image"}, {Run: "s1", Machine: "server", State: inventory.StateFailed, Message: "no disk"}}, wrong: "machine \"server\": no disk"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			w := &watchedRuns{storeWorkflows: p.store.Workflows, onRead: func(n int) {
				if n%4 == 0 && n/4 <= len(c.steps) { // each step is seen by a full reading of both
					p.run(c.steps[n/4-1])
				}
			}}
			p.a.Workflows = w
			err := p.does("AwaitPlanned", runs)
			require.GreaterOrEqual(t, w.reads, 4*len(c.steps), "it does not return before all are planned")
			if c.wrong == "" {
				require.NoError(t, err)
				return
			}
			p.refused(err, TypeConflict, c.wrong)
		})
	}
	require.NoError(t, newPair(t).does("AwaitPlanned", []TogetherRun(nil)), "all machines are done")
}

func TestAwaitGrant(t *testing.T) {
	own := inventory.Owner{Machine: "client", Run: "c1"}
	take := func(p *pairOf, run string) {
		claimant := inventory.Claimant{Machine: "client", Run: run, Workflow: "machine/client"}
		require.NoError(p, p.store.Grants.TakeGrants(p.Context(), []inventory.Claimant{claimant}))
	}
	arm := func(p *pairOf, run string) {
		p.operation(run, inventory.StateRunning, inventory.PhaseArm, "", "client", "c1", "server", "s1")
	}
	ended := func(p *pairOf, run string) {
		p.operation(run, inventory.StateFailed, inventory.PhaseFailed, "", "client", "c1", "server", "s1")
	}
	for name, c := range map[string]struct {
		steps []func(p *pairOf) // each before a reading of the open operations
		wrong string
	}{
		"the grant is taken": {steps: []func(p *pairOf){
			func(p *pairOf) { arm(p, "o1") }, func(*pairOf) {}, func(p *pairOf) { take(p, "c1") },
		}},
		"the operation has ended since it took the grant": {steps: []func(p *pairOf){
			func(p *pairOf) { arm(p, "o1") }, func(p *pairOf) { take(p, "c1"); ended(p, "o1") },
		}},
		"the operation ends":    {steps: []func(p *pairOf){func(p *pairOf) { arm(p, "o1") }, func(p *pairOf) { ended(p, "o1") }}, wrong: "together/pair has ended"},
		"there is no operation": {wrong: "together/pair has ended"},
		"another has this name": {steps: []func(p *pairOf){func(p *pairOf) {
			p.operation("o2", inventory.StateRunning, inventory.PhaseArm, "", "client", "c2", "server", "s2")
		}}, wrong: "or did not start this run"},
		"another without it": {steps: []func(p *pairOf){func(p *pairOf) { p.operation("o2", inventory.StateRunning, inventory.PhaseArm, "", "server", "s2") }}, wrong: "or did not start this run"},
		"the operation is reset": {steps: []func(p *pairOf){
			func(p *pairOf) { arm(p, "o1") }, func(p *pairOf) { ended(p, "o1") },
			func(p *pairOf) { p.operation("o2", inventory.StateRunning, inventory.PhasePlan, "") },
			func(p *pairOf) {
				p.operation("o2", inventory.StateRunning, inventory.PhasePlan, "", "client", "", "server", "")
			}, func(*pairOf) {}, func(*pairOf) {},
			func(p *pairOf) {
				p.operation("o2", inventory.StateRunning, inventory.PhasePlan, "", "client", "c1", "server", "s1")
			},
			func(p *pairOf) { take(p, "c1") },
		}},
		"the grant is lost before it is seen": {steps: []func(p *pairOf){
			func(p *pairOf) { arm(p, "o1") },
			func(p *pairOf) {
				p.operation("o1", inventory.StateRunning, inventory.PhaseAction, "", "client", "c1", "server", "s1")
			},
		}, wrong: `together/pair had taken machine "client" for the run`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.onRead = func(n int) {
				if n <= len(c.steps) {
					c.steps[n-1](p)
				}
			}
			err := p.does("AwaitGrant", GrantRequest{Owner: own, Parent: "together/pair"})
			require.GreaterOrEqual(t, p.reads, len(c.steps))
			if c.wrong == "" {
				require.NoError(t, err)
				require.Equal(t, "c1", p.grant("client").Run)
				return
			}
			p.refused(err, TypeConflict, c.wrong)
		})
	}
}

// TestAwaitTurn: a task is done when all its actions have succeeded, the last of a machine when its run has (security S68).
func TestAwaitTurn(t *testing.T) {
	of := func(task string, state action.State) inventory.ActionRecord {
		return inventory.ActionRecord{Task: task, State: state}
	}
	server := func(p *pairOf, seq int64, state string, actions ...inventory.ActionRecord) {
		p.run(inventory.Workflow{Run: "s1", Machine: "server", State: state, Message: "disk on fire", Epoch: 1, Seq: seq, Actions: actions})
	}
	const running = inventory.StateRunning
	for name, c := range map[string]struct {
		after string // "": t0, which is not the last task of the server
		steps []func(p *pairOf)
		typ   string
		wrong string
	}{
		"an earlier task": {steps: []func(p *pairOf){
			func(p *pairOf) { server(p, 1, running) },
			func(p *pairOf) { server(p, 2, running, of("t0", action.Pending), of("t2", action.Pending)) },
			func(p *pairOf) {
				server(p, 3, running, of("t0", action.Success), of("t0", action.Running), of("t2", action.Pending))
			},
			func(p *pairOf) {
				server(p, 4, running, of("t0", action.Success), of("t0", action.Success), of("t2", action.Pending))
			},
		}},
		"a wipe is no task": {steps: []func(p *pairOf){
			func(p *pairOf) {
				server(p, 1, running, of("", action.Running), of("t0", action.Pending), of("t2", action.Pending))
			},
			func(p *pairOf) {
				server(p, 2, running, of("", action.Success), of("t0", action.Pending), of("t2", action.Pending))
			},
			func(p *pairOf) {
				server(p, 3, running, of("", action.Success), of("t0", action.Success), of("t2", action.Pending))
			},
		}},
		"the last task": {after: "t2", steps: []func(p *pairOf){
			func(p *pairOf) { server(p, 1, running, of("t0", action.Success), of("t2", action.Running)) },
			func(p *pairOf) { server(p, 2, running, of("t0", action.Success), of("t2", action.Success)) },
			func(p *pairOf) {
				server(p, 3, inventory.StateSuccess, of("t0", action.Success), of("t2", action.Success))
			},
		}},
		"the only task": {after: "t2", steps: []func(p *pairOf){
			func(p *pairOf) { server(p, 1, running, of("", action.Success), of("t2", action.Success)) },
			func(p *pairOf) {
				server(p, 2, inventory.StateSuccess, of("", action.Success), of("t2", action.Success))
			},
		}},
		"done, and its record holds no actions": {steps: []func(p *pairOf){func(p *pairOf) { server(p, 1, inventory.StateSuccess) }}},
		"failed after the task": {steps: []func(p *pairOf){
			func(p *pairOf) {
				server(p, 1, inventory.StateFailed, of("t0", action.Success), of("t2", action.Failed))
			},
		}},
		"failed in the task": {steps: []func(p *pairOf){
			func(p *pairOf) { server(p, 1, running, of("t0", action.Running), of("t2", action.Pending)) },
			func(p *pairOf) {
				server(p, 2, inventory.StateFailed, of("t0", action.Failed), of("t2", action.Pending))
			},
		}, typ: TypeConflict, wrong: `task "t1" was not begun: machine "server" ended as FAILED before its task "t0" was done: disk on fire`},
		"the last task is done, but the system does not come up": {after: "t2", steps: []func(p *pairOf){
			func(p *pairOf) {
				server(p, 1, inventory.StateTimeout, of("t0", action.Success), of("t2", action.Success))
			},
		}, typ: TypeConflict, wrong: `machine "server" ended as TIMEOUT before its task "t2" was done`},
		"the operation ends": {steps: []func(p *pairOf){
			func(p *pairOf) { server(p, 1, running, of("t0", action.Running), of("t2", action.Pending)) },
			func(p *pairOf) {
				p.operation("o1", inventory.StateFailed, "failed", "", "client", "c1", "server", "s1")
			},
		}, typ: TypeConflict, wrong: "together/pair has ended"},
		"the operation is reset": {steps: []func(p *pairOf){
			func(p *pairOf) {
				server(p, 1, running, of("t0", action.Success), of("t2", action.Pending))
				p.operation("o1", inventory.StateFailed, "failed", "", "client", "c1", "server", "s1")
			},
			func(p *pairOf) { p.operation("o2", running, "plan", "") },
			func(p *pairOf) { p.operation("o2", running, "plan", "", "client", "c1", "server", "") },
			func(p *pairOf) { p.operation("o2", running, "plan", "", "client", "c1", "server", "s1") },
		}},
		"an operation of the same name": {steps: []func(p *pairOf){
			func(p *pairOf) {
				server(p, 1, inventory.StateSuccess)
				p.operation("o1", inventory.StateFailed, "failed", "", "client", "c1", "server", "s1")
				p.operation("o2", running, "action", "", "client", "c2", "server", "s1")
			},
		}, typ: TypeConflict, wrong: "or did not start this run"},
		"the other machine is not in the operation": {steps: []func(p *pairOf){
			func(p *pairOf) {
				p.operation("o1", inventory.StateFailed, "failed", "", "client", "c1", "server", "s1")
				p.operation("o2", running, "action", "", "client", "c1", "other", "x1")
			},
		}, typ: TypeConflict, wrong: `machine "server", whose task "t0" comes before it, is not one of the machines of together/pair`},
		"the machine is taken by force": {steps: []func(p *pairOf){
			func(p *pairOf) { server(p, 1, running, of("t0", action.Running), of("t2", action.Pending)) },
			func(p *pairOf) {
				_, err := p.store.Grants.TakeGrant(p.Context(), "client", "job", "bmc/client/off", true)
				require.NoError(p, err)
			},
		}, typ: TypeFenced, wrong: `machine "client" is owned by run "job"`},
		"the other run's record is gone": {typ: TypeNotFound, wrong: "s1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.operation("o1", running, inventory.PhaseAction, "", "client", "c1", "server", "s1")
			g, err := p.store.Grants.TakeGrant(t.Context(), "client", "c1", "machine/client", false)
			require.NoError(t, err)
			p.onRead = func(n int) {
				if n <= len(c.steps) {
					c.steps[n-1](p)
				}
			}
			turn := inventory.Turn{Task: "t1", Machine: "server", After: "t0"}
			if c.after != "" {
				turn.After = c.after
			}
			err = p.does("AwaitTurn", TurnRequest{Owner: g.Owner, Parent: "together/pair", Turn: turn})
			require.GreaterOrEqual(t, p.reads, len(c.steps), "it returned too early: %v", err)
			if c.typ != "" {
				p.refused(err, c.typ, c.wrong)
				return
			}
			require.NoError(t, err)
		})
	}
}

// TestArmTogether: all grants are taken, or none (security S68).
func TestArmTogether(t *testing.T) {
	q := ArmTogetherRequest{Runs: []TogetherRun{{"client", "c1"}, {"server", "s1"}}}
	off := errors.New("no interface is configured")
	for name, c := range map[string]struct {
		set   func(p *pairOf)
		typ   string
		wrong string
	}{
		"both": {},
		"a plan is gone": {set: func(p *pairOf) {
			p.run(inventory.Workflow{Run: "s1", Machine: "server", State: inventory.StatePreparing, Phase: inventory.PhaseArm, Digest: "other", Seq: 2})
		}, typ: TypeConflict, wrong: `arming "server": the digest of the plan of run "s1" is d, but must be other`},
		"no plan is stored": {set: func(p *pairOf) {
			p.run(inventory.Workflow{Run: "s2", Machine: "server", State: inventory.StatePreparing, Phase: inventory.PhaseArm, Digest: "d"})
		}, typ: TypeNotFound, wrong: `the plan of run "s2" is no longer stored`},
		"the machine with a BMC would not be answered": {set: func(p *pairOf) {
			p.a.Site.Bootable = func() error { return off }
		}, wrong: off.Error()},
		"the clock is behind": {set: func(p *pairOf) {
			require.NoError(p, p.store.Events.AppendEvents(p.Context(), []inventory.Event{{Machine: "server", Kind: inventory.EventDHCP, At: p.now.Add(time.Hour)}}))
		}, typ: TypeClock, wrong: "behind the newest stored event"},
		"the second is busy": {set: func(p *pairOf) {
			_, err := p.store.Grants.TakeGrant(p.Context(), "server", "job", "bmc/server/off", false)
			require.NoError(p, err)
		}, typ: TypeConflict, wrong: `no machine is touched: taking the grants of several machines: machine "server": run "job"`},
		"the second has ended": {set: func(p *pairOf) {
			p.run(inventory.Workflow{Run: "s1", Machine: "server", State: inventory.StateCancelled, Phase: inventory.PhaseCancelled, Digest: "d", Seq: 2})
		}, typ: TypeConflict, wrong: `run "s1" has ended: CANCELLED`},
		"a run without a record": {set: func(p *pairOf) {}, typ: TypeNotFound, wrong: `arming "server"`},
	} {
		t.Run(name, func(t *testing.T) {
			p, q := newPair(t), q
			for machine, run := range map[string]string{"client": "c1", "server": "s1"} {
				p.run(inventory.Workflow{Run: run, Machine: machine, State: inventory.StatePreparing, Phase: inventory.PhaseArm, Digest: "d", Seq: 1})
				require.NoError(t, p.store.Plans.PutPlan(t.Context(), inventory.Plan{Run: run, Digest: "d"}))
			}
			if c.set != nil {
				c.set(p)
			}
			switch name {
			case "no plan is stored":
				q.Runs = []TogetherRun{{"client", "c1"}, {"server", "s2"}}
			case "a run without a record":
				q.Runs = []TogetherRun{{"client", "c1"}, {"server", "s9"}}
			}
			err := fail(p.a.ArmTogether(t.Context(), q))
			if c.wrong != "" {
				require.ErrorContains(t, err, c.wrong)
				if c.typ != "" {
					p.refused(err, c.typ, c.wrong)
				}
				require.NotEqual(t, "c1", p.grant("client").Run, "the client is touched")
				require.NotEqual(t, "s1", p.grant("server").Run)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{"c1", "s1"}, []string{p.grant("client").Run, p.grant("server").Run})
		})
	}
}

// TestArmTogetherAgain: the answer of the first call was lost. A run that has ended since keeps no grant, and the other keeps its grant.
func TestArmTogetherAgain(t *testing.T) {
	p := newPair(t)
	q := ArmTogetherRequest{Runs: []TogetherRun{{"client", "c1"}, {"server", "s1"}}}
	for machine, run := range map[string]string{"client": "c1", "server": "s1"} {
		p.run(inventory.Workflow{Run: run, Machine: machine, State: inventory.StatePreparing, Phase: inventory.PhaseArm, Seq: 1})
	}
	require.NoError(t, p.a.ArmTogether(t.Context(), q))
	client, server := p.grant("client"), p.grant("server")
	require.NoError(t, p.a.ArmTogether(t.Context(), q))
	require.Equal(t, client, p.grant("client"))

	// The client's run was armed, failed and ended.
	require.NoError(t, p.store.Grants.EndGrant(t.Context(), client.Owner))
	p.run(inventory.Workflow{Run: "c1", Machine: "client", State: inventory.StateFailed, Epoch: client.Epoch, Seq: 2})
	require.NoError(t, p.a.ArmTogether(t.Context(), q))
	require.Empty(t, p.grant("client").Run)
	require.Equal(t, server, p.grant("server"))

	// The operator confirms the clock.
	p = newPair(t)
	for machine, run := range map[string]string{"client": "c1", "server": "s1"} {
		p.run(inventory.Workflow{Run: run, Machine: machine, State: inventory.StatePreparing, Phase: inventory.PhaseArm, Seq: 1})
	}
	ahead := inventory.Event{Machine: "server", Kind: inventory.EventDHCP, At: p.now.Add(time.Hour)}
	require.NoError(t, p.store.Events.AppendEvents(t.Context(), []inventory.Event{ahead}))
	p.refused(fail(p.a.ArmTogether(t.Context(), q)), TypeClock, "behind")
	require.Empty(t, p.grant("client").Run+p.grant("server").Run)
	q.ClockRight = true
	require.NoError(t, p.a.ArmTogether(t.Context(), q))
	require.Equal(t, "s1", p.grant("server").Run)
}

// TestResumeOfARunThatWaited: a run of its own has no operation that knows the other machines.
func TestResumeOfARunThatWaited(t *testing.T) {
	p := newPair(t)
	p.run(inventory.Workflow{Run: "c1", Machine: "client", State: inventory.StateFailed, Epoch: 1, Digest: "d"})
	plan := inventory.Plan{
		Run: "c1", Digest: "d", Actions: []action.Action{{Name: "a", Task: "t1", Image: "noop", Timeout: 60}},
		Turns: []inventory.Turn{{Task: "t1", Machine: "server", After: "t0"}},
	}
	require.NoError(t, p.store.Plans.PutPlan(t.Context(), plan))
	_, err := p.a.Plan(t.Context(), PlanRequest{Run: "c2", Machine: "client", Resume: "c1"})
	p.refused(fail(err), TypeInvalid, `the tasks of run "c1" wait for other machines`)
	planned, err := p.a.Plan(t.Context(), PlanRequest{Run: "c2", Machine: "client", Resume: "c1", Together: true})
	require.NoError(t, err)
	require.Equal(t, &plan.Turns[0], planned.Actions[0].After)
}

// TestTurnOf: a task waits before the first of its actions that the run carries out, once.
func TestTurnOf(t *testing.T) {
	turn := &inventory.Turn{Task: "t2", Machine: "server", After: "t1"}
	p := Planned{Actions: []PlannedAction{{Task: "t0"}, {Task: "t2", After: turn}, {Task: "t2", After: turn}, {Task: "t3"}}}
	for from, want := range map[int][]*inventory.Turn{0: {nil, turn, nil, nil}, 1: {nil, turn, nil, nil}, 2: {nil, turn, turn, nil}} {
		p.From = from
		for i := from; i < len(p.Actions); i++ {
			require.Equal(t, want[i], p.TurnOf(i), "from %d, action %d", from, i)
		}
	}
}
