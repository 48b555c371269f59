package workflows_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

var recordHistories = flag.String("record", "", "record testdata/histories again with this Temporal command line tool: one with a "+
	"development server, which the tool of make deps does not have")

// suggestedHistory is the history length at which the recorder's Temporal server suggests to
// continue as new.
const suggestedHistory = 100

// A recording is a run of one workflow type with one ending. Its history is the file
// testdata/histories/NAME.json.
type recording struct {
	name, typ, id string
	input         any
	closes        enums.EventType
	// script changes the behavior of the machine and the operator; nil means that everything
	// succeeds.
	script func(s *script)
}

// Ways in which an execution can close.
const (
	completed = enums.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
	failed    = enums.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED
	cancelled = enums.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED
	continued = enums.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
)

func provision(name string, closes enums.EventType, in contract.ProvisionInput, script func(s *script)) recording {
	in.Machine = machine
	return recording{"provision-" + name, inventory.TypeProvision, workflows.MachineID(machine), in, closes, script}
}

func recovery(name string, closes enums.EventType, in contract.RecoverInput, script func(s *script)) recording {
	in.Name = "rack"
	return recording{"recover-" + name, inventory.TypeRecover, contract.RecoverID("rack"), in, closes, script}
}

func together(name string, closes enums.EventType, in contract.TogetherInput, then func(s *script)) recording {
	in.Name, in.Template, in.HardwareMap = "pair", "image", map[string]string{"device_1": "m1", "device_2": "m2"}
	waiting := func(s *script) {
		s.waits = "m2"
		if then != nil {
			then(s)
		}
	}
	return recording{"together-" + name, inventory.TypeTogether, contract.TogetherID("pair"), in, closes, waiting}
}

// turn records the run of a machine that waits for its turn.
func turn(name string, closes enums.EventType, then func(s *script)) recording {
	in := contract.ProvisionInput{Parent: contract.TogetherID("pair"), HardwareMap: map[string]string{"device_1": "m1", "device_2": machine}}
	return provision("turn-"+name, closes, in, func(s *script) {
		s.waits = machine
		then(s)
	})
}

func migration(name string, closes enums.EventType, script func(s *script)) recording {
	in := contract.MigrateInput{Name: "nas", Target: "nas", Genesis: "home"}
	return recording{"migrate-" + name, inventory.TypeMigrate, contract.MigrateID("nas"), in, closes, script}
}

func bootstrap(name string, closes enums.EventType, in workflows.GenesisInput, script func(s *script)) recording {
	in.Name = "home"
	return recording{"genesis-" + name, inventory.TypeGenesis, workflows.GenesisID("home"), in, closes, script}
}

