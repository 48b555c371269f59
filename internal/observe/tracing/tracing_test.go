package tracing

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/bmc"
	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/fakecollector"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

const (
	testTrace  = "0af7651916cd43dd8448eb211c80319c"
	testParent = "00f067aa0ba902b7"
	testCaller = "b7ad6b7169203331"
)

// bench is a store with the events of a run, and a collector.
type bench struct {
	*testing.T
	store     *sqlite.Store
	collector *fakecollector.Collector
	status    atomic.Int64 // of the collector's answers
	url       string
	config    Config
	owner     inventory.Owner
	record    inventory.Workflow
}

func newBench(t *testing.T) *bench {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), plainKeys{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	b := &bench{T: t, store: store}
	b.status.Store(http.StatusOK)
	b.collector = &fakecollector.Collector{Answer: func(*http.Request) int { return int(b.status.Load()) }}
	server := httptest.NewServer(b.collector)
	t.Cleanup(server.Close)
	b.url = server.URL
	b.config = Config{
		Endpoint: server.URL,
		Server:   "here",
		Version:  "v1",
		Store:    fakesite.InventoryOf(store),
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	return b
}

// plainKeys seals nothing.
type plainKeys struct{}

func (plainKeys) Seal(_, _ string, plain []byte) ([]byte, error)  { return plain, nil }
func (plainKeys) Open(_, _ string, sealed []byte) ([]byte, error) { return sealed, nil }

// tracing returns a Tracing that has not begun to run.
func (b *bench) tracing() *Tracing {
	b.Helper()
	t, err := New(b.Context(), b.config)
	require.NoError(b, err)
	return t
}

// begin stores a run that a request has started.
func (b *bench) begin() {
	b.Helper()
	m := inventory.Machine{Name: "node", Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:0a"}}}
	require.NoError(b, b.store.Machines.PutMachines(b.Context(), []inventory.Machine{m}, false, "test"))
	g, err := b.store.Grants.TakeGrant(b.Context(), "node", "run", "machine/node", false)
	require.NoError(b, err)
	b.owner = g.Owner
	b.record = inventory.Workflow{
		Run: "run", ID: "machine/node", Type: inventory.TypeProvision, Machine: "node", Epoch: g.Epoch, State: inventory.StateRunning,
		Started: time.Now(), Actions: []inventory.ActionRecord{{Name: "write", Image: "image2disk"}},
		Trace: &inventory.Trace{ID: testTrace, Parent: testParent, Request: &inventory.TraceRequest{
			Method: http.MethodPost, Route: "/v1/workflows", Received: time.Now().Add(-time.Second), Caller: testCaller,
		}},
	}
}

// phase stores that a phase begins.
func (b *bench) phase(name, state string) {
	b.Helper()
	b.record.Phase, b.record.State, b.record.Updated = name, state, time.Now()
	b.record.Seq++
	require.NoError(b, b.store.Workflows.PutWorkflow(b.Context(), b.record))
}

// event stores an event of the first boot.
func (b *bench) event(kind, key, message, detail string) {
	b.Helper()
	e := b.owner.Event(1, kind, key, message)
	if detail != "" {
		e.Detail = []byte(detail)
	}
	require.NoError(b, b.store.Events.AppendEvents(b.Context(), []inventory.Event{e}))
}

// middle and end are the halves of a run.
func (b *bench) middle() {
	b.phase(inventory.PhasePlan, inventory.StateRunning)
	b.phase(inventory.PhaseDHCP, inventory.StateRunning)
	b.event(inventory.EventDHCP, "", "pxe, BIOS: undionly.kpxe", "")
	b.event(inventory.EventLoader, "", "undionly.kpxe by TFTP", `{"seconds":1.5}`)
	b.event(inventory.EventKernel, "", "10 bytes by HTTP", `{"seconds":2}`)
}

func (b *bench) end() {
	key := action.Key{Epoch: b.owner.Epoch, Attempt: 1}.String()
	b.phase(inventory.PhaseAction, inventory.StateRunning)
	b.event(inventory.EventActionStarted, key, "", "")
	b.event(inventory.EventActionDone, key+" id", "SUCCESS", `{"key":{"epoch":1,"action":0,"attempt":1},"state":"SUCCESS","message":"s3cret"}`)
	b.event(inventory.EventPhoneHome, "phone-home", "s3cret", `{"hostname":"s3cret"}`)
	b.phase(inventory.PhaseDone, inventory.StateSuccess)
	b.event(inventory.EventOS, "", "", "") // after the end
}

// complete requires that the trace is whole, and returns its spans by name.
func (b *bench) complete() map[string]fakecollector.Span {
	b.Helper()
	spans, err := b.collector.Spans(testTrace)
	require.NoError(b, err)
	root, err := fakecollector.Root(spans, testCaller)
	require.NoError(b, err)
	require.Equal(b, "POST /v1/workflows", root.Name)
	require.Equal(b, testParent, root.ID)
	require.NotContains(b, string(b.collector.Text()), "s3cret")
	out := map[string]fakecollector.Span{}
	for _, s := range spans {
		out[s.Name] = s
	}
	return out
}

// TestStoredSpans: the spans of what is stored make one trace, without the text of machines (S62).
func TestStoredSpans(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tr := b.tracing()
	b.begin()
	b.middle()
	b.end()
	require.NoError(t, tr.pass(t.Context()))

	spans := b.complete()
	run := spans["RunWorkflow:Provision"]
	require.Equal(t, testParent, run.Parent)
	require.Equal(t, "node", run.Keys["ingot.machine"])
	require.Equal(t, inventory.StateSuccess, run.Keys["ingot.state"])
	for phase, inside := range map[string][]string{
		inventory.PhasePlan:   nil,
		inventory.PhaseDHCP:   {"TFTP {loader}", "GET /boot/{mac}/{token}/{kernel}"},
		inventory.PhaseAction: {"action write", "POST /phone-home/{machine}/{nonce}"},
	} {
		require.Equal(t, run.ID, spans[phase].Parent, phase)
		require.Equal(t, phase, spans[phase].Keys["ingot.phase"])
		for _, name := range inside {
			require.Equal(t, spans[phase].ID, spans[name].Parent, name)
			require.Equal(t, phase, spans[name].Keys["ingot.phase"])
			require.Equal(t, "1", spans[name].Keys["ingot.boot"])
		}
	}
	kernel := spans["GET /boot/{mac}/{token}/{kernel}"]
	require.Equal(t, 2*time.Second, time.Duration(kernel.Ended-kernel.Began))
	require.Equal(t, "GET", kernel.Keys["http.request.method"])
	require.Equal(t, run.ID, spans["DHCP"].Parent, "the last packet came after the end of the run")
	require.EqualValues(t, 11, tr.Counts().Exported)
	require.NoError(t, tr.pass(t.Context()))
	require.EqualValues(t, 11, tr.Counts().Exported, "nothing is sent twice")
}

// TestKilled: a server that is killed before it knows that its spans were taken sends them again, and the next one
// goes on with the trace.
func TestKilled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first := b.tracing()
	b.begin()
	b.middle()
	b.config.Store = forgetful{b.config.Store}
	lost, err := New(t.Context(), b.config)
	require.NoError(t, err)
	require.ErrorIs(t, lost.pass(t.Context()), context.Canceled)
	require.EqualValues(t, 5, lost.Counts().Exported)
	require.Zero(t, first.Counts().Exported)

	b.config.Store = fakesite.InventoryOf(b.store)
	b.end()
	second := b.tracing()
	require.NoError(t, second.pass(t.Context()))
	spans := b.complete()
	require.Equal(t, 2, spans["TFTP {loader}"].Times)
	require.Equal(t, 1, spans["RunWorkflow:Provision"].Times)
}

// forgetful cannot remember what was sent.
type forgetful struct{ Store }

func (forgetful) SetTracesSent(context.Context, int64) error { return context.Canceled }

// activity starts the span of an activity of the run.
func (b *bench) activity(tr *Tracing) (context.Context, trace.Span) {
	id, err := trace.TraceIDFromHex(testTrace)
	require.NoError(b, err)
	return tr.live.Start(trace.ContextWithSpanContext(b.Context(), runContext(id, "run")), "RunActivity:Power")
}

// TestLiveSpans: operations on BMCs are sent after their activity, deliveries are of the run, and both have their parents.
func TestLiveSpans(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tr := b.tracing()
	b.begin()
	b.middle()
	ctx, span := b.activity(tr)
	tr.BMC(
		ctx,
		bmc.Operation{Driver: "ipmi", Name: "power on", Outcome: bmc.OutcomeRefused, Machine: "node", Address: "192.0.2.1", Took: time.Second},
	)
	tr.BMC(t.Context(), bmc.Operation{Name: "of no run"})
	tr.Delivered(
		bootsvc.Delivery{Owner: b.owner, Boot: 1, Method: "GET", Image: "debian", Status: 200, Bytes: 5, Began: time.Now(), Ended: time.Now()},
	)
	tr.Delivered(bootsvc.Delivery{Owner: inventory.Owner{Machine: "node", Run: "unknown"}, Method: "GET"})
	require.NoError(t, tr.pass(t.Context()))
	sent, err := b.collector.Spans(testTrace)
	require.NoError(t, err)
	require.False(
		t,
		slices.ContainsFunc(sent, func(s fakecollector.Span) bool { return s.Name == "bmc power on" }),
		"its activity has not ended",
	)

	span.End()
	b.end()
	require.NoError(t, tr.pass(t.Context()))
	spans := b.complete()
	require.Equal(t, spans["RunActivity:Power"].ID, spans["bmc power on"].Parent)
	require.True(t, spans["bmc power on"].Failed)
	require.Equal(t, "192.0.2.1", spans["bmc power on"].Keys["server.address"])
	require.Equal(t, "refused", spans["bmc power on"].Keys["error.type"])
	require.Equal(t, spans["RunWorkflow:Provision"].ID, spans["GET /images/{image}"].Parent)
	require.Equal(t, "debian", spans["GET /images/{image}"].Keys["ingot.image"])
}

// TestCollectorIsAway: spans wait for a collector that does not answer, within a bound, and nothing waits for them.
func TestCollectorIsAway(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tr := b.tracing()
	b.begin()
	b.middle()
	b.status.Store(http.StatusServiceUnavailable)
	for range maxWaiting/2 + 3 { // each has a child
		ctx, span := b.activity(tr)
		tr.BMC(ctx, bmc.Operation{Name: "power on", Outcome: bmc.OutcomeOK})
		span.End()
	}
	for range maxDeliveries + 2 {
		tr.Delivered(bootsvc.Delivery{Owner: inventory.Owner{Run: "unknown"}})
	}
	require.ErrorContains(t, tr.pass(t.Context()), "503")
	require.Equal(t, Counts{Full: 2*3 + 2}, tr.Counts())

	b.end()
	b.status.Store(http.StatusOK)
	require.NoError(t, tr.pass(t.Context()))
	require.Len(t, b.complete(), 12, "with one name for all activities and one for all operations")
	require.False(t, tr.waiting())
	require.Equal(t, Counts{Exported: maxWaiting + 11, Full: 2*3 + 2}, tr.Counts())
}

// TestCollectorRefuses: what a collector will never take is dropped, counted, and holds nothing up.
func TestCollectorRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tr := b.tracing()
	b.begin()
	b.middle()
	b.status.Store(http.StatusBadRequest)
	require.NoError(t, tr.pass(t.Context()))
	require.Equal(t, Counts{Refused: 5}, tr.Counts())
	b.status.Store(http.StatusOK)
	b.end()
	require.NoError(t, tr.pass(t.Context()))
	require.Equal(t, Counts{Refused: 5, Exported: 6}, tr.Counts())
}

