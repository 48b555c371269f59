package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// house is a lab in which this test simulates everything that Genesis uses: routers, Talos,
// Kubernetes, Harvester, BMCs and the runs of machines. The inventory is real, and the lab file is
// the example in the repository.
type house struct {
	fakesite.Inventory               // with what this test replaces
	Store              *sqlite.Store // without
	t                  *testing.T
	do                 *activities.Activities
	lab                genesis.Lab
	suite              testsuite.WorkflowTestSuite
	env                *workflows.Environment

	mu        sync.Mutex
	begun     time.Time
	did       []string // installations, bootstraps, power, in order
	installed map[string]bool
	boots     int              // of etcd
	relay     []string         // servers
	broken    map[string]error // what fails, by name; cleared by an answer
	once      map[string]bool  // names in broken that fail only once
	asked     []inventory.Question
	answer    func(q inventory.Question) string
	asks      map[string]string // machines whose run asks an operator first
	events    map[string]func() // called when a thing is done, before it is recorded
	runs      int
	before    func(*workflows.Environment)                                                       // called before each run
	said      []string                                                                           // by rows that wait
	slow      time.Duration                                                                      // an installation
	await     func(ctx context.Context, q activities.OutcomeRequest) (activities.Outcome, error) // instead of AwaitRun
}

func newHouse(t *testing.T) *house {
	t.Helper()
	keys := keyring.New()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), keys)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	h := &house{
		Inventory: fakesite.InventoryOf(store),
		Store:     store,
		t:         t,
		installed: map[string]bool{},
		broken:    map[string]error{},
		once:      map[string]bool{},
		asks:      map[string]string{},
		events:    map[string]func(){},
		slow:      5 * time.Millisecond,
		answer:    func(q inventory.Question) string { return q.Choices[len(q.Choices)-1] },
	}
	dir := filepath.Join("..", "deploy", "genesis")
	b, lab, err := genesis.Bundle(
		"lab.yaml",
		func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) },
		systems.All{},
	)
	require.NoError(t, err)
	h.lab = lab
	b.Name = "home"
	_, err = store.Genesis.PutGenesis(t.Context(), b, "test")
	require.NoError(t, err)
	for _, i := range lab.Images {
		require.NoError(
			t,
			store.Images.PutImage(t.Context(), inventory.Image{Name: i.Name, File: i.Name, Size: 1, SHA256: i.SHA256, Format: "raw"}, "test"),
		)
	}
	h.do = activities.New(activities.Config{
		Store:   fakesite.ActivityStore(h),
		BMC:     bmcs{h},
		Systems: activities.Systems{Presence: h, Routers: routers{h}, Talos: nodes{h}, Kubernetes: kube{h}, Clusters: clusters{h}},
		Move:    activities.Move{Peers: peers{h}},
		Site:    activities.Site{ImageURL: func() string { return "http://10.0.0.1/images" }},
		Log:     slog.New(slog.DiscardHandler),
		Clocks:  activities.Clocks{ProbeEvery: time.Millisecond},
	})
	h.fresh()
	return h
}

// fresh creates another worker: the next workflow runs in it.
func (h *house) fresh() {
	h.suite.SetLogger(slog.New(slog.DiscardHandler))
	h.env = workflows.NewEnvironment(&h.suite)
	h.begun = time.Now()
	h.env.SetStartTime(h.begun)
	h.do.Now = h.env.Now
	require.NoError(h.t, h.env.SetTypedSearchAttributesOnStart(temporal.NewSearchAttributes()))
	h.env.RegisterActivity(h.do)
	h.env.RegisterActivity(h.play)
	h.env.RegisterActivity(h.move)
	h.env.RegisterWorkflowWithOptions(h.provision, workflow.RegisterOptions{Name: inventory.TypeProvision})
	h.env.RegisterWorkflowWithOptions(h.migrate, workflow.RegisterOptions{Name: inventory.TypeMigrate})
	h.env.RegisterWorkflowWithOptions(h.power, workflow.RegisterOptions{Name: inventory.TypeBMCJob})
	// A wait that uses the clock of this host fails at once here.
	h.env.OnActivity(h.do.NodeAnswers, mock.Anything, mock.Anything).Return(func(ctx context.Context, q activities.LabRequest) error {
		if found, _, err := h.Answers(ctx, h.address(q.Machine)); err != nil || !found {
			return temporal.NewNonRetryableApplicationError("no one answers", activities.TypeUnreachable, err)
		}
		return h.do.NodeAnswers(ctx, q)
	})
	if h.await != nil {
		h.env.OnActivity(h.do.AwaitRun, mock.Anything, mock.Anything).Return(h.await)
	}
	h.env.OnActivity(h.do.RelayProven, mock.Anything, mock.Anything).Return(func(ctx context.Context, q activities.LabRequest) error {
		if h.fails("relay") != nil {
			return temporal.NewNonRetryableApplicationError("no one was received", activities.TypeUnreachable, nil)
		}
		return h.do.RelayProven(ctx, q)
	})
}

