package tracing

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/sdk/contrib/opentelemetry"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"

	"github.com/ingotmetal/ingot/inventory"
)

// Members of the OpenTelemetry baggage that is passed from the API request to the activities of the run. Baggage
// that a client sends is ignored.
const (
	bagParent   = "ingot.parent"   // span that is the parent of the run
	bagRequest  = "ingot.request"  // span of the request
	bagMethod   = "ingot.method"   // HTTP method of the request
	bagRoute    = "ingot.route"    // route of the request
	bagReceived = "ingot.received" // when the request was received, in nanoseconds since 1970
	bagCaller   = "ingot.caller"   // span of the client
)

// Request returns the context of an API request that may start runs. It continues the trace in the client's header
// traceparent, if there is one. The request gets a span only if it starts a run; see root.
func (t *Tracing) Request(ctx context.Context, h http.Header, method, route string) context.Context {
	id, span := newIDs()
	own := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled})
	members := map[string]string{
		bagRequest: span.String(), bagMethod: method, bagRoute: route, bagReceived: strconv.FormatInt(time.Now().UnixNano(), 10),
	}
	caller := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(h)))
	if caller.IsValid() {
		own = caller.WithSpanID(span).WithRemote(false)
		members[bagCaller] = caller.SpanID().String()
	}
	return trace.ContextWithSpanContext(withBaggage(ctx, members), own)
}

func withBaggage(ctx context.Context, members map[string]string) context.Context {
	var b baggage.Baggage
	for key, value := range members {
		m, err := baggage.NewMemberRaw(key, value)
		if err == nil {
			b, err = b.SetMember(m)
		}
		if err != nil {
			return ctx // the keys are constants, and a value of this length is always valid
		}
	}
	return baggage.ContextWithBaggage(ctx, b)
}

// TraceOf returns the trace to which the run of an activity belongs, in the form in which the run's record stores it.
// It returns nil if the run belongs to no trace.
func TraceOf(ctx context.Context) *inventory.Trace {
	c := trace.SpanContextFromContext(ctx)
	if !c.IsSampled() {
		return nil
	}
	b := baggage.FromContext(ctx)
	out := &inventory.Trace{ID: c.TraceID().String(), Parent: b.Member(bagParent).Value()}
	if out.Parent == "" || b.Member(bagRequest).Value() != out.Parent {
		return out
	}
	received, err := strconv.ParseInt(b.Member(bagReceived).Value(), 10, 64)
	if err != nil {
		return out
	}
	out.Request = &inventory.TraceRequest{
		Method: b.Member(bagMethod).Value(), Route: b.Member(bagRoute).Value(), Received: time.Unix(0, received).UTC(),
		Caller: b.Member(bagCaller).Value(),
	}
	return out
}

// Interceptor returns the interceptor for the Temporal client and workers. It passes the trace context on in
// headers: from the request to the workflow, and from there to its activities.
func (t *Tracing) Interceptor() (interceptor.Interceptor, error) {
	tracer, err := t.temporalTracer()
	if err != nil {
		return nil, err
	}
	return interceptor.NewTracingInterceptor(tracer), nil
}

func (t *Tracing) temporalTracer() (temporalTracer, error) {
	inner, err := opentelemetry.NewTracer(opentelemetry.TracerOptions{
		Tracer: t.live, DisableSignalTracing: true, DisableQueryTracing: true, DisableUpdateTracing: true, AllowInvalidParentSpans: true,
	})
	return temporalTracer{inner}, err
}

// temporalTracer creates the spans of activities. The span of a workflow is created from its record (records.go), so
// here a workflow only gets the context of that span. That context depends only on the run, so it is the same in each
// replay of the workflow.
type temporalTracer struct{ interceptor.Tracer }

// untraced is the span of everything that belongs to no trace.
type untraced struct{}

// Finish implements interceptor.TracerSpan.
func (untraced) Finish(*interceptor.TracerFinishSpanOptions) {}