// TestCollectorRefusesSome: what it has taken of a request is not counted as refused.
func TestCollectorRefusesSome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tr := b.tracing()
	b.begin()
	b.middle()
	b.collector.Rejects = 2
	require.NoError(t, tr.pass(t.Context()))
	require.Equal(t, Counts{Refused: 2, Exported: 3}, tr.Counts())
}

// TestRun: spans are sent while the server runs, and the last ones when it ends.
func TestRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tr := b.tracing()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- tr.Run(ctx) }()
	b.begin()
	b.middle()
	_, err := b.collector.Await(t.Context(), testTrace, func(s []fakecollector.Span) bool { return len(s) == 5 })
	require.NoError(t, err)
	b.end()
	cancel()
	require.NoError(t, <-done)
	b.complete()
}

// TestUntraced: a run without a trace has no spans.
func TestUntraced(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tr := b.tracing()
	b.begin()
	b.record.Trace = nil
	b.middle()
	b.end()
	require.NoError(t, tr.pass(t.Context()))
	require.Zero(t, tr.Counts())
	require.Empty(t, b.collector.Text())
}

// S64: a file of headers that others may use is refused.
func TestS64HeadersArePrivate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.config.HeadersFile = filepath.Join(t.TempDir(), "headers")
	require.NoError(t, os.WriteFile(b.config.HeadersFile, []byte("X-Token: one\n"), 0o600))
	require.NoError(t, os.Chmod(b.config.HeadersFile, 0o666))
	_, err := New(t.Context(), b.config)
	require.ErrorContains(t, err, "chmod 600")
}

