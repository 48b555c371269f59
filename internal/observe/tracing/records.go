package tracing

import (
	"context"
	"encoding/json"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/ingotmetal/ingot/inventory"
)

// made is a span processor that collects the spans that are created from records in the inventory.
type made struct{ spans []sdktrace.ReadOnlySpan }

// OnStart implements sdktrace.SpanProcessor.
func (*made) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (m *made) OnEnd(s sdktrace.ReadOnlySpan) { m.spans = append(m.spans, s) }

// ForceFlush implements sdktrace.SpanProcessor.
func (*made) ForceFlush(context.Context) error { return nil }

// Shutdown implements sdktrace.SpanProcessor.
func (*made) Shutdown(context.Context) error { return nil }

// root holds the spans at the beginning of a run's trace.
type root struct {
	run    trace.SpanContext // span of the run
	parent trace.SpanContext // span of the request that started the run; invalid if there was none
	caller trace.SpanContext // span of the client that sent the request; invalid if it sent none
}

// rootOf returns the beginning of the trace of w, or false if w has no trace.
func rootOf(w inventory.Workflow) (r root, ok bool) {
	if w.Trace == nil {
		return r, false
	}
	id, err := trace.TraceIDFromHex(w.Trace.ID)
	if err != nil {
		return r, false
	}
	r.run = runContext(id, w.Run)
	if parent, err := trace.SpanIDFromHex(w.Trace.Parent); err == nil {
		r.parent = remote(id, parent)
	}
	if w.Trace.Request == nil {
		return r, true
	}
	if caller, err := trace.SpanIDFromHex(w.Trace.Request.Caller); err == nil {
		r.caller = remote(id, caller)
	}
	return r, true
}

// sendStored sends the spans of the events since the last call. It sends them again until the collector has
// accepted or refused them.
func (t *Tracing) sendStored(ctx context.Context) error {
	for {
		events, last, err := t.cfg.Store.TracedEvents(ctx, t.sent)
		if err != nil || last == t.sent {
			return err
		}
		t.made.spans = nil
		runs := map[string]inventory.Workflow{}
		for _, e := range events {
			w, ok := runs[e.Run]
			if !ok {
				if w, err = t.cfg.Store.Workflow(ctx, e.Run); err != nil && !errors.Is(err, inventory.ErrNotFound) {
					return err
				}
				runs[e.Run] = w // a run without a record has no trace
			}
			if r, ok := rootOf(w); ok {
				t.makeSpans(r, w, e)
			}
		}
		if err := t.export(ctx, t.made.spans); err != nil {
			return err
		}
		if err := t.cfg.Store.SetTracesSent(ctx, last); err != nil {
			return err
		}
		t.sent = last
	}
}

func (t *Tracing) make(of trace.TraceID, s stored) {
	ctx := context.WithValue(context.Background(), wantedKey{}, wanted{of, s.id})
	if s.parent.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, s.parent)
	}
	if s.began.After(s.ended) {
		s.began = s.ended // the clock was set back
	}
	_, span := t.stored.Start(ctx, s.name, trace.WithTimestamp(s.began), trace.WithSpanKind(s.kind), trace.WithAttributes(s.keys...))
	if s.failed != "" {
		span.SetStatus(codes.Error, s.failed)
	}
	span.End(trace.WithTimestamp(s.ended))
}

// makeSpans creates the spans that end with the event e.
func (t *Tracing) makeSpans(r root, w inventory.Workflow, e inventory.TracedEvent) {
	phase := phaseOf(e.Phase)
	if e.Kind == inventory.EventPhase {
		t.makePhase(r, w, e, phase)
		return
	}
	s, ok := spanOfKind(w, e)
	if !ok {
		return
	}
	s.id, s.parent = spanOfEvent(e.Event), r.run
	if phase != "" && !isLastPhase(phase) { // the last phase has no span, because the run ends with it
		s.parent = remote(r.run.TraceID(), spanOfEvent(e.Phase))
		s.keys = append(s.keys, keyPhase.String(phase))
	}
	s.keys = append(s.keys, ownerKeys(ownerOf(e.Event), e.Boot)...)
	t.make(r.run.TraceID(), s)
}

// makePhase creates the span of the phase that ends with e. If e begins the first phase, it creates the span of the
// request that started the run instead. If e begins the last phase, it also creates the span of the run.
func (t *Tracing) makePhase(r root, w inventory.Workflow, e inventory.TracedEvent, phase string) {
	id := r.run.TraceID()
	switch {
	case phase != "" && !isLastPhase(phase):
		t.make(id, stored{
			id: spanOfEvent(e.Phase), parent: r.run, name: phase, kind: trace.SpanKindInternal, began: e.Phase.At, ended: e.At,
			keys: append(ownerKeys(ownerOf(e.Phase), 0), keyPhase.String(phase)),
		})
	case phase == "" && w.Trace.Request != nil:
		q := w.Trace.Request
		t.make(id, stored{
			id: r.parent.SpanID(), parent: r.caller, name: q.Method + " " + q.Route, kind: trace.SpanKindServer,
			began: q.Received, ended: w.Started,
			keys: append(ownerKeys(inventory.Owner{Machine: w.Machine, Run: w.Run}, 0),
				semconv.HTTPRequestMethodKey.String(q.Method), semconv.HTTPRoute(q.Route)),
		})
	}
	if !isLastPhase(phaseOf(e.Event)) {
		return
	}
	s := stored{
		id: r.run.SpanID(), parent: r.parent, name: "RunWorkflow:" + w.Type, kind: trace.SpanKindServer, began: w.Started, ended: e.At,
		keys: append(ownerKeys(ownerOf(e.Event), 0), keyWorkflow.String(w.ID), keyTemporalRun.String(w.Run),
			attribute.String("ingot.state", w.State)),
	}
	for key, value := range map[string]string{"ingot.template": w.Template, "ingot.image": w.Image, "ingot.evidence": w.Evidence} {
		if value != "" {
			s.keys = append(s.keys, attribute.String(key, value))
		}
	}
	if w.State != inventory.StateSuccess {
		s.failed = w.State // without the message, which may quote text from a machine
	}
	t.make(id, s)
}

// ownerOf returns the run to which e belongs, as an Owner.
func ownerOf(e inventory.Event) inventory.Owner {
	return inventory.Owner{Machine: e.Machine, Run: e.Run, Epoch: e.Epoch}
}

// phaseOf returns the phase that begins with e, or "" if e is not a change of phase.
func phaseOf(e inventory.Event) string {
	var c inventory.PhaseChange
	if e.Kind != inventory.EventPhase || json.Unmarshal(e.Detail, &c) != nil {
		return ""
	}
	return c.Phase
}

// isLastPhase reports whether a run in this phase has ended.
func isLastPhase(phase string) bool {
	return inventory.PhaseEnd{PhaseChange: inventory.PhaseChange{Phase: phase}}.Ended()
}
