package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/ingotmetal/ingot/inventory"
)

// digest returns the SHA-256 of a list of texts.
func digest(parts ...string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join(parts, "\x00")))
}

// traceOf returns the trace id of a run that was not started by a request with a trace.
func traceOf(run string) trace.TraceID {
	sum := digest("trace", run)
	return trace.TraceID(sum[:16])
}

// spanOf returns the id of the span of a run.
func spanOf(run string) trace.SpanID {
	sum := digest("run", run)
	return trace.SpanID(sum[:8])
}

// spanOfEvent returns the id of the span that is created from an event. The id depends on what makes the event unique,
// not on the event's number: a database that was restored from a backup assigns the same numbers again.
func spanOfEvent(e inventory.Event) trace.SpanID {
	sum := digest("event", e.Run, strconv.FormatInt(e.Epoch, 10), strconv.Itoa(e.Boot), e.Kind, e.Key)
	return trace.SpanID(sum[:8])
}

// newIDs returns random ids.
func newIDs() (t trace.TraceID, s trace.SpanID) {
	_, _ = rand.Read(t[:]) // never returns an error: it crashes the program instead
	_, _ = rand.Read(s[:])
	return t, s
}

// runContext returns the context of the span of a run. The span is sampled.
func runContext(id trace.TraceID, run string) trace.SpanContext { return remote(id, spanOf(run)) }

// remote returns the context of a sampled span that was created by another process, or earlier by this one.
func remote(t trace.TraceID, s trace.SpanID) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: t, SpanID: s, TraceFlags: trace.FlagsSampled, Remote: true})
}

// wantedKey is the key under which a context holds a value of the type wanted.
type wantedKey struct{}

// wanted holds the ids for the next span that is created with the context.
type wanted struct {
	trace trace.TraceID
	span  trace.SpanID
}

// ids gives a span the ids that the context holds under wantedKey, or random ids if it holds none.
type ids struct{}

// NewIDs implements sdktrace.IDGenerator.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if w, ok := ctx.Value(wantedKey{}).(wanted); ok {
		return w.trace, w.span
	}
	return newIDs()
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if w, ok := ctx.Value(wantedKey{}).(wanted); ok {
		return w.span
	}
	_, s := newIDs()
	return s
}