func (h *house) run(in workflows.GenesisInput) (inventory.Operation, error) {
	h.t.Helper()
	h.fresh()
	if h.before != nil {
		h.before(h.env)
	}
	h.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: workflows.GenesisID(in.Name), TaskQueue: workflows.TaskQueue})
	h.runs++
	h.env.ExecuteWorkflow(workflows.Genesis, in)
	require.True(h.t, h.env.IsWorkflowCompleted())
	list, err := h.Store.Operations.Operations(context.Background(), inventory.OperationFilter{ID: workflows.GenesisID(in.Name), Limit: 1})
	require.NoError(h.t, err)
	require.NotEmpty(h.t, list)
	return list[0], h.env.GetWorkflowError()
}

func (h *house) address(machine string) netip.Addr {
	m, _ := h.lab.Machine(machine)
	return m.Address()
}

func (h *house) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.did = append(h.did, fmt.Sprintf(format, args...))
}

// fails returns the error of what is broken under that name.
func (h *house) fails(word string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.broken[word]
	if h.once[word] {
		delete(h.broken, word)
	}
	return err
}

func (h *house) breaks(word string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken[word] = fmt.Errorf("%s is broken: %w", word, err)
}

func (h *house) mend(word string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.broken, word)
}

func (h *house) happens(what string) {
	h.mu.Lock()
	f := h.events[what]
	delete(h.events, what)
	h.mu.Unlock()
	if f != nil {
		f()
	}
}

// PutOperation answers questions when they are recorded.
func (h *house) PutOperation(ctx context.Context, o inventory.Operation) error {
	o.Run = h.unique(o.Run)
	if err := h.Store.Operations.PutOperation(ctx, o); err != nil {
		return err
	}
	if q := o.Question; q != nil && (len(h.asked) == 0 || h.asked[len(h.asked)-1].ID != q.ID) {
		h.asked = append(h.asked, *q)
		if choice := h.answer(*q); choice != "" {
			h.env.RegisterDelayedCallback(func() {
				h.env.SignalWorkflow(workflows.SignalDecide, contract.Decision{Question: q.ID, Choice: choice})
			}, time.Minute)
		}
	}
	for _, r := range o.Steps {
		if r.State == inventory.StepWaiting && o.Question == nil {
			h.said = append(h.said, fmt.Sprintf("%s %s %s %s", r.Name, r.State, r.Message, o.Next))
			h.happens("waits " + r.Machine)
		}
	}
	h.happens("at " + o.Step)
	return nil
}

