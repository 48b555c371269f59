package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/workflows"
)

const (
	adminToken = "test-admin-token-of-sufficient-length"
	mac        = "52:54:00:00:00:0a"
)

// fakeTemporal is the part of Temporal that the API uses: it knows runs, and
// counts a request id once per run.
type fakeTemporal struct {
	client.Client

	mu       sync.Mutex
	down     bool
	runs     map[string]*fakeRun // by run id
	latest   map[string]string   // run id by workflow id
	options  []client.StartWorkflowOptions
	types    []string
	inputs   []any
	sent     []*workflowservice.SignalWorkflowExecutionRequest // each request that came
	kept     []*workflowservice.SignalWorkflowExecutionRequest // those that made an event
	unsigned func(*workflowservice.SignalWorkflowExecutionRequest) error
	updates  []client.UpdateWorkflowOptions
	update   func(context.Context) error
	signals  []string
	arrived  chan struct{}
}

type fakeRun struct {
	id, run string
	status  enumspb.WorkflowExecutionStatus
	result  any
	cancels int
	busy    string // with a workflow task, or with an activity
}

func newFake() *fakeTemporal {
	return &fakeTemporal{runs: map[string]*fakeRun{}, latest: map[string]string{}, arrived: make(chan struct{}, 1000)}
}

func (f *fakeTemporal) provider() (client.Client, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f, !f.down
}

// open makes a run that is running.
func (f *fakeTemporal) open(id, run string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.latest[id] = run
	f.runs[run] = &fakeRun{id: id, run: run, status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}
}

func (f *fakeTemporal) end(run string, status enumspb.WorkflowExecutionStatus, result any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs[run].status, f.runs[run].result = status, result
}

func (f *fakeTemporal) requests() (sent, kept []*workflowservice.SignalWorkflowExecutionRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append(sent, f.sent...), append(kept, f.kept...)
}

func (f *fakeTemporal) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, kind any, args ...any) (client.WorkflowRun, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options, f.types, f.inputs = append(f.options, o), append(f.types, kind.(string)), append(f.inputs, args[0])
	for _, r := range f.runs {
		if r.id == o.ID && r.status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			if o.WorkflowIDConflictPolicy != enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL || !o.WorkflowExecutionErrorWhenAlreadyStarted {
				return fakeHandle{f, r}, nil // as the SDK does: the open run, as if it were new
			}
			return nil, serviceerror.NewWorkflowExecutionAlreadyStarted("already started", "", r.run)
		}
	}
	r := &fakeRun{id: o.ID, run: fmt.Sprintf("run-%d", len(f.runs)+1), status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}
	f.runs[r.run], f.latest[o.ID] = r, r.run
	return fakeHandle{f, r}, nil
}

func (f *fakeTemporal) find(id, run string) (*fakeRun, error) {
	if run == "" {
		run = f.latest[id]
	}
	if r := f.runs[run]; r != nil && r.id == id {
		return r, nil
	}
	return nil, serviceerror.NewNotFound("workflow execution not found")
}

func (f *fakeTemporal) DescribeWorkflowExecution(_ context.Context, id, run string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.find(id, run)
	if err != nil {
		return nil, err
	}
	d := &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{
		Execution: &commonpb.WorkflowExecution{WorkflowId: id, RunId: r.run}, Status: r.status,
	}}
	switch r.busy {
	case "task":
		d.PendingWorkflowTask = &workflowpb.PendingWorkflowTaskInfo{}
	case "activity":
		d.PendingActivities = []*workflowpb.PendingActivityInfo{{}}
	}
	return d, nil
}

func (f *fakeTemporal) CheckHealth(context.Context, *client.CheckHealthRequest) (*client.CheckHealthResponse, error) {
	return &client.CheckHealthResponse{}, nil
}

func (f *fakeTemporal) CountWorkflow(context.Context, *workflowservice.CountWorkflowExecutionsRequest) (*workflowservice.CountWorkflowExecutionsResponse, error) {
	return &workflowservice.CountWorkflowExecutionsResponse{}, nil
}

func (f *fakeTemporal) CancelWorkflow(_ context.Context, id, run string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.find(id, run)
	if err != nil {
		return err
	}
	if r.status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return serviceerror.NewNotFound("workflow execution already completed")
	}
	r.cancels++
	return nil
}

func (f *fakeTemporal) SignalWorkflow(_ context.Context, id, run, name string, _ any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(id, run); err != nil {
		return err
	}
	f.signals = append(f.signals, name)
	return nil
}

