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

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/workflows"
)

// house is a lab in which everything that Genesis touches is played by this
// test: routers, Talos, Kubernetes, Harvester, BMCs and the runs of machines.
// The inventory and the lab file, the example of the repository, are real.
type house struct {
	*sqlite.Store
	t     *testing.T
	do    *activities.Activities
	lab   genesis.Lab
	suite testsuite.WorkflowTestSuite
	env   *testsuite.TestWorkflowEnvironment

	mu        sync.Mutex
	begun     time.Time
	did       []string // installations, bootstraps, power, in order
	installed map[string]bool
	boots     int              // of etcd
	relay     []string         // servers
	broken    map[string]error // what fails, by its word; cleared by whoever answers
	once      map[string]bool  // words of broken that fail but once
	asked     []inventory.Question
	answer    func(q inventory.Question) string
	asks      map[string]string // machines whose run asks a person first
	events    map[string]func() // called when a thing is done, before it is recorded
	runs      int
}

func newHouse(t *testing.T) *house {
	t.Helper()
	keys := keyring.New()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), keys)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	h := &house{
		Store: store, t: t, installed: map[string]bool{}, broken: map[string]error{}, once: map[string]bool{}, asks: map[string]string{}, events: map[string]func(){},
		answer: func(q inventory.Question) string { return q.Choices[len(q.Choices)-1] },
	}
	dir := filepath.Join("..", "deploy", "genesis")
	b, lab, err := genesis.Bundle("lab.yaml", func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) })
	require.NoError(t, err)
	h.lab = lab
	b.Name = "home"
	_, err = store.PutGenesis(t.Context(), b, "test")
	require.NoError(t, err)
	for _, i := range lab.Images {
		require.NoError(t, store.PutImage(t.Context(), inventory.Image{Name: i.Name, File: i.Name, Size: 1, SHA256: i.SHA256, Format: "raw"}, "test"))
	}
	h.do = &activities.Activities{
		Machines: store, Catalogue: store, Grants: store, Agents: store, Assignments: store, Records: h, Operations: h, Labs: h, BMC: bmcs{h},
		Presence: h, Relays: h, Routers: routers{h}, Talos: nodes{h}, Kubernetes: kube{h}, Clusters: clusters{h}, Peers: peers{h},
		Site:       activities.Site{ImageURL: func() string { return "http://10.0.0.1/images" }},
		Log:        slog.New(slog.DiscardHandler),
		ProbeEvery: time.Millisecond,
	}
	h.fresh()
	return h
}

// fresh is another worker: the next workflow runs in it.
func (h *house) fresh() {
	h.suite.SetLogger(slog.New(slog.DiscardHandler))
	h.env = h.suite.NewTestWorkflowEnvironment()
	h.begun = time.Now()
	h.env.SetStartTime(h.begun)
	h.env.SetTestTimeout(time.Minute)
	h.do.Now = h.env.Now
	require.NoError(h.t, h.env.SetTypedSearchAttributesOnStart(temporal.NewSearchAttributes()))
	h.env.RegisterActivity(h.do)
	h.env.RegisterActivity(h.play)
	h.env.RegisterWorkflowWithOptions(h.provision, workflow.RegisterOptions{Name: workflows.ProvisionType})
	h.env.RegisterWorkflowWithOptions(h.migrate, workflow.RegisterOptions{Name: workflows.MigrateType})
	h.env.RegisterWorkflowWithOptions(h.power, workflow.RegisterOptions{Name: workflows.BMCJobType})
}

func (h *house) run(in workflows.GenesisInput) (inventory.Operation, error) {
	h.t.Helper()
	h.fresh()
	h.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: workflows.GenesisID(in.Name), TaskQueue: workflows.TaskQueue})
	h.runs++
	h.env.ExecuteWorkflow(workflows.Genesis, in)
	require.True(h.t, h.env.IsWorkflowCompleted())
	list, err := h.Store.Operations(context.Background(), inventory.OperationFilter{ID: workflows.GenesisID(in.Name), Limit: 1})
	require.NoError(h.t, err)
	require.NotEmpty(h.t, list)
	return list[0], h.env.GetWorkflowError()
}

func (h *house) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.did = append(h.did, fmt.Sprintf(format, args...))
}

// fails answers with what is broken under that word.
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

