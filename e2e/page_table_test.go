package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

const pageToken = "the-token-of-the-test-of-the-page-0123456789"

// pageSite is an API with the page, a real store, and a Temporal that only records requests.
type pageSite struct {
	*httptest.Server
	store    *sqlite.Store
	temporal *notingTemporal
	// uploads counts the requests that send a part of an image. The second one is cut off.
	uploads atomic.Int64
}

// notingTemporal records which runs are started and signalled.
type notingTemporal struct {
	client.Client
	mu      sync.Mutex
	started []any
	signals []string // run and name
}

func (n *notingTemporal) ExecuteWorkflow(
	_ context.Context,
	_ client.StartWorkflowOptions,
	_ any,
	args ...any,
) (client.WorkflowRun, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.started = append(n.started, args[0])
	return startedRun{run: fmt.Sprintf("started-%d", len(n.started))}, nil
}

func (n *notingTemporal) SignalWorkflow(_ context.Context, _, run, name string, _ any) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.signals = append(n.signals, run+" "+name)
	return nil
}

// UpdateWorkflow notes an answer: the run, its question, and the choice.
func (n *notingTemporal) UpdateWorkflow(
	_ context.Context,
	o client.UpdateWorkflowOptions,
) (client.WorkflowUpdateHandle, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d, ok := o.Args[0].(contract.Decision); ok {
		n.signals = append(n.signals, o.RunID+" "+d.Question+" "+d.Choice)
	}
	return handled{}, nil
}

// handled is an update that its workflow has handled.
type handled struct{ client.WorkflowUpdateHandle }

func (handled) Get(context.Context, any) error { return nil }

func (n *notingTemporal) noted() (started []any, signals []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.started), slices.Sorted(slices.Values(n.signals))
}

type startedRun struct {
	client.WorkflowRun
	run string
}

func (s startedRun) GetRunID() string { return s.run }

func newPageSite(t *testing.T) *pageSite {
	t.Helper()
	if !*inLab {
		t.Skip("needs a browser: make e2e")
	}
	dir := t.TempDir()
	fillInventory(t, filepath.Join(dir, "ingot.db"), 150)
	store, err := sqlite.Open(t.Context(), filepath.Join(dir, "ingot.db"), keyring.New())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s := &pageSite{store: store, temporal: &notingTemporal{}}
	s.addSpecial(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	temporal := func() (client.Client, bool) { return s.temporal, true }
	server := operatorAPI(t, store, temporal, "", func(cfg *api.Config) {
		cfg.Access = api.Access{
			TokenSHA256: sha256.Sum256([]byte(pageToken)), ClaimKey: make([]byte, 32), BaseURL: "http://" + l.Addr().String(),
		}
		cfg.Images.Dir, cfg.Images.Files, cfg.Space = dir, imagefile.New(dir, nil), api.SpaceConfig{DataDir: dir, MinFree: 1}
		cfg.Netboot.Why = pageWhy
		cfg.Process = api.Process{Version: "v1.0.0", Status: pageStatus, Retrying: pageRetrying}
	})
	cutting := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && s.uploads.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
		server.Handler().ServeHTTP(w, r)
	})
	s.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: cutting, ReadHeaderTimeout: time.Minute}}
	s.Start()
	// Streams end with their connections.
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func pageStatus(context.Context) api.StatusExtra {
	return api.StatusExtra{
		Temporal: apitypes.TemporalStatus{UI: "http://127.0.0.1:8233"},
		Netboot:  apitypes.NetbootStatus{Interfaces: []string{"eno2"}},
	}
}

func pageRetrying(run string) []string {
	if run == "run-unreachable" {
		return []string{"PowerOff failed 2 times: BMC 10.30.9.9 does not answer"}
	}
	return nil
}

// operatorAPI returns the API of a server with this store and this Temporal.
func operatorAPI(t *testing.T, s *sqlite.Store, temporal engine.Temporal, namespace string, change func(*api.Config)) *api.API {
	t.Helper()
	cfg := api.Config{
		Stores: api.Stores{
			Agents: s.Agents, Applied: s.Applications, BMCJobs: s.BMCJobs, Changes: s.Changes, Disks: s.Disks, Events: s.Events, Genesis: s.Genesis,
			Images: s.Images, Keyed: s.KeyedRequests, Keys: s.Keys, Machines: s.Machines,
			Operations: s.Operations, Seen: s.Seen, Sessions: s.Sessions, Syslog: s.Syslog, Templates: s.Templates,
			Tokens: s.Tokens, Views: s.Views, Windows: s.Grants, Workflows: s.Workflows,
		},
		Log: slog.New(slog.DiscardHandler),
	}
	change(&cfg)
	cfg.Guard = guard.New(cfg.Log)
	cfg.Engine = engine.New(engine.Config{
		Stores: engine.Stores{
			Agents: s.Agents, Assignments: s.Assignments, Changes: s.Changes, Events: s.Events, Grants: s.Grants, Intake: s.HandOvers,
			Keyed: s.KeyedRequests, Operations: s.Operations, Workflows: s.Workflows,
		},
		Temporal: temporal, Namespace: namespace, Guard: cfg.Guard, Log: cfg.Log,
	})
	a, err := api.New(cfg)
	require.NoError(t, err)

	return a
}

