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

// digest returns the digest of a list of texts.
func digest(parts ...string) [sha256.Size]byte {
	return sha256.Sum256([]byte(strings.Join(parts, "\x00")))
}

// traceOf returns the trace of a run that no request with a trace has started.
func traceOf(run string) trace.TraceID {
	sum := digest("trace", run)
	return trace.TraceID(sum[:16])
}

// spanOf returns the id of the span of a run.
func spanOf(run string) trace.SpanID {
	sum := digest("run", run)
	return trace.SpanID(sum[:8])
}

// spanOfEvent returns the id of the span that is made of an event. It depends on what makes an event unique, and not
// on its number: a database that was restored from a backup gives that again.
func spanOfEvent(e inventory.Event) trace.SpanID {
	sum := digest("event", e.Run, strconv.FormatInt(e.Epoch, 10), strconv.Itoa(e.Boot), e.Kind, e.Key)
	return trace.SpanID(sum[:8])
}

// newIDs returns random ids.
func newIDs() (t trace.TraceID, s trace.SpanID) {
	_, _ = rand.Read(t[:]) // never returns an error: it ends the program instead
	_, _ = rand.Read(s[:])
	return t, s
}

// runContext returns the context of the span of a run, which is sampled.
func runContext(id trace.TraceID, run string) trace.SpanContext { return remote(id, spanOf(run)) }

// remote returns the context of a sampled span that another process, or this one at another time, has made.
func remote(t trace.TraceID, s trace.SpanID) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: t, SpanID: s, TraceFlags: trace.FlagsSampled, Remote: true})
}

// wantedKey is the key of a wanted in a context.
type wantedKey struct{}

// wanted are the ids that the next span gets.
type wanted struct {
	trace trace.TraceID
	span  trace.SpanID
}

// ids gives spans the ids that the context wants, and others random ones.
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