// provision plays the run of a machine: it succeeds unless the machine is broken, and writes
// its record.
func (h *house) provision(ctx workflow.Context, in contract.ProvisionInput) (workflows.Outcome, error) {
	info := workflow.GetInfo(ctx)
	w := inventory.Workflow{
		Run:     info.WorkflowExecution.RunID,
		ID:      info.WorkflowExecution.ID,
		Type:    inventory.TypeProvision,
		Machine: in.Machine,
		State:   inventory.StateRunning,
		Phase:   inventory.PhasePower,
		Message: "starting",
		Started: workflow.Now(ctx),
		Actions: []inventory.ActionRecord{},
	}
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	say := func(ctx workflow.Context) error {
		w.Seq++
		w.Updated = workflow.Now(ctx)
		return workflow.ExecuteLocalActivity(ctx, h.play, w, in).Get(ctx, nil)
	}
	rest, done := workflow.NewDisconnectedContext(local)
	defer done()
	if err := say(rest); err != nil {
		return workflows.Outcome{}, err
	}
	if text := h.asks[in.Machine]; text != "" {
		w.Message, w.Next = text, "ingot workflow powered-on "+in.Machine
		if err := say(local); err != nil {
			return workflows.Outcome{}, err
		}
		workflow.GetSignalChannel(ctx, workflows.SignalPoweredOn).Receive(ctx, nil)
		w.Phase, w.Message, w.Next = inventory.PhaseDHCP, "waiting", ""
		if err := say(local); err != nil {
			return workflows.Outcome{}, err
		}
	}
	err := workflow.Sleep(ctx, h.slow)
	if err == nil {
		err = h.fails("installing " + in.Machine)
	}
	w.State, w.Phase, w.Message = inventory.StateSuccess, inventory.PhaseDone, "installed and ready"
	switch {
	case temporal.IsCanceledError(err):
		w.State, w.Phase, w.Message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	case err != nil:
		w.State, w.Phase, w.Message = inventory.StateFailed, inventory.PhaseFailed, err.Error()
	}
	w.Ended = workflow.Now(ctx)
	if e := say(rest); err == nil {
		err = e
	}
	return workflows.Outcome{State: w.State}, err
}

// play records a machine's run.
func (h *house) play(ctx context.Context, w inventory.Workflow, in contract.ProvisionInput) error {
	var err error
	if w.Input, err = json.Marshal(in); err != nil {
		return err
	}
	// The test environment and its activities have different clocks.
	if w.Seq == 1 {
		h.note("install %s", w.Machine)
		h.happens("installing " + w.Machine)
	}
	if inventory.Final(w.State) {
		h.mu.Lock()
		h.installed[w.Machine] = w.State == inventory.StateSuccess
		if w.Machine == "vp6630" && w.State == inventory.StateSuccess {
			h.relay = []string{"192.168.1.10"}
		}
		if w.Machine == "um760" {
			h.boots = 0
		}
		h.mu.Unlock()
	}
	w.Run = h.unique(w.Run)
	return h.Store.Workflows.PutWorkflow(ctx, w)
}

// unique makes a run id unique, because each test environment counts from the start.
func (h *house) unique(run string) string {
	if strings.Contains(run, "@") {
		return run
	}
	return fmt.Sprintf("%s@%d", run, h.runs)
}

func (h *house) Workflow(ctx context.Context, run string) (inventory.Workflow, error) {
	return h.Store.Workflows.Workflow(ctx, h.unique(run))
}

func (h *house) Operation(ctx context.Context, run string) (inventory.Operation, error) {
	return h.Store.Operations.Operation(ctx, h.unique(run))
}

func (h *house) migrate(ctx workflow.Context, in contract.MigrateInput) error {
	info := workflow.GetInfo(ctx)
	o := inventory.Operation{
		Run:     h.unique(info.WorkflowExecution.RunID),
		ID:      info.WorkflowExecution.ID,
		Type:    inventory.TypeMigrate,
		Name:    in.Name,
		State:   inventory.StateSuccess,
		Step:    inventory.PhaseDone,
		Message: "moved",
		Started: workflow.Now(ctx),
		Steps:   []inventory.OperationStep{},
	}
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	return workflow.ExecuteLocalActivity(local, h.move, o).Get(ctx, nil)
}

// move records a migration.
func (h *house) move(ctx context.Context, o inventory.Operation) error {
	err := h.fails("migrating")
	if err != nil {
		o.State, o.Step, o.Message = inventory.StateFailed, inventory.PhaseFailed, err.Error()
	} else {
		h.note("migrate to %s", o.Name)
		h.mu.Lock()
		h.relay = []string{"10.10.20.11"}
		h.mu.Unlock()
	}
	return h.Store.Operations.PutOperation(ctx, o)
}

func (h *house) power(_ workflow.Context, in contract.BMCJobInput) error {
	if err := h.fails("switching off " + in.Machine); err != nil {
		return err
	}
	h.note("%s off", in.Machine)
	return nil
}