// contextOf returns a context with the span and the baggage of s.
func (t temporalTracer) contextOf(s interceptor.TracerSpanRef) context.Context {
	if span, ok := s.(interceptor.TracerSpan); ok && span != (untraced{}) {
		return t.Tracer.ContextWithSpan(context.Background(), span)
	}
	return context.Background()
}

// spanIn returns the span of ctx with its baggage, or untraced.
func (t temporalTracer) spanIn(ctx context.Context) interceptor.TracerSpan {
	if s := t.SpanFromContext(ctx); s != nil {
		return s
	}
	return untraced{}
}

// UnmarshalSpan implements interceptor.Tracer.
func (t temporalTracer) UnmarshalSpan(m map[string]string) (interceptor.TracerSpanRef, error) {
	return t.spanIn(opentelemetry.DefaultTextMapPropagator.Extract(context.Background(), propagation.MapCarrier(m))), nil
}

// MarshalSpan implements interceptor.Tracer.
func (t temporalTracer) MarshalSpan(s interceptor.TracerSpan) (map[string]string, error) {
	if s == (untraced{}) {
		return nil, nil
	}
	return t.Tracer.MarshalSpan(s)
}

// ContextWithSpan implements interceptor.Tracer.
func (t temporalTracer) ContextWithSpan(ctx context.Context, s interceptor.TracerSpan) context.Context {
	if s == (untraced{}) {
		return ctx
	}
	return t.Tracer.ContextWithSpan(ctx, s)
}

// GetLogger implements interceptor.Tracer. It adds nothing, because log lines already contain the run id.
func (temporalTracer) GetLogger(l log.Logger, _ interceptor.TracerSpanRef) log.Logger { return l }

// StartSpan implements interceptor.Tracer.
func (t temporalTracer) StartSpan(o *interceptor.TracerStartSpanOptions) (interceptor.TracerSpan, error) {
	parent := t.contextOf(o.Parent)
	switch o.Operation {
	case "RunWorkflow":
		return t.startWorkflow(parent, o), nil
	case "RunActivity":
		// The activity Record gets no span: what it stores has spans of its own.
		if trace.SpanContextFromContext(parent).IsSampled() && o.Name != "Record" {
			return t.startActivity(o)
		}
	}
	return t.spanIn(parent), nil // only pass the context on
}

// startWorkflow returns the context of a run's span. An operation has no trace: each run that it starts has a trace of
// its own.
func (t temporalTracer) startWorkflow(parent context.Context, o *interceptor.TracerStartSpanOptions) interceptor.TracerSpan {
	switch o.Name {
	case inventory.TypeGenesis, inventory.TypeMigrate, inventory.TypeRecover, inventory.TypeTogether:
		return untraced{}
	}
	run := o.Tags[string(keyTemporalRun)]
	from := trace.SpanContextFromContext(parent)
	if !from.IsValid() {
		return t.spanIn(trace.ContextWithSpanContext(context.Background(), runContext(traceOf(run), run)))
	}
	members := map[string]string{bagParent: from.SpanID().String()}
	for _, m := range baggage.FromContext(parent).Members() {
		if strings.HasPrefix(m.Key(), "ingot.") && m.Key() != bagParent {
			members[m.Key()] = m.Value()
		}
	}
	return t.spanIn(trace.ContextWithSpanContext(withBaggage(context.Background(), members), from.WithSpanID(spanOf(run))))
}

func (t temporalTracer) startActivity(o *interceptor.TracerStartSpanOptions) (interceptor.TracerSpan, error) {
	s, err := t.Tracer.StartSpan(o)
	if err != nil {
		return nil, err
	}
	keys := ownerKeys(inventory.Owner{Run: o.Tags[string(keyTemporalRun)], Machine: machineOf(o.Tags[string(keyWorkflow)])}, 0)
	trace.SpanFromContext(t.contextOf(s)).SetAttributes(keys...)
	return s, nil
}

// machineOf returns NAME from a workflow id machine/NAME or bmc/NAME/JOB.
func machineOf(id string) string {
	_, rest, _ := strings.Cut(id, "/")
	name, _, _ := strings.Cut(rest, "/")
	return name
}