func (f *fakeTemporal) UpdateWorkflow(ctx context.Context, o client.UpdateWorkflowOptions) (client.WorkflowUpdateHandle, error) {
	f.mu.Lock()
	f.updates = append(f.updates, o)
	do := f.update
	f.mu.Unlock()
	if do != nil {
		if err := do(ctx); err != nil {
			return nil, err
		}
	}
	return fakeUpdate{}, nil
}

func (f *fakeTemporal) GetWorkflow(_ context.Context, _, run string) client.WorkflowRun {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fakeHandle{f, f.runs[run]}
}

func (f *fakeTemporal) WorkflowService() workflowservice.WorkflowServiceClient {
	return fakeService{f: f}
}

// fakeService is the raw interface.
type fakeService struct {
	workflowservice.WorkflowServiceClient
	f *fakeTemporal
}

func (s fakeService) SignalWorkflowExecution(_ context.Context, r *workflowservice.SignalWorkflowExecutionRequest, _ ...grpc.CallOption) (*workflowservice.SignalWorkflowExecutionResponse, error) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.arrived <- struct{}{} }()
	f.sent = append(f.sent, r)
	if f.unsigned != nil {
		if err := f.unsigned(r); err != nil {
			return nil, err
		}
	}
	run, err := f.find(r.WorkflowExecution.WorkflowId, r.WorkflowExecution.RunId)
	if err != nil {
		return nil, err
	}
	if run.status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return nil, serviceerror.NewNotFound("workflow execution already completed")
	}
	for _, k := range f.kept {
		if k.RequestId == r.RequestId && k.WorkflowExecution.RunId == r.WorkflowExecution.RunId {
			return &workflowservice.SignalWorkflowExecutionResponse{}, nil
		}
	}
	f.kept = append(f.kept, r)
	return &workflowservice.SignalWorkflowExecutionResponse{}, nil
}

type fakeHandle struct {
	f *fakeTemporal
	r *fakeRun
}

func (h fakeHandle) GetID() string                  { return h.r.id }
func (h fakeHandle) GetRunID() string               { return h.r.run }
func (h fakeHandle) GetFirstExecutionRunID() string { return h.r.run }
func (h fakeHandle) Get(_ context.Context, v any) error {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	b, err := json.Marshal(h.r.result)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func (h fakeHandle) GetWithOptions(ctx context.Context, v any, _ client.WorkflowRunGetOptions) error {
	return h.Get(ctx, v)
}

type fakeUpdate struct{ client.WorkflowUpdateHandle }

func (fakeUpdate) Get(context.Context, any) error { return nil }

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// plainKeys seals nothing: what is sealed is not what these tests are about.
type plainKeys struct{}

func (plainKeys) Seal(_, _ string, plain []byte) ([]byte, error)  { return plain, nil }
func (plainKeys) Open(_, _ string, sealed []byte) ([]byte, error) { return sealed, nil }

// site is a server with a real store and a Temporal that is not.
type site struct {
	t        *testing.T
	server   *Server
	store    *sqlite.Store
	temporal *fakeTemporal
	clock    *clock
	operator http.Handler
	agent    http.Handler
}

func newSite(t *testing.T, change ...func(*Config)) *site {
	t.Helper()
	c := &clock{t: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), plainKeys{}, sqlite.WithClock(c.now))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	f := newFake()
	cfg := Config{
		Store: store, Temporal: f.provider, TokenSHA256: sha256.Sum256([]byte(adminToken)), ClaimKey: bytes.Repeat([]byte{7}, 32),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Now: c.now, Version: "v0-test", ImageDir: t.TempDir(), MinFree: 1,
		Why: func(_ context.Context, mac string) (any, error) {
			return map[string]any{"mac": mac, "reasons": []string{"not armed"}}, nil
		},
		CheckBMC: func(context.Context, inventory.Machine) (string, error) { return "on", nil },
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	return &site{t: t, server: s, store: store, temporal: f, clock: c, operator: s.Operator(), agent: s.Agent()}
}

// header sets or, with "", removes a header of a request.
type header struct{ name, value string }

// do sends a request with the admin token to the operator's listener.
func (s *site) do(method, path string, in any, hs ...header) *httptest.ResponseRecorder {
	s.t.Helper()
	return send(s.t, s.operator, method, path, in, append([]header{{"Authorization", "Bearer " + adminToken}}, hs...)...)
}

func send(t *testing.T, h http.Handler, method, path string, in any, hs ...header) *httptest.ResponseRecorder {
	t.Helper()
	var b []byte
	switch v := in.(type) {
	case nil:
	case string:
		b = []byte(v)
	case []byte:
		b = v
	default:
		var err error
		b, err = json.Marshal(v)
		require.NoError(t, err)
	}
	r := httptest.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(b))
	r.Host = "127.0.0.1:8080"
	for _, h := range hs {
		switch {
		case h.value == "":
			r.Header.Del(h.name)
		case h.name == "Host":
			r.Host = h.value
		default:
			r.Header.Set(h.name, h.value)
		}
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

// decode reads an answer that must have this status.
func decode[T any](t *testing.T, rec *httptest.ResponseRecorder, status int) T {
	t.Helper()
	require.Equal(t, status, rec.Code, rec.Body.String())
	var v T
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &v), rec.Body.String())
	return v
}