// addSpecial adds the machines that the test refers to.
func (s *pageSite) addSpecial(t *testing.T) {
	t.Helper()
	now := time.Now()
	add := func(n int, name, phase string, bmc *inventory.BMC) {
		m := inventory.Machine{
			Name:       name,
			BMC:        bmc,
			Image:      "debian-12",
			Interfaces: []inventory.Interface{{MAC: fmt.Sprintf("02:00:00:01:00:%02x", n), UEFI: true}},
		}
		require.NoError(t, s.store.Machines.PutMachines(t.Context(), []inventory.Machine{m}, false, "test"))
		if phase != "" {
			require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
				Run:      "run-" + name,
				ID:       workflows.MachineID(name),
				Type:     inventory.TypeProvision,
				Machine:  name,
				Template: "image",
				Image:    "debian-12",
				State:    inventory.StateRunning,
				Phase:    phase,
				Started:  now.Add(-time.Minute),
				Updated:  now.Add(-time.Minute),
			}))
		}
	}
	add(1, "hand-1", "power", nil)
	add(2, "hand-2", "power", nil)
	add(3, "hand-3", "power", nil)
	add(4, "unreachable", "power", &inventory.BMC{Driver: inventory.DriverIPMI, Host: "10.30.9.9", User: "admin"})
	add(5, "new", "", &inventory.BMC{Driver: inventory.DriverIPMI, Host: "10.30.9.10", User: "admin"})
	require.NoError(
		t,
		s.store.Images.PutImage(t.Context(),
			inventory.Image{Name: "debian-12", File: "debian-12", SHA256: fmt.Sprintf("%064d", 0), Format: "raw", Size: 1, Created: now},
			"test"),
	)
	require.NoError(
		t,
		s.store.Templates.PutTemplate(t.Context(), inventory.Template{Name: "image", Source: "name: image", Builtin: true}, "test"),
	)
}