// TestHeaders: requests carry the headers of the file as it is then, and no error repeats one of them.
func TestHeaders(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "headers")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	var token, path string
	b.collector.Answer = func(r *http.Request) int {
		token, path = r.Header.Get("X-Token"), r.URL.Path
		return http.StatusOK
	}
	b.config.HeadersFile = file
	_, err := New(t.Context(), b.config)
	require.ErrorIs(t, err, os.ErrNotExist)
	write("s3cret")
	_, err = New(t.Context(), b.config)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.NotContains(t, err.Error(), "s3cret")

	write("X-Token: one\n")
	tr := b.tracing()
	b.begin()
	b.middle()
	require.NoError(t, tr.pass(t.Context()))
	require.Equal(t, "one", token)
	require.Equal(t, "/v1/traces", path)
	write("X-Token: two\nX-Other: three\n")
	b.end()
	require.NoError(t, tr.pass(t.Context()))
	require.Equal(t, "two", token)

	b.config.CAFile = file
	_, err = New(t.Context(), b.config)
	require.ErrorIs(t, err, inventory.ErrInvalid)
}

// TestEventsOfNoRequest: what the server itself finds out has a span without a request.
func TestEventsOfNoRequest(t *testing.T) {
	t.Parallel()
	for kind, name := range map[string]string{inventory.EventAgentLost: "agent lost", inventory.EventBootLost: "boot lost"} {
		s, ok := spanOfKind(inventory.Workflow{}, inventory.TracedEvent{Event: inventory.Event{Kind: kind}})
		require.True(t, ok)
		require.Equal(t, []any{name, kind, trace.SpanKindInternal}, []any{s.name, s.failed, s.kind})
	}
}