func machine(name, mac string) inventory.Machine {
	return inventory.Machine{Name: name, Interfaces: []inventory.Interface{{MAC: mac}}}
}

// addMachine makes a machine with a BMC.
func (s *site) addMachine(name, mac string) {
	s.t.Helper()
	m := machine(name, mac)
	m.BMC = &inventory.BMC{Driver: inventory.DriverIPMI, Host: "192.0.2." + mac[len(mac)-1:] + "0", User: "admin", Password: inventory.NewSecret("hunter2")}
	if strings.HasSuffix(mac, "a") {
		m.BMC.Host = "192.0.2.10"
	}
	require.NoError(s.t, s.store.PutMachines(s.t.Context(), []inventory.Machine{m}, false, "test"))
}

// armed makes the machine's run, with its grant, its record and one boot allowed.
func (s *site) armed(name, run string) inventory.Owner {
	s.t.Helper()
	ctx := s.t.Context()
	s.temporal.open(workflows.MachineID(name), run)
	g, err := s.store.TakeGrant(ctx, name, run, workflows.MachineID(name), false)
	require.NoError(s.t, err)
	_, err = s.store.AllowBoot(ctx, g.Owner, 1, s.clock.now().Add(time.Hour))
	require.NoError(s.t, err)
	require.NoError(s.t, s.store.PutWorkflow(ctx, inventory.Workflow{
		Run: run, ID: workflows.MachineID(name), Type: workflows.ProvisionType, Machine: name, Epoch: g.Epoch, Template: "image", Image: "debian-12",
		State: inventory.StateRunning, Phase: inventory.PhaseAgent, Started: s.clock.now(), Updated: s.clock.now(),
		Actions: []inventory.ActionRecord{{Name: "write", State: action.Running, Attempt: 1, Timeout: 600}},
	}))
	return g.Owner
}

const nonceA, nonceB = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"

func (s *site) hello(o inventory.Owner, boot int, nonce string) action.Hello {
	return action.Hello{
		Protocol: action.Protocol, Machine: o.Machine, Claim: inventory.Claim(s.server.cfg.ClaimKey, o, boot), Nonce: nonce, MAC: mac,
		Facts: action.Facts{Disks: []action.Disk{{Path: "/dev/sda", Serial: "S1", Size: 1 << 30}}},
	}
}

// welcome claims a boot.
func (s *site) welcome(o inventory.Owner, nonce string) action.Welcome {
	s.t.Helper()
	return decode[action.Welcome](s.t, send(s.t, s.agent, http.MethodPost, "/agent/v1/claim", s.hello(o, 1, nonce)), http.StatusOK)
}

func bearer(token string) header { return header{"Authorization", "Bearer " + token} }

// assign gives o's agent something to do.
func (s *site) assign(o inventory.Owner) action.Key {
	s.t.Helper()
	k := action.Key{Epoch: o.Epoch, Attempt: 1}
	require.NoError(s.t, s.store.Assign(s.t.Context(), inventory.Assignment{
		Owner: o, Boot: 1, Key: k, Payload: action.Assignment{Key: k, Run: o.Run, Action: action.Action{Name: "write", Image: "noop", Timeout: 600}},
	}))
	return k
}

func (s *site) events(f inventory.EventFilter) map[string]int {
	s.t.Helper()
	es, err := s.store.Events(s.t.Context(), f)
	require.NoError(s.t, err)
	kinds := map[string]int{}
	for _, e := range es {
		kinds[e.Kind]++
	}
	return maps.Clone(kinds)
}
