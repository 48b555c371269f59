package tracing

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/ingotmetal/ingot/bmc"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakecollector"
)

// memory is a Store of one run whose first phase is over.
type memory struct {
	workflow inventory.Workflow
	events   []inventory.TracedEvent
	sent     int64
}

func (m *memory) Workflow(context.Context, string) (inventory.Workflow, error) {
	return m.workflow, nil
}

func (m *memory) TracedEvents(_ context.Context, after int64) (events []inventory.TracedEvent, last int64, err error) {
	last = after
	for _, e := range m.events {
		if e.Seq > after {
			events, last = append(events, e), e.Seq
		}
	}
	return events, last, nil
}

func (m *memory) TracesSent(context.Context) (int64, error) { return m.sent, nil }

func (m *memory) SetTracesSent(_ context.Context, seq int64) error { m.sent = seq; return nil }

func (*memory) Subscribe() (ch <-chan struct{}, cancel func()) { return nil, func() {} }

const (
	testTrace  = "0af7651916cd43dd8448eb211c80319c"
	testParent = "b7ad6b7169203331"
)

// newTest returns a Tracing of a run that was armed, and its collector, which answers with status.
func newTest(t *testing.T, status *atomic.Int64) (*Tracing, *memory, *fakecollector.Collector) {
	t.Helper()
	c := &fakecollector.Collector{Answer: func(*http.Request) int { return int(status.Load()) }}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	began := time.Now().Add(-time.Minute)
	w := inventory.Workflow{Run: "r1", Machine: "m1", Type: "Provision", Trace: &inventory.Trace{ID: testTrace, Parent: testParent}}
	m := &memory{workflow: w, events: []inventory.TracedEvent{
		{Event: inventory.Event{Seq: 7, Run: "r1", Machine: "m1", Epoch: 2, Boot: 1, Kind: inventory.EventScript, At: began.Add(time.Second)}},
	}}
	out, err := New(t.Context(), Config{Endpoint: server.URL, Store: m, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return out, m, c
}

// TestSpansWaitForTheCollector: what a collector that is ill has not taken is sent again, with the same id, and what it
// refuses for good is dropped and counted.
func TestSpansWaitForTheCollector(t *testing.T) {
	var status atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	x, m, c := newTest(t, &status)
	require.Error(t, x.pass(t.Context()))
	require.Zero(t, m.sent)
	require.Zero(t, x.Counts().Exported)

	status.Store(http.StatusOK)
	require.NoError(t, x.pass(t.Context()))
	require.EqualValues(t, 7, m.sent)
	spans, err := c.Spans(testTrace)
	require.NoError(t, err)
	require.NotEmpty(t, spans)
	require.Equal(t, "GET /ipxe/script/{mac}/auto.ipxe", spans[len(spans)-1].Name)
	require.Equal(t, Counts{Exported: 1}, x.Counts())
	require.NoError(t, x.pass(t.Context()))
	require.Equal(t, Counts{Exported: 1}, x.Counts(), "nothing is sent twice")

	status.Store(http.StatusBadRequest)
	m.events[0].Seq = 8
	require.NoError(t, x.pass(t.Context()))
	require.Equal(t, Counts{Exported: 1, Refused: 1}, x.Counts())
	require.EqualValues(t, 8, m.sent)
}

// TestQueueIsBounded: while no collector answers, spans are dropped above a limit and counted, and making one never waits.
func TestQueueIsBounded(t *testing.T) {
	var status atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	x, _, _ := newTest(t, &status)
	id, err := trace.TraceIDFromHex(testTrace)
	require.NoError(t, err)
	ctx := trace.ContextWithSpanContext(t.Context(), runContext(id, "r1"))
	for range maxWaiting + 3 {
		x.BMC(ctx, bmc.Operation{Driver: "ipmi", Name: "power on", Outcome: bmc.OutcomeOK})
	}
	require.Equal(t, Counts{Full: 3}, x.Counts())
	require.Equal(t, maxWaiting, x.queue.len())
	x.BMC(t.Context(), bmc.Operation{Driver: "ipmi", Name: "power on", Outcome: bmc.OutcomeOK})
	require.Equal(t, Counts{Full: 3}, x.Counts(), "an operation outside of a run has no span")
}

// TestAChildWaitsForItsParent: a span is not sent before the one that it is a part of, so a kill leaves no orphan.
func TestAChildWaitsForItsParent(t *testing.T) {
	var status atomic.Int64
	status.Store(http.StatusOK)
	x, _, _ := newTest(t, &status)
	id, err := trace.TraceIDFromHex(testTrace)
	require.NoError(t, err)
	ctx, parent := x.live.Start(trace.ContextWithSpanContext(t.Context(), runContext(id, "r1")), "RunActivity:Power")
	x.BMC(ctx, bmc.Operation{Driver: "ipmi", Name: "power on", Outcome: bmc.OutcomeOK})
	require.Zero(t, x.queue.len())
	parent.End()
	require.Equal(t, 2, x.queue.len())
}