func recordings() []recording {
	pause := contract.ProvisionInput{Policy: contract.Pause}
	installer := func(s *script) {
		s.plan.Installer = &activities.PlannedInstaller{Payload: "kernel", Complete: inventory.CompleteWebhook, Timeout: 1800}
		s.plan.Actions, s.plan.Evidence = nil, activities.EvidenceWebhook
	}
	job := contract.BMCJobInput{Machine: machine, Job: "j", Tasks: []inventory.BMCTask{{Power: "off"}}}
	bmcJob := workflows.BMCJobID(machine, "j")
	two := contract.RecoverInput{Machines: []string{"m1", "m2"}}
	var rack contract.RecoverInput
	for i := range 9 {
		rack.Machines = append(rack.Machines, "m"+string(rune('1'+i)))
	}
	return []recording{
		provision("success", completed, contract.ProvisionInput{}, nil),
		provision("action-failed", failed, contract.ProvisionInput{}, func(s *script) { s.failFirst() }),
		provision("skipped", completed, pause, func(s *script) { s.failFirst(); s.answers = []string{contract.Skip} }),
		provision("aborted", failed, pause, func(s *script) { s.failFirst(); s.answers = []string{contract.Abort} }),
		provision("restarted", completed, pause, func(s *script) { s.failFirst(); s.answers = []string{contract.Restart} }),
		provision("retried", completed, contract.ProvisionInput{Retries: contract.Retries{Count: 1}}, func(s *script) { s.failFirst() }),
		provision("timeout", failed, contract.ProvisionInput{}, func(s *script) { s.plan.GlobalTimeout = 2; s.silent = true }),
		provision("cancelled", cancelled, contract.ProvisionInput{}, func(s *script) { s.silent = true; s.cancelAt = "Assign" }),
		provision("agent-lost", completed, contract.ProvisionInput{}, func(s *script) { s.lost = true }),
		provision("fenced", failed, contract.ProvisionInput{}, func(s *script) {
			s.refuse("Bind", activities.TypeFenced)
			s.answers = []string{contract.Abort}
		}),
		provision(
			"held",
			failed,
			contract.ProvisionInput{},
			func(s *script) { s.says = inventory.EventHeld; s.answers = []string{contract.Abort} },
		),
		provision("claim-conflict", completed, contract.ProvisionInput{}, func(s *script) {
			s.says = inventory.EventClaimConflict
			s.answers = []string{contract.Restart}
		}),
		provision("resumed", completed, contract.ProvisionInput{Resume: "earlier"}, func(s *script) { s.plan.From = 1 }),
		provision(
			"disk-asked",
			completed,
			contract.ProvisionInput{},
			func(s *script) { s.noDisk = true; s.answers = []string{contract.Retry} },
		),
		provision("manual", completed, contract.ProvisionInput{}, func(s *script) { s.plan.Manual = true }),
		provision("installer", completed, contract.ProvisionInput{}, installer),
		provision("installer-failed", failed, contract.ProvisionInput{}, func(s *script) { installer(s); s.installFails = true }),
		provision("invalid", failed, contract.ProvisionInput{}, func(s *script) { s.refuse("Plan", activities.TypeInvalid) }),
		{
			"reprovision-success",
			inventory.TypeReprovision,
			workflows.MachineID(machine),
			contract.ProvisionInput{Machine: machine},
			completed,
			nil,
		},
		{
			"decommission-success",
			inventory.TypeDecommission,
			workflows.MachineID(machine),
			contract.DecommissionInput{Machine: machine},
			completed,
			nil,
		},
		{
			"decommission-quarantined", inventory.TypeDecommission, workflows.MachineID(machine),
			contract.DecommissionInput{Machine: machine},
			failed,
			func(s *script) { s.failFirst() },
		},
		{"inspect-success", inventory.TypeInspect, workflows.MachineID(machine), contract.InspectInput{Machine: machine}, completed, nil},
		{"bmcjob-success", inventory.TypeBMCJob, bmcJob, job, completed, nil},
		{"bmcjob-failed", inventory.TypeBMCJob, bmcJob, job, failed, func(s *script) { s.refuse("BMCTasks", activities.TypeRefused) }},
		recovery("success", completed, two, nil),
		recovery(
			"waiting",
			completed,
			two,
			func(s *script) { s.noDisk = true; s.answers = []string{contract.Retry}; s.thinks = 2 * time.Second },
		),
		recovery("aborted", completed, contract.RecoverInput{Machines: two.Machines, Concurrency: 1, AbortAfter: 1}, func(s *script) {
			s.refuse("Plan", activities.TypeInvalid)
		}),
		recovery("cancelled", cancelled, two, func(s *script) { s.silent = true; s.cancelAt = "Assign" }),
		recovery("continued", continued, rack, nil),
		turn("success", completed, func(*script) {}),
		turn("failed", failed, func(s *script) { s.refuse("AwaitTurn", activities.TypeConflict) }),
		turn("fenced", failed, func(s *script) {
			s.refuse("AwaitTurn", activities.TypeFenced)
			s.answers = []string{contract.Abort}
		}),
		turn("cancelled", cancelled, func(s *script) { s.silent = true; s.cancelAt = "AwaitTurn" }),
		turn("no-grant", failed, func(s *script) { s.refuse("AwaitGrant", activities.TypeConflict) }),
		together("success", completed, contract.TogetherInput{}, nil),
		together("failed", failed, contract.TogetherInput{}, func(s *script) { s.failFirst() }),
		together("asked", completed, contract.TogetherInput{Policy: contract.Pause}, func(s *script) {
			s.failFirst()
			s.answers, s.thinks = []string{contract.Retry}, 2*time.Second
		}),
		together("resumed", completed, contract.TogetherInput{Resume: "earlier"}, nil),
		together("unplanned", failed, contract.TogetherInput{}, func(s *script) { s.refuse("AwaitPlanned", activities.TypeConflict) }),
		together("clock", completed, contract.TogetherInput{}, func(s *script) {
			s.refuseTimes("ArmTogether", activities.TypeClock, 1)
			s.answers = []string{contract.Continue}
		}),
		together("cancelled", cancelled, contract.TogetherInput{}, func(s *script) { s.silent = true; s.cancelAt = "Assign" }),
		together("cancelled-early", cancelled, contract.TogetherInput{}, func(s *script) { s.silent = true; s.cancelAt = "AwaitPlanned" }),
		migration("success", completed, nil),
		migration("rolled-back", failed, func(s *script) { s.stays = true; s.answers = []string{contract.Abort} }),
		migration("cancelled", cancelled, func(s *script) { s.stays = true; s.cancelAt = "RequestHandOver" }),
		bootstrap("success", completed, workflows.GenesisInput{}, nil),
		bootstrap("skipped", completed, workflows.GenesisInput{}, func(s *script) {
			s.refuse("RouterReady", activities.TypeRefused)
			s.answers = []string{contract.Skip}
		}),
		bootstrap("undone", completed, workflows.GenesisInput{}, func(s *script) {
			s.refuseTimes("ClusterHas", activities.TypeRefused, 2)
			s.answers = []string{contract.Undo, contract.Retry}
		}),
		bootstrap("resumed", completed, workflows.GenesisInput{Resume: true}, func(s *script) { s.finished = 4 }),
		bootstrap("cancelled", cancelled, workflows.GenesisInput{}, func(s *script) { s.silent = true; s.cancelAt = "Assign" }),
	}
}