// PutOperation answers questions as they are recorded.
func (h *house) PutOperation(ctx context.Context, o inventory.Operation) error {
	o.Run = h.unique(o.Run)
	if err := h.Store.PutOperation(ctx, o); err != nil {
		return err
	}
	if q := o.Question; q != nil && (len(h.asked) == 0 || h.asked[len(h.asked)-1].ID != q.ID) {
		h.asked = append(h.asked, *q)
		if choice := h.answer(*q); choice != "" {
			h.env.RegisterDelayedCallback(func() {
				h.env.SignalWorkflow(workflows.SignalDecide, workflows.Decision{Question: q.ID, Choice: choice})
			}, time.Minute)
		}
	}
	h.happens("at " + o.Step)
	return nil
}

// provision stands for the run of a machine: it ends well, unless the machine
// is broken, and its record says so.
func (h *house) provision(ctx workflow.Context, in workflows.ProvisionInput) (workflows.Outcome, error) {
	info := workflow.GetInfo(ctx)
	w := inventory.Workflow{
		Run: info.WorkflowExecution.RunID, ID: info.WorkflowExecution.ID, Type: workflows.ProvisionType, Machine: in.Machine,
		State: inventory.StateRunning, Phase: inventory.PhasePower, Message: "starting", Started: workflow.Now(ctx), Actions: []inventory.ActionRecord{},
	}
	w.Input, _ = json.Marshal(in)
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	say := func(ctx workflow.Context) error {
		w.Seq++
		w.Updated = workflow.Now(ctx)
		return workflow.ExecuteLocalActivity(ctx, h.play, w).Get(ctx, nil)
	}
	if err := say(local); err != nil {
		return workflows.Outcome{}, err
	}
	err := workflow.Sleep(ctx, 5*time.Millisecond)
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
	rest, done := workflow.NewDisconnectedContext(local)
	defer done()
	if e := say(rest); err == nil {
		err = e
	}
	return workflows.Outcome{State: w.State}, err
}

