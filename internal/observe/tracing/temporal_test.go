package tracing

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/inventory"
)

// headerOf returns the header of a workflow that a request starts; traceparent "": the client sends none.
func headerOf(t *testing.T, tr *Tracing, traceparent string) *commonpb.Header {
	t.Helper()
	h := http.Header{}
	if traceparent != "" {
		h.Set("Traceparent", traceparent)
		h.Set("Baggage", "ingot.route=s3cret,other=s3cret")
	}
	tt, err := tr.temporalTracer()
	require.NoError(t, err)
	span, err := tt.StartSpan(&interceptor.TracerStartSpanOptions{
		Operation: "StartWorkflow", Name: inventory.TypeProvision, ToHeader: true,
		Parent: tt.SpanFromContext(tr.Request(t.Context(), h, http.MethodPost, "/v1/workflows/:name")),
	})
	require.NoError(t, err)
	data, err := tt.MarshalSpan(span)
	require.NoError(t, err)
	payload, err := converter.GetDefaultDataConverter().ToPayload(data)
	require.NoError(t, err)
	return &commonpb.Header{Fields: map[string]*commonpb.Payload{tt.Options().HeaderKey: payload}}
}

// seen is what an activity sees of its trace.
type seen struct {
	trace *inventory.Trace
	span  trace.SpanContext
	run   string
}

// looks are activities that look at their trace.
type looks struct{ regular, local seen }

func (l *looks) Look(ctx context.Context) error   { l.regular = see(ctx); return nil }
func (l *looks) Record(ctx context.Context) error { l.local = see(ctx); return nil }

func see(ctx context.Context) seen {
	return seen{TraceOf(ctx), trace.SpanContextFromContext(ctx), activity.GetInfo(ctx).WorkflowExecution.RunID}
}

// runs carries out a workflow of that type with the header, and returns what its regular and its local activity see.
func runs(t *testing.T, tr *Tracing, typ string, header *commonpb.Header) (regular, local seen) {
	t.Helper()
	i, err := tr.Interceptor()
	require.NoError(t, err)
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{i}})
	if header != nil {
		env.SetHeader(header)
	}
	l := &looks{}
	env.RegisterActivity(l)
	env.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
		if err := workflow.ExecuteActivity(ctx, l.Look).Get(ctx, nil); err != nil {
			return err
		}
		return workflow.ExecuteLocalActivity(ctx, l.Record).Get(ctx, nil)
	}, workflow.RegisterOptions{Name: typ})
	env.ExecuteWorkflow(typ)
	require.NoError(t, env.GetWorkflowError())
	return l.regular, l.local
}

// TestHeadersOfTemporal: the trace of the client goes from the request to the activities, with what the record needs.
func TestHeadersOfTemporal(t *testing.T) {
	t.Parallel()
	tr := newBench(t).tracing()
	header := headerOf(t, tr, "00-"+testTrace+"-"+testCaller+"-01")
	regular, local := runs(t, tr, inventory.TypeProvision, header)
	require.Equal(t, testTrace, local.trace.ID)
	require.Equal(t, regular.trace, local.trace)
	require.Equal(t, "/v1/workflows/:name", local.trace.Request.Route)
	require.Equal(t, http.MethodPost, local.trace.Request.Method)
	require.Equal(t, testCaller, local.trace.Request.Caller)
	require.Len(t, local.trace.Parent, 16)
	require.NotEqual(t, testCaller, local.trace.Parent)

	require.Equal(t, spanOf(local.run), local.span.SpanID(), "what Record stores has spans of its own")
	spans := tr.queue.first()
	require.Len(t, spans, 1)
	require.Equal(t, "RunActivity:Look", spans[0].Name())
	require.Equal(t, spanOf(regular.run), spans[0].Parent().SpanID())
	require.Equal(t, regular.span.SpanID(), spans[0].SpanContext().SpanID())

	_, again := runs(t, tr, inventory.TypeProvision, header)
	require.Equal(t, local.trace, again.trace)
}

// TestOtherBeginnings: a run that no request has started is the root of a trace that follows from its id; a client
// that does not sample gets no spans; operations have no trace.
func TestOtherBeginnings(t *testing.T) {
	t.Parallel()
	tr := newBench(t).tracing()
	_, local := runs(t, tr, inventory.TypeProvision, nil)
	require.Equal(t, &inventory.Trace{ID: traceOf(local.run).String()}, local.trace)
	require.Len(t, tr.queue.first(), 1)

	_, local = runs(t, tr, inventory.TypeProvision, headerOf(t, tr, ""))
	require.Empty(t, local.trace.Request.Caller)
	require.Len(t, tr.queue.first(), 2)

	regular, local := runs(t, tr, inventory.TypeProvision, headerOf(t, tr, "00-"+testTrace+"-"+testCaller+"-00"))
	require.Nil(t, regular.trace)
	require.Nil(t, local.trace)
	regular, local = runs(t, tr, inventory.TypeRecover, headerOf(t, tr, ""))
	require.Nil(t, regular.trace)
	require.Nil(t, local.trace)
	require.Len(t, tr.queue.first(), 2)
}
