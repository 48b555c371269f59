package tracing

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/ingotmetal/ingot/bmc"
	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	maxWaiting    = 4096 // spans that wait for the collector
	maxChildren   = 256  // ended children that wait for one open span
	maxAtOnce     = 512  // spans in one request
	maxDeliveries = 256
)

// queue is a span processor that keeps spans which are not created from the inventory, until they are sent. A span
// whose parent is still open in this process waits and is sent after its parent: if the server is killed before the
// parent ends, neither is sent.
type queue struct {
	dropped *atomic.Int64

	mu      sync.Mutex
	open    map[trace.SpanID][]sdktrace.ReadOnlySpan // children that have ended, by their open parent
	waiting []sdktrace.ReadOnlySpan
}

// OnStart implements sdktrace.SpanProcessor.
func (q *queue) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.open[s.Parent().SpanID()]; !ok {
		q.open[s.SpanContext().SpanID()] = nil
	}
}

// OnEnd implements sdktrace.SpanProcessor.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id, parent := s.SpanContext().SpanID(), s.Parent().SpanID()
	if children, ok := q.open[parent]; ok {
		if len(children) < maxChildren {
			q.open[parent] = append(children, s)
		} else {
			q.dropped.Add(1)
		}
		return
	}
	all := append([]sdktrace.ReadOnlySpan{s}, q.open[id]...)
	delete(q.open, id)
	// Queue the whole group or nothing, so that no child is sent without its parent.
	if len(q.waiting)+len(all) > maxWaiting {
		q.dropped.Add(int64(len(all)))
		return
	}
	q.waiting = append(q.waiting, all...)
}

// ForceFlush implements sdktrace.SpanProcessor.
func (*queue) ForceFlush(context.Context) error { return nil }

// Shutdown implements sdktrace.SpanProcessor.
func (*queue) Shutdown(context.Context) error { return nil }

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// first returns the spans for the next request. They stay in the queue until remove is called.
func (q *queue) first() []sdktrace.ReadOnlySpan {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting[:min(len(q.waiting), maxAtOnce)]
}

// remove removes the first n spans.
func (q *queue) remove(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append([]sdktrace.ReadOnlySpan(nil), q.waiting[n:]...)
}

// sendLive sends the spans in the queue.
func (t *Tracing) sendLive(ctx context.Context) error {
	for {
		spans := t.queue.first()
		if len(spans) == 0 {
			return nil
		}
		if err := t.export(ctx, spans); err != nil {
			return err
		}
		t.queue.remove(len(spans))
	}
}

// BMC creates the span of a BMC operation that has ended, if ctx belongs to a traced activity.
func (t *Tracing) BMC(ctx context.Context, o bmc.Operation) {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return
	}
	end := time.Now()
	_, s := t.live.Start(ctx, "bmc "+o.Name, trace.WithTimestamp(end.Add(-o.Took)), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("ingot.bmc.driver", o.Driver), attribute.String("ingot.bmc.operation", o.Name)))
	if o.Machine != "" {
		s.SetAttributes(keyMachine.String(o.Machine))
	}
	if o.Address != "" {
		s.SetAttributes(semconv.ServerAddress(o.Address))
	}
	if o.Outcome != bmc.OutcomeOK {
		// Leave out the text of the error, which comes from the BMC.
		s.SetStatus(codes.Error, o.Outcome)
		s.SetAttributes(semconv.ErrorTypeKey.String(o.Outcome))
	}
	s.End(trace.WithTimestamp(end))
}

// Delivered queues a delivery of an image for takeDeliveries. It never waits: if too many are queued, the delivery
// is counted as dropped.
func (t *Tracing) Delivered(d bootsvc.Delivery) {
	select {
	case t.deliveries <- d:
	default:
		t.full.Add(1)
	}
}

// takeDeliveries creates the spans of the queued deliveries, except deliveries that belong to a run without a trace.
func (t *Tracing) takeDeliveries(ctx context.Context) error {
	for range len(t.deliveries) {
		d := <-t.deliveries
		w, err := t.cfg.Store.Workflow(ctx, d.Owner.Run)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			t.full.Add(1)
			return err
		}
		if r, ok := rootOf(w); ok {
			t.deliver(d, r)
		}
	}
	return nil
}

func (t *Tracing) deliver(d bootsvc.Delivery, r root) {
	ctx := trace.ContextWithSpanContext(context.Background(), r.run)
	_, s := t.live.Start(ctx, d.Method+" /images/{image}", trace.WithTimestamp(d.Began), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(ownerKeys(d.Owner, d.Boot)...),
		trace.WithAttributes(
			semconv.HTTPRequestMethodKey.String(d.Method), semconv.HTTPRoute("/images/{image}"), semconv.HTTPResponseStatusCode(d.Status),
			semconv.HTTPResponseBodySize(int(d.Bytes)), semconv.ClientAddress(d.Client.String()), attribute.String("ingot.image", d.Image),
		))
	s.End(trace.WithTimestamp(d.Ended))
}