func (h *house) Answers(_ context.Context, a netip.Addr) (bool, string, error) {
	if h.fails("address "+a.String()) != nil {
		return true, "02:00:00:00:00:99", nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.lab.Machines {
		if m.Address() == a {
			return h.installed[m.Name], "", nil
		}
	}
	return false, "", nil
}

// DisksWritten knows the disks of machines that were installed.
func (h *house) DisksWritten(_ context.Context, machine string) (map[string]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, tried := h.installed[machine]; tried {
		return map[string]string{"serial": "run"}, nil
	}
	return map[string]string{}, nil
}

func (h *house) Relayed(context.Context, netip.Addr) (time.Time, error) {
	return time.Now().Add(240 * time.Hour), nil // later than the router's installation according to the skipping clock
}

type bmcs struct{ *house }

func (b bmcs) State(_ context.Context, c inventory.BMC, password inventory.Secret) (string, error) {
	require.Equal(b.t, "EXAMPLE-make-your-own", password.Reveal())
	return "off", b.fails("BMC " + c.Host)
}

func (bmcs) Set(context.Context, inventory.BMC, inventory.Secret, string, activities.Fence) error {
	return nil
}

func (bmcs) SetMedia(context.Context, inventory.BMC, inventory.Secret, string, activities.Fence) error {
	return nil
}

func (bmcs) SetBootDevice(context.Context, inventory.BMC, inventory.Secret, inventory.BootDevice, activities.Fence) (string, error) {
	return "", nil
}

func (bmcs) ResetBMC(context.Context, inventory.BMC, inventory.Secret, activities.Fence) error {
	return nil
}

type routers struct{ *house }

func (r routers) RelayServers(context.Context, inventory.Endpoint, inventory.Secret) ([]string, error) {
	r.mu.Lock()
	list := slices.Clone(r.relay)
	r.mu.Unlock()
	return list, r.fails("router")
}

func (r routers) SetRelayServer(context.Context, inventory.Endpoint, inventory.Secret, string, bool) error {
	return nil
}

type nodes struct{ *house }

func (n nodes) Version(context.Context, string, inventory.Secret) (string, error) {
	return "v1.13.0", n.fails("talos")
}

func (n nodes) Bootstrap(context.Context, string, inventory.Secret) (bool, error) {
	if err := n.fails("bootstrap"); err != nil {
		return false, err
	}
	n.mu.Lock()
	n.boots++
	already := n.boots > 1
	n.mu.Unlock()
	if !already {
		n.note("bootstrap")
	}
	return already, n.fails("answer of bootstrap")
}

func (n nodes) Kubeconfig(context.Context, string, inventory.Secret, string) (inventory.Secret, error) {
	return inventory.NewSecret("hush-kubeconfig"), n.fails("kubeconfig")
}

type kube struct{ *house }

func (k kube) Ready(_ context.Context, c inventory.Secret) error {
	require.Equal(k.t, "hush-kubeconfig", c.Reveal())
	return k.fails("kubernetes")
}

func (k kube) Nodes(context.Context, inventory.Secret) ([]inventory.ClusterNode, error) {
	return []inventory.ClusterNode{{Name: "um760", Ready: true}}, nil
}

func (k kube) Apply(_ context.Context, _, manifest inventory.Secret) ([]string, error) {
	require.Contains(k.t, manifest.Reveal(), "kind: Namespace")
	require.Contains(k.t, manifest.Reveal(), "hush-standby")
	return nil, k.fails("apply")
}

func (k kube) Delete(context.Context, inventory.Secret, inventory.Secret) ([]string, error) {
	k.note("delete")
	return nil, nil
}

type clusters struct{ *house }

func (c clusters) Ready(context.Context, inventory.Endpoint) error { return c.fails("vip") }

func (c clusters) LogIn(_ context.Context, _ inventory.Endpoint, user string, password inventory.Secret) (inventory.Secret, error) {
	require.Equal(c.t, []string{"admin", "admin"}, []string{user, password.Reveal()})
	return inventory.NewSecret("hush-token"), nil
}

func (c clusters) LogOut(_ context.Context, _ inventory.Endpoint, token inventory.Secret) error {
	require.Equal(c.t, "hush-token", token.Reveal())
	return nil
}

func (c clusters) Nodes(_ context.Context, _ inventory.Endpoint, token inventory.Secret) ([]inventory.ClusterNode, error) {
	require.Equal(c.t, "hush-token", token.Reveal())
	if err := c.fails("cluster"); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []inventory.ClusterNode
	for _, m := range []string{"ms-02-a", "ms-02-b", "ms-02-c"} {
		if c.installed[m] {
			out = append(out, inventory.ClusterNode{Name: m, Ready: true})
		}
	}
	return out, nil
}

type peers struct{ *house }

func (p peers) Known(context.Context, string) (bool, error) { return true, nil }

func (p peers) Standby(context.Context, string, string) (inventory.Secret, error) {
	return inventory.NewSecret(
		"{apiVersion: v1, kind: Secret, metadata: {name: ingot-standby, namespace: ingot}, stringData: {token: hush-standby}}",
	), nil
}

func (p peers) Moved(context.Context, string) (bool, error) { return false, nil }

func (p peers) Forget(context.Context, string) error { return nil }

// states returns the final states of the table.
func states(o inventory.Operation) []string {
	var out []string
	for _, s := range o.Steps {
		out = append(out, s.Name+" "+s.State)
	}
	return out
}

var whole = []string{
	"preflight",
	"router",
	"relay",
	"platform",
	"kubernetes",
	"migrate",
	"create",
	"vip",
	"join-ms-02-b",
	"join-ms-02-c",
	"proven",
}

func allDone() []string {
	var out []string
	for _, s := range whole {
		out = append(out, s+" "+inventory.StepDone)
	}
	return out
}

var wantEffects = []string{
	"install vp6630",
	"install um760",
	"bootstrap",
	"migrate to platform",
	"install ms-02-a",
	"install ms-02-b",
	"install ms-02-c",
}

func TestGenesis(t *testing.T) {
	h := newHouse(t)
	o, err := h.run(workflows.GenesisInput{Name: "home"})
	require.NoError(t, err)
	require.Equal(t, inventory.StateSuccess, o.State)
	require.Equal(t, "all 11 steps are done", o.Message)
	require.Equal(t, allDone(), states(o))
	require.Equal(t, wantEffects, h.did)
	require.Empty(t, h.asked)
	for _, s := range o.Steps {
		require.NotEmpty(t, s.Does)
		require.NotEmpty(t, s.Undo)
		require.Positive(t, s.Budget)
	}
	m, err := h.Store.Machines.Machine(t.Context(), "ms-02-b")
	require.NoError(t, err)
	require.True(t, m.HasUserData)
	require.True(t, m.BMC.HasPassword)

	// A second time is refused, unless requested or resumed: then every step is checked and
	// none is repeated.
	o, err = h.run(workflows.GenesisInput{Name: "home"})
	require.ErrorContains(t, err, "resume the earlier run")
	require.Equal(t, inventory.StateFailed, o.State)
	o, err = h.run(workflows.GenesisInput{Name: "home", Resume: true})
	require.NoError(t, err)
	require.Equal(t, allDone(), states(o))
	require.Equal(t, wantEffects, h.did)
	o, err = h.run(workflows.GenesisInput{Name: "home", Again: true})
	require.NoError(t, err)
	require.Equal(t, allDone(), states(o))
	require.Equal(t, append(slices.Clone(wantEffects), wantEffects...), h.did)
}

// Secrets of the lab file are neither in the workflow's data nor in its record.
func TestGenesisKeepsSecrets(t *testing.T) {
	h := newHouse(t)
	o, err := h.run(workflows.GenesisInput{Name: "home"})
	require.NoError(t, err)
	table, err := h.do.ReadLab(t.Context(), activities.LabRequest{Name: "home", Resume: true})
	require.NoError(t, err)
	raw, err := json.Marshal([]any{o, table})
	require.NoError(t, err)
	var hush []string
	hush = append(
		hush,
		h.lab.Router.Key.Reveal(),
		h.lab.Platform.Talosconfig.Reveal()[100:140],
		"hush-kubeconfig",
		"hush-standby",
		"EXAMPLE-make-your-own",
	)
	for _, m := range h.lab.Machines {
		hush = append(hush, m.UserData.Reveal()[50:90])
	}
	for _, s := range hush {
		require.NotContains(t, string(raw), s)
	}
}

// Each step fails once: an operator is asked, has the step undone if possible, and has it
// tried again.
func TestGenesisFailsAtEachStep(t *testing.T) {
	for _, c := range []struct {
		step, breaks string
		undo         []string // what is seen of the undo; nil: none is offered
		again        []string // what is done again
	}{
		{step: "preflight", breaks: "address 10.10.20.11"},
		{"router", "installing vp6630", []string{}, []string{"install vp6630"}},
		{"router", "router", []string{}, []string{"install vp6630"}},
		{step: "relay", breaks: "BMC 10.10.20.22"},
		{step: "relay", breaks: "relay"},
		{"platform", "installing um760", []string{}, []string{"install um760"}},
		{"platform", "talos", []string{}, []string{"install um760"}},
		{step: "kubernetes", breaks: "bootstrap"},
		{step: "kubernetes", breaks: "kubeconfig"},
		{step: "kubernetes", breaks: "kubernetes"},
		{"migrate", "migrating", []string{"delete"}, nil},
		{"migrate", "apply", []string{"delete"}, nil},
		{"create", "installing ms-02-a", []string{"ms-02-a off"}, []string{"install ms-02-a"}},
		{step: "vip", breaks: "vip"},
		{"join-ms-02-b", "installing ms-02-b", []string{"ms-02-b off"}, []string{"install ms-02-b"}},
		{"join-ms-02-c", "cluster", []string{"ms-02-c off"}, []string{"install ms-02-c"}},
		{step: "proven", breaks: "cluster"},
	} {
		t.Run(c.step+" "+c.breaks, func(t *testing.T) {
			h := newHouse(t)
			// The cluster answers from its first node on, and is asked in three steps.
			h.events["at "+c.step] = func() { h.breaks(c.breaks, inventory.ErrRefused) }
			if c.step == "preflight" {
				h.breaks(c.breaks, inventory.ErrRefused)
			}
			h.answer = func(q inventory.Question) string {
				h.mend(c.breaks)
				if len(h.asked) == 1 && slices.Contains(q.Choices, contract.Undo) {
					return contract.Undo
				}
				return contract.Retry
			}
			o, err := h.run(workflows.GenesisInput{Name: "home"})
			require.NoError(t, err)
			require.Equal(t, allDone(), states(o))
			require.Contains(t, h.asked[0].ID, c.step+".")
			require.Contains(t, h.asked[0].Text, "step "+c.step+": ")
			if c.undo == nil {
				require.Len(t, h.asked, 1)
				require.NotContains(t, h.asked[0].Choices, contract.Undo)
			} else {
				require.Len(t, h.asked, 2, "once for the undo, once for what then")
			}
			rest := slices.Clone(h.did)
			for _, x := range slices.Concat(c.undo, c.again) {
				i := slices.Index(rest, x)
				require.GreaterOrEqual(t, i, 0, "%q in %q", x, h.did)
				rest = slices.Delete(rest, i, i+1)
			}
			require.ElementsMatch(t, wantEffects, rest)
		})
	}
}

// A step whose machine is installed and whose probe fails is not installed again by a retry,
// because do checks the state first.
func TestGenesisRetryLooksFirst(t *testing.T) {
	h := newHouse(t)
	h.breaks("talos", inventory.ErrRefused)
	h.answer = func(inventory.Question) string {
		h.mend("talos")
		return contract.Retry
	}
	o, err := h.run(workflows.GenesisInput{Name: "home"})
	require.NoError(t, err)
	require.Equal(t, allDone(), states(o))
	require.Equal(t, wantEffects, h.did)
	require.Len(t, h.asked, 1)
}

// The answer of a bootstrap was lost after it took effect: the retry gets Talos's answer
// that the cluster exists, and it was created once.
func TestGenesisBootstrapsOnce(t *testing.T) {
	h := newHouse(t)
	h.once["answer of bootstrap"] = true
	h.breaks("answer of bootstrap", inventory.ErrUnreachable)
	_, err := h.run(workflows.GenesisInput{Name: "home"})
	require.NoError(t, err)
	require.Equal(t, wantEffects, h.did)
	require.Equal(t, 2, h.boots)
	require.Empty(t, h.asked)
}

// An operation that was aborted at a step is resumed there: finished steps are verified and
// not repeated, and the step itself continues.
func TestGenesisResumesAfterAbort(t *testing.T) {
	for _, step := range []struct{ name, breaks string }{
		{"preflight", "address 10.10.20.11"},
		{"router", "installing vp6630"},
		{"platform", "talos"},
		{"kubernetes", "bootstrap"},
		{"migrate", "migrating"},
		{"create", "installing ms-02-a"},
		{"vip", "vip"},
		{"join-ms-02-c", "installing ms-02-c"},
	} {
		t.Run(step.name, func(t *testing.T) {
			h := newHouse(t)
			h.breaks(step.breaks, inventory.ErrRefused)
			h.answer = func(inventory.Question) string { return contract.Abort }
			o, err := h.run(workflows.GenesisInput{Name: "home"})
			require.Error(t, err)
			require.Equal(t, inventory.StateFailed, o.State)
			at := slices.Index(whole, step.name)
			require.Equal(t, step.name+" "+inventory.StepFailed, states(o)[at])
			for _, s := range states(o)[at+1:] {
				require.Contains(t, s, inventory.StepPending)
			}
			before := len(h.did)

			h.mend(step.breaks)
			o, err = h.run(workflows.GenesisInput{Name: "home", Resume: true})
			require.NoError(t, err)
			require.Equal(t, allDone(), states(o))
			rest := slices.Clone(h.did)
			if strings.HasPrefix(step.breaks, "installing ") {
				rest = slices.Delete(rest, before-1, before) // the one that failed
			}
			require.Equal(t, wantEffects, rest)
		})
	}
}

// A resumed Genesis installs again what was installed and undone.
func TestGenesisResumesWhatWasUndone(t *testing.T) {
	h := newHouse(t)
	h.events["at join-ms-02-c"] = func() { h.breaks("cluster", inventory.ErrRefused) }
	h.answer = func(q inventory.Question) string {
		if slices.Contains(q.Choices, contract.Undo) {
			return contract.Undo
		}
		return contract.Abort
	}
	o, err := h.run(workflows.GenesisInput{Name: "home"})
	require.Error(t, err)
	require.Contains(t, states(o), "join-ms-02-c "+inventory.StepUndone)
	require.Equal(t, append(slices.Clone(wantEffects), "ms-02-c off"), h.did)

	h.mend("cluster")
	o, err = h.run(workflows.GenesisInput{Name: "home", Resume: true})
	require.NoError(t, err)
	require.Equal(t, allDone(), states(o))
	require.Equal(t, append(slices.Clone(wantEffects), "ms-02-c off", "install ms-02-c"), h.did)
}

// A finished step that does not work any more is repeated on resume.
func TestGenesisResumeProvesAgain(t *testing.T) {
	h := newHouse(t)
	h.breaks("vip", inventory.ErrRefused)
	h.answer = func(inventory.Question) string { return contract.Abort }
	_, err := h.run(workflows.GenesisInput{Name: "home"})
	require.Error(t, err)
	h.mend("vip")
	h.mu.Lock()
	h.installed["ms-02-a"] = false // it is dead
	h.mu.Unlock()
	h.answer = func(q inventory.Question) string {
		require.Contains(t, q.ID, "create.")
		if len(h.asked) == 2 {
			return contract.Undo
		}
		return contract.Retry
	}
	o, err := h.run(workflows.GenesisInput{Name: "home", Resume: true})
	require.NoError(t, err)
	require.Equal(t, allDone(), states(o))
	require.Equal(t, append(wantEffects[:5:5], "ms-02-a off", "install ms-02-a", "install ms-02-b", "install ms-02-c"), h.did)
}

// While a machine's run waits for an operator, the operation says so, and its budget is
// paused. When the run continues, so does the operation.
func TestGenesisReportsWaitingMachine(t *testing.T) {
	h := newHouse(t)
	h.asks["vp6630"] = "power the machine on now, with network boot (boot 1)"
	h.events["waits vp6630"] = func() {
		require.NoError(t, h.env.SignalWorkflowByID(workflows.MachineID("vp6630"), workflows.SignalPoweredOn, nil))
	}
	o, err := h.run(workflows.GenesisInput{Name: "home"})
	require.NoError(t, err)
	require.Equal(t, allDone(), states(o))
	require.Contains(t, h.said, "router waiting power the machine on now, with network boot (boot 1) ingot workflow get vp6630")
	require.Empty(t, o.Steps[1].Message)
	require.Empty(t, o.Next)
}

// When the budget of a step has passed, the record of the run is read once more, and a
// operator is asked; a retry follows the existing run.
func TestGenesisBudgetPassed(t *testing.T) {
	h := newHouse(t)
	h.slow = 200 * time.Millisecond
	late := temporal.NewTimeoutError(enums.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil)
	h.await = func(ctx context.Context, q activities.OutcomeRequest) (activities.Outcome, error) {
		if late != nil {
			for {
				if _, err := h.Workflow(ctx, q.Run); err == nil {
					break
				}
			}
			err := late
			late = nil
			return activities.Outcome{}, err
		}
		return h.do.AwaitRun(ctx, q)
	}
	h.answer = func(q inventory.Question) string {
		require.Contains(
			t,
			q.Text,
			"step router: the step's budget of 45m0s has passed, but its run is still in phase power: starting (ingot workflow get vp6630)",
		)
		return contract.Retry
	}
	o, err := h.run(workflows.GenesisInput{Name: "home"})
	require.NoError(t, err)
	require.Equal(t, allDone(), states(o))
	require.Len(t, h.asked, 1)
	require.Equal(t, wantEffects, h.did, "the machine's run was not begun twice")
}

// A cancellation ends the run of the machine, undoes the step, and keeps the finished steps.
func TestGenesisCancelled(t *testing.T) {
	h := newHouse(t)
	// The environment does not let a child that was cancelled write its record.
	h.await = func(ctx context.Context, q activities.OutcomeRequest) (activities.Outcome, error) {
		if q.Asking {
			return h.do.AwaitRun(ctx, q)
		}
		w, err := h.Workflow(ctx, q.Run)
		if errors.Is(err, inventory.ErrNotFound) { // cancelled before its first record
			w, err = inventory.Workflow{Run: h.unique(q.Run), Machine: "ms-02-a", Type: inventory.TypeProvision}, nil
		}
		require.NoError(t, err)
		w.State, w.Phase, w.Message, w.Seq = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled", w.Seq+1
		require.NoError(t, h.Store.Workflows.PutWorkflow(ctx, w))
		return h.do.AwaitRun(ctx, q)
	}
	h.events["installing ms-02-a"] = func() {
		h.slow = time.Minute // only 100 ms of it pass
		h.env.RegisterDelayedCallback(h.env.CancelWorkflow, 100*time.Millisecond)
	}
	o, err := h.run(workflows.GenesisInput{Name: "home"})
	var cancelled *temporal.CanceledError
	require.ErrorAs(t, err, &cancelled)
	require.Equal(t, inventory.StateCancelled, o.State)
	require.Equal(t, "cancelled; completed steps stay: preflight, router, relay, platform, kubernetes, migrate", o.Message)
	require.Equal(t, "create "+inventory.StepUndone, states(o)[6])
	require.Equal(t, "vip "+inventory.StepPending, states(o)[7])
	require.Equal(t, "ms-02-a off", h.did[len(h.did)-1])
	w, err := h.Store.Workflows.LatestWorkflow(t.Context(), "ms-02-a")
	require.NoError(t, err)
	require.Equal(t, inventory.StateCancelled, w.State)
}

// Only one Genesis runs at a time, whatever its name and however it was started.
func TestGenesisRefusesASecond(t *testing.T) {
	h := newHouse(t)
	require.NoError(t, h.Store.Operations.PutOperation(t.Context(), inventory.Operation{
		Run: "other", ID: "genesis/other", Type: inventory.TypeGenesis, Name: "other", State: inventory.StateRunning, Started: time.Now(),
	}))
	_, err := h.run(workflows.GenesisInput{Name: "home"})
	require.ErrorContains(t, err, "genesis/other is under way")
	require.Empty(t, h.did)

	h.fresh()
	h.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: "somewhere", TaskQueue: workflows.TaskQueue})
	h.env.ExecuteWorkflow(workflows.Genesis, workflows.GenesisInput{Name: "home"})
	require.ErrorContains(t, h.env.GetWorkflowError(), `must run under the id "genesis/home"`)
}