// TestRecordHistories records the histories for TestReplay. A real worker runs each recording on a
// real Temporal server; only the activities are scripted. Run it after a change of the recorded
// commands, until the first release:
//
//	go install github.com/temporalio/cli/cmd/temporal@v1.5.1
//	go test -run TestRecordHistories ./workflows -record ~/go/bin/temporal
func TestRecordHistories(t *testing.T) {
	if *recordHistories == "" {
		t.Skip("records only with -record")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	args := []string{"--dynamic-config-value", "limit.historyCount.suggestContinueAsNew=" + itoa(suggestedHistory)}
	for _, name := range []string{workflows.AttrMachine, workflows.AttrTemplate, workflows.AttrPhase, workflows.AttrCluster} {
		args = append(args, "--search-attribute", name+"=Keyword")
	}
	server, err := testsuite.StartDevServer(ctx, testsuite.DevServerOptions{
		ExistingPath: *recordHistories, LogLevel: "error", ExtraArgs: args,
		ClientOptions: &client.Options{Identity: "recorder"},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Stop()) }()
	c := server.Client()
	dir := filepath.Join("testdata", "histories")
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, r := range recordings() {
		s := newScript(c)
		if r.script != nil {
			r.script(s)
		}
		stop := s.work(t)
		run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
			ID: r.id, TaskQueue: workflows.TaskQueue, WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		}, r.typ, r.input)
		require.NoError(t, err)
		s.mu.Lock()
		s.recorded = run
		s.mu.Unlock()
		first := run.GetRunID() // Get changes it to the id of the last execution
		result := run.Get(ctx, nil)
		require.NoError(t, ctx.Err(), "%s has not ended", r.name)
		h := historyOf(ctx, t, c, r.id, first)
		t.Logf("%s: %d events, %v", r.name, len(h.Events), result)
		require.Equal(t, r.closes, h.Events[len(h.Events)-1].EventType, r.name)
		save(t, r.name, h)
		if r.closes == continued {
			next := h.Events[len(h.Events)-1].GetWorkflowExecutionContinuedAsNewEventAttributes().GetNewExecutionRunId()
			save(t, r.name+"-next", historyOf(ctx, t, c, r.id, next))
		}
		stop()
	}
}

func historyOf(ctx context.Context, t *testing.T, c client.Client, id, run string) *history.History {
	t.Helper()
	h := &history.History{}
	for it := c.GetWorkflowHistory(ctx, id, run, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
		e, err := it.Next()
		require.NoError(t, err)
		h.Events = append(h.Events, e)
	}
	return h
}

// save writes a history with one event a line.
func save(t *testing.T, name string, h *history.History) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("{\"events\":[")
	for i, e := range h.Events {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		line, err := protojson.Marshal(e)
		require.NoError(t, err)
		require.NoError(t, json.Compact(&b, line)) // protojson adds spaces at random
	}
	b.WriteString("\n]}\n")
	require.NoError(t, os.WriteFile(filepath.Join("testdata", "histories", name+".json"), b.Bytes(), 0o644))
}