// play records a machine's run.
func (h *house) play(ctx context.Context, w inventory.Workflow) error {
	// The clock of the test environment is not that of its activities.
	if w.Seq == 1 {
		h.note("install %s", w.Machine)
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
	return h.Store.PutWorkflow(ctx, w)
}

// unique makes a run id one of its own: each test environment begins to count
// anew.
func (h *house) unique(run string) string {
	if strings.Contains(run, "@") {
		return run
	}
	return fmt.Sprintf("%s@%d", run, h.runs)
}

func (h *house) Workflow(ctx context.Context, run string) (inventory.Workflow, error) {
	return h.Store.Workflow(ctx, h.unique(run))
}

func (h *house) Operation(ctx context.Context, run string) (inventory.Operation, error) {
	return h.Store.Operation(ctx, h.unique(run))
}

func (h *house) migrate(ctx workflow.Context, in workflows.MigrateInput) error {
	info := workflow.GetInfo(ctx)
	o := inventory.Operation{
		Run: h.unique(info.WorkflowExecution.RunID), ID: info.WorkflowExecution.ID, Type: workflows.MigrateType, Name: in.Name,
		State: inventory.StateSuccess, Step: inventory.PhaseDone, Message: "moved", Started: workflow.Now(ctx), Steps: []inventory.OperationStep{},
	}
	err := h.fails("migrating")
	if err != nil {
		o.State, o.Step, o.Message = inventory.StateFailed, inventory.PhaseFailed, err.Error()
	} else {
		h.note("migrate to %s", in.Target)
		h.mu.Lock()
		h.relay = []string{"10.10.20.11"}
		h.mu.Unlock()
	}
	return errors.Join(err, h.Store.PutOperation(context.Background(), o))
}

func (h *house) power(_ workflow.Context, in workflows.BMCJobInput) error {
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

func (h *house) Relayed(netip.Addr) time.Time {
	if h.fails("relaying") != nil {
		return time.Time{}
	}
	return time.Now().Add(240 * time.Hour) // later than the router's installation by the skipping clock
}

type bmcs struct{ *house }

func (b bmcs) State(_ context.Context, c inventory.BMC, password inventory.Secret) (string, error) {
	require.Equal(b.t, "EXAMPLE-make-your-own", password.Reveal())
	return "off", b.fails("BMC " + c.Host)
}

func (bmcs) Set(context.Context, inventory.BMC, inventory.Secret, string, activities.Fence) error {
	return nil
}

func (bmcs) SetBootDevice(context.Context, inventory.BMC, inventory.Secret, inventory.BootDevice, activities.Fence) (string, error) {
	return "", nil
}

func (bmcs) ResetBMC(context.Context, inventory.BMC, inventory.Secret, activities.Fence) error {
	return nil
}

type routers struct{ *house }

func (r routers) Configuration(context.Context, inventory.Endpoint, inventory.Secret, ...string) (map[string]any, error) {
	r.mu.Lock()
	list := []any{}
	for _, s := range r.relay {
		list = append(list, s)
	}
	r.mu.Unlock()
	return map[string]any{"server": list}, r.fails("router")
}

func (r routers) Configure(context.Context, inventory.Endpoint, inventory.Secret, ...inventory.RouterCommand) error {
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

func (k kube) Apply(context.Context, inventory.Secret, inventory.Secret) ([]string, error) {
	k.note("apply")
	return nil, nil
}

func (k kube) Delete(context.Context, inventory.Secret, inventory.Secret) ([]string, error) {
	k.note("delete")
	return nil, nil
}

type clusters struct{ *house }

func (c clusters) Ping(context.Context, inventory.Endpoint) error { return c.fails("vip") }

func (c clusters) Cluster(context.Context, inventory.Endpoint) error { return nil }

func (c clusters) Nodes(_ context.Context, _ inventory.Endpoint, user string, password inventory.Secret) ([]inventory.ClusterNode, error) {
	require.Equal(c.t, []string{"admin", "admin"}, []string{user, password.Reveal()})
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
	return inventory.Secret{}, nil
}

func (p peers) Forget(context.Context, string) error { return nil }

// states is the table as it ended.
func states(o inventory.Operation) []string {
	var out []string
	for _, s := range o.Steps {
		out = append(out, s.Name+" "+s.State)
	}
	return out
}

var whole = []string{"preflight", "router", "relay", "platform", "kubernetes", "migrate", "create", "vip", "join-ms-02-b", "join-ms-02-c", "proven"}

func all(state string) []string {
	var out []string
	for _, s := range whole {
		out = append(out, s+" "+state)
	}
	return out
}

var deeds = []string{"install vp6630", "install um760", "bootstrap", "migrate to platform", "install ms-02-a", "install ms-02-b", "install ms-02-c"}

func TestGenesis(t *testing.T) {
	h := newHouse(t)
	o, err := h.run(workflows.GenesisInput{Name: "home"})
	require.NoError(t, err)
	require.Equal(t, inventory.StateSuccess, o.State)
	require.Equal(t, "all 11 steps are done", o.Message)
	require.Equal(t, all(inventory.StepDone), states(o))
	require.Equal(t, deeds, h.did)
	require.Empty(t, h.asked)
	for _, s := range o.Steps {
		require.NotEmpty(t, s.Does)
		require.NotEmpty(t, s.Undo)
		require.Positive(t, s.Budget)
	}
	m, err := h.Machine(t.Context(), "ms-02-b")
	require.NoError(t, err)
	require.True(t, m.HasUserData)
	require.True(t, m.BMC.HasPassword)

	// A second time is refused, unless somebody says so, or resumes: then
	// everything is looked at, and nothing is done.
	o, err = h.run(workflows.GenesisInput{Name: "home"})
	require.ErrorContains(t, err, "resume it")
	require.Equal(t, inventory.StateFailed, o.State)
	o, err = h.run(workflows.GenesisInput{Name: "home", Resume: true})
	require.NoError(t, err)
	require.Equal(t, all(inventory.StepDone), states(o))
	require.Equal(t, deeds, h.did)
	o, err = h.run(workflows.GenesisInput{Name: "home", Again: true})
	require.NoError(t, err)
	require.Equal(t, all(inventory.StepDone), states(o))
	require.Equal(t, append(slices.Clone(deeds), deeds...), h.did)
}

// Secrets of the lab file stand neither in what the workflow gets nor in its record.
func TestGenesisKeepsSecrets(t *testing.T) {
	h := newHouse(t)
	o, err := h.run(workflows.GenesisInput{Name: "home"})
	require.NoError(t, err)
	table, err := h.do.ReadLab(t.Context(), activities.LabRequest{Name: "home", Resume: true})
	require.NoError(t, err)
	raw, err := json.Marshal([]any{o, table})
	require.NoError(t, err)
	var hush []string
	hush = append(hush, h.lab.Router.Key.Reveal(), h.lab.Platform.Talosconfig.Reveal()[100:140], "hush-kubeconfig", "EXAMPLE-make-your-own")
	for _, m := range h.lab.Machines {
		hush = append(hush, m.UserData.Reveal()[50:90])
	}
	for _, s := range hush {
		require.NotContains(t, string(raw), s)
	}
}