// TestPageWithManyMachines uses the table like an operator: it logs in with the token, finds
// waiting machines, and acts on machines from there. axe must find no accessibility problems on the
// way.
func TestPageWithManyMachines(t *testing.T) {
	runInTurn(t, 40, 8)
	s := newPageSite(t)
	p := openTab(t)
	do, check, picture := p.do, p.check, p.picture
	ask := func(js string, into any) chromedp.Action { return chromedp.Evaluate(js, into) }
	scheme := func(name string) chromedp.Action {
		return emulation.SetEmulatedMedia().
			WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}})
	}

	do("the log-in page", chromedp.EmulateViewport(1440, 900), scheme("light"), chromedp.Navigate(s.URL+"/"), see(`input[name="token"]`))
	check("the log-in page")
	do("a wrong token", chromedp.SendKeys(`input[name="token"]`, "wrong\r", chromedp.ByQuery), see(`[role="alert"]`))
	do("the token", chromedp.SendKeys(`input[name="token"]`, pageToken+"\r", chromedp.ByQuery), see(`[data-machine]`))

	var order []string
	const tones = `[...document.querySelectorAll("[data-machine]")].map(e => e.dataset.tone).filter((t, i, all) => t !== all[i - 1])`
	do("the order", ask(tones, &order))
	require.Equal(t, []string{"waiting", "retrying", "failed", "working"}, order[:4])

	// An unreachable BMC is clearly visible in the table and in the panel.
	var text string
	do("the unreachable BMC", click(`[data-machine="unreachable"]`), see(`[data-panel="unreachable"] [data-retrying]`),
		chromedp.Text(`[data-machine="unreachable"]`, &text, chromedp.ByQuery))
	require.Contains(t, text, "Trying again: Power")
	do("what is tried again", chromedp.Text(`[data-retrying]`, &text, chromedp.ByQuery))
	require.Contains(t, text, "PowerOff failed 2 times")
	check("a run that tries again")

	// The panel stays visible when the table is scrolled, and not all rows are in the document.
	var rows int
	var top float64
	do(
		"the end of the table",
		ask(`{ const b = document.querySelector(".scroll"); b.scrollTop = b.scrollHeight }`, nil),
		see(`[data-machine="node-149"]`),
		click(`[data-machine="node-149"]`),
		see(`[data-panel="node-149"]`),
		ask(`document.querySelectorAll("[data-machine]").length`, &rows),
		ask(`document.querySelector("[data-panel]").getBoundingClientRect().top`, &top),
	)
	require.Less(t, rows, 100)
	require.Less(t, top, 300.0)
	require.Positive(t, top)

	// Each machine has a URL.
	do("a machine's URL", chromedp.Navigate(s.URL+"/#/machines/node-19"), see(`[data-panel="node-19"]`))
	do("loading it", chromedp.Reload(), see(`[data-panel="node-19"]`))
	do(
		"searching",
		chromedp.SendKeys(`.filters input[type="search"]`, "rack=r02", chromedp.ByQuery),
		chromedp.WaitNotPresent(`[data-machine="node-19"]`, chromedp.ByQuery),
		see(`[data-machine="node-85"]`),
	)
	do(
		"the filter",
		chromedp.SendKeys(`.filters input[type="search"]`, "\b\b\b\b\b\b\b\b", chromedp.ByQuery),
		click(`.chip.failed`),
		chromedp.WaitNotPresent(`[data-tone="waiting"][data-machine]`, chromedp.ByQuery),
		click(`.chip`),
	)

	// Many machines that were switched on by hand are reported at once.
	do(
		"switched on",
		click(`[data-bulk] summary`),
		see(`[data-bulk] li:nth-child(2) input:checked`), // ticked by the list's own event, after it is open
		click(`[data-bulk] li:nth-child(2) input`),
		see(`[data-bulk] li:nth-child(2) input:not(:checked)`),
	)
	check("machines to be switched on")
	do(
		"switched on, two of three",
		click(`[data-choice="powered-on-many"]`),
		click(`[data-choice-sure="powered-on-many"]`),
		see(`[data-choice="powered-on-many"]:not(:disabled)`),
	)
	_, signals := s.temporal.noted()
	require.Equal(t, []string{"run-hand-1 powered-on", "run-hand-3 powered-on"}, signals)

	// The first installation starts here.
	do("a new machine", chromedp.Navigate(s.URL+"/#/machines/new"), see(`[data-install="new"]`))
	check("a machine that was never installed")
	do(
		"installing it",
		chromedp.SetValue(`[data-install] select[name="image"]`, "debian-12", chromedp.ByQuery),
		click(`[data-choice="install"]`),
		see(`[data-panel="new"][data-phase="plan"]`),
	)
	started, _ := s.temporal.noted()
	require.Len(t, started, 1)
	require.Equal(t, "debian-12", started[0].(contract.ProvisionInput).Image)

	// Installed machines are decommissioned by name.
	var off bool
	do(
		"an installed machine",
		chromedp.Navigate(s.URL+"/#/machines/node-1"),
		click(`[data-panel="node-1"] .service summary`),
		see(`[data-install="node-1"] [data-stake]`),
		ask(`document.querySelector('[data-choice="install"]').disabled`, &off),
	)
	require.True(t, off, "before the name was typed")
	check("what is at stake")
	do(
		"typing its name",
		chromedp.SendKeys(`[data-install] input[name="confirm"]`, "node-1", chromedp.ByQuery),
		click(`[data-choice="install"]:not(:disabled)`),
		see(`[data-panel="node-1"][data-phase="plan"]`),
	)
	started, _ = s.temporal.noted()
	require.Len(t, started, 2)

	// Light, dark and phone.
	waiting := s.URL + "/#/machines/node-69"
	do("a question", click(`[data-bulk] summary`), chromedp.Navigate(waiting), see(`[data-panel="node-69"] [data-question]`))
	check("light")
	picture("page")
	do("dark", scheme("dark"))
	check("dark")
	picture("page-dark")
	do(
		"phone",
		scheme("light"),
		chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(1)),
		chromedp.Navigate(s.URL+"/#/"),
		see(`[data-machine]`),
		chromedp.WaitNotVisible(`.side`, chromedp.ByQuery),
	)
	check("phone, table")
	picture("page-phone")
	var wide bool
	do(
		"a machine on a phone",
		click(`[data-machine="node-69"] a`),
		see(`[data-panel="node-69"] [data-question]`),
		chromedp.WaitNotVisible(`.list`, chromedp.ByQuery),
		ask(`document.documentElement.scrollWidth > innerWidth`, &wide),
	)
	require.False(t, wide, "the page is wider than the phone")
	check("phone, panel")
	do("back", click(`.back`), see(`[data-machine="node-69"]`))

	// Data from before the connection was lost is marked as old.
	do(
		"the desktop again",
		chromedp.EmulateViewport(1440, 900),
		chromedp.Navigate(waiting),
		see(`[data-panel="node-69"] [data-choice="retry"]`),
	)
	s.CloseClientConnections()
	require.NoError(t, s.Listener.Close())
	var filter string
	do(
		"the lost connection",
		see(`[data-connection="lost"] .banner`),
		ask(`getComputedStyle(document.querySelector(".columns")).filter`, &filter),
		ask(`document.querySelector('[data-choice="retry"]').matches(":disabled")`, &off),
	)
	require.Equal(t, "grayscale(1)", filter)
	require.True(t, off, "a button that leads nowhere")
	check("the lost connection")
}

// awaited makes an evaluation wait for the returned promise.
func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