func (s *script) work(t *testing.T) (stop func()) {
	t.Helper()
	var workers []worker.Worker
	for _, queue := range []string{workflows.TaskQueue, workflows.WaitQueue} {
		w := worker.New(s.c, queue, worker.Options{
			Identity: "recorder", Interceptors: []interceptor.WorkerInterceptor{s}, DeadlockDetectionTimeout: workflows.Hung,
		})
		workflows.Register(w)
		w.RegisterActivity(activities.New(activities.Config{}))
		require.NoError(t, w.Start())
		workers = append(workers, w)
	}
	return func() {
		for _, w := range workers {
			w.Stop()
		}
	}
}

func newScript(c client.Client) *script {
	return &script{
		c: c, refused: map[string]refusal{}, runs: map[string]inventory.Workflow{}, operations: map[string]inventory.Operation{},
		asked: map[string]bool{}, failing: map[int]bool{}, thinks: 50 * time.Millisecond,
		plan: activities.Planned{
			Template: "image", Image: "debian-12", Digest: "d1gest", GlobalTimeout: 1800, Evidence: activities.EvidencePhoneHome,
			Actions: []activities.PlannedAction{
				{Name: "stream", Task: "os", Image: action.Image2Disk, Timeout: 600, Writes: true},
				{Name: "seed", Task: "os", Image: action.ConfigDrive, Timeout: 60, Writes: true, Seed: true},
				{Name: "reboot", Task: "os", Image: action.Reboot, Timeout: 60, Leaving: true},
			},
		},
	}
}

// labTable is a lab with a step of each kind that behaves differently.
func labTable(finished int) activities.LabTable {
	t := activities.LabTable{SHA256: "1ab", Target: "nas"}
	for i, s := range []genesis.Step{
		{Name: "preflight", Kind: genesis.StepPreflight},
		{Name: "router", Kind: genesis.StepRouter, Machine: "router", Disk: "smallest"},
		{Name: "relay", Kind: genesis.StepRelay, Machine: "router"},
		{Name: "platform", Kind: genesis.StepPlatform, Machine: "platform", Disk: "smallest"},
		{Name: "kubernetes", Kind: genesis.StepKubernetes, Machine: "platform"},
		{Name: "migrate", Kind: genesis.StepMigrate, Machine: "platform"},
		{Name: "create", Kind: genesis.StepCreate, Machine: "node-1", Disk: "smallest"},
		{Name: "vip", Kind: genesis.StepVIP, Machine: "node-1"},
		{Name: "join-node-2", Kind: genesis.StepJoin, Machine: "node-2", Disk: "smallest"},
		{Name: "proven", Kind: genesis.StepProven},
	} {
		s.Does, s.Ready, s.Undo, s.Budget = "does "+s.Name, s.Name+" is proven", "none: recorded", 10*time.Minute
		t.Steps = append(t.Steps, activities.LabStep{Step: s, Finished: i < finished})
	}
	return t
}

// refusal is an error returned by an activity.
type refusal struct {
	typ   string
	times int
}

func (s *script) failFirst() { s.failing[0] = true }

func (s *script) refuse(activity, typ string) { s.refuseTimes(activity, typ, 1000) }

func (s *script) refuseTimes(activity, typ string, times int) {
	s.refused[activity] = refusal{typ, times}
}

// refusalOf returns the error that an activity should return.
func (s *script) refusalOf(activity string) error {
	r := s.refused[activity]
	if r.times == 0 {
		return nil
	}
	r.times--
	s.refused[activity] = r
	return temporal.NewNonRetryableApplicationError("refused by the script", r.typ, nil)
}

// endings returns the names of the recordings with their subjects, and the second half of a
// recording that continues as new.
func endings() map[string]recording {
	all := map[string]recording{}
	for _, r := range recordings() {
		all[r.name] = r
		if r.closes == continued {
			r.closes = completed
			all[r.name+"-next"] = r
		}
	}
	return all
}

// TestEachTypeIsRecorded: without a recording, changes of a workflow type would go unnoticed.
func TestEachTypeIsRecorded(t *testing.T) {
	var types []string
	for _, r := range recordings() {
		types = append(types, r.typ)
	}
	workflows.Register(registry(func(name string) {
		require.True(t, slices.Contains(types, name), "no recording of %s", name)
	}))
}
