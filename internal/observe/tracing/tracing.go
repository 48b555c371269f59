// Package tracing sends one trace of each run to an OpenTelemetry collector.
//
// A trace has two kinds of spans. Most are created from the inventory: from the record of the run and its events
// (records.go). Such a span is sent only after its record is stored, and again until the collector has accepted it;
// after a restart of the server it has the same id as before. The inventory does not store activities, BMC operations
// and deliveries of images, so their spans are created while they happen (live.go) and wait in memory. Their parents
// are spans of the first kind, which are always sent. So a server that is killed loses some spans, but no span is ever
// without its parent.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/inventory"
)

// Store is the part of the inventory from which traces are created.
type Store interface {
	Workflow(ctx context.Context, run string) (inventory.Workflow, error)
	TracedEvents(ctx context.Context, after int64) (events []inventory.TracedEvent, last int64, err error)
	// TracesSent returns the number of the event up to which spans were sent.
	TracesSent(ctx context.Context) (int64, error)
	SetTracesSent(ctx context.Context, seq int64) error
	Subscribe() (ch <-chan struct{}, cancel func())
}

// Config configures a Tracing. Endpoint, Store and Log are required.
type Config struct {
	// Endpoint is the URL to which spans are sent, OTLP over HTTP.
	Endpoint string
	// HeadersFile is the path of a file with the headers of each request, in lines "Name: value"; "" for none. The file
	// is read for each request, so that a token can be replaced.
	HeadersFile string
	// CAFile holds the PEM certificates of the authorities for the collector's certificate. If it is "", the system's
	// authorities apply.
	CAFile  string
	Server  string // name of this server
	Version string
	Store   Store
	Log     *slog.Logger
}

const (
	passEvery    = time.Second // interval between checks for new spans
	longestPause = 30 * time.Second
	lastPass     = 3 * time.Second // time limit for sending the remaining spans when the server stops
)

// A Tracing creates spans and sends them. New returns one.
type Tracing struct {
	cfg      Config
	exporter *otlptrace.Exporter

	live       trace.Tracer // creates the spans that are not created from the inventory
	queue      *queue
	deliveries chan bootsvc.Delivery // deliveries of images, whose traces are looked up later

	stored trace.Tracer // creates spans from records in the inventory
	made   *made        // spans that the tracer stored has created and that are not sent yet
	sent   int64        // number of the event up to which spans were sent

	exported, refused, full atomic.Int64
}

// Counts holds how many spans were sent and dropped since the start.
type Counts struct {
	Exported int64
	Refused  int64 // dropped because the collector refused them
	Full     int64 // dropped because too many waited
}

// Counts returns the counters.
func (t *Tracing) Counts() Counts {
	return Counts{t.exported.Load(), t.refused.Load(), t.full.Load()}
}

// New returns a Tracing. It sends nothing before Run.
func New(ctx context.Context, c Config) (*Tracing, error) {
	client, err := newUploader(c.Endpoint, c.HeadersFile, c.CAFile)
	if err != nil {
		return nil, err
	}
	t := &Tracing{
		cfg: c, exporter: otlptrace.NewUnstarted(client), made: &made{}, deliveries: make(chan bootsvc.Delivery, maxDeliveries),
	}
	t.queue = &queue{dropped: &t.full, open: map[trace.SpanID][]sdktrace.ReadOnlySpan{}}
	if t.sent, err = c.Store.TracesSent(ctx); err != nil {
		return nil, err
	}

	about := resource.NewSchemaless(
		semconv.ServiceName("ingot"), semconv.ServiceVersion(c.Version), semconv.ServiceInstanceID(c.Server),
	)
	provider := func(p sdktrace.SpanProcessor) trace.Tracer {
		return sdktrace.NewTracerProvider(
			sdktrace.WithResource(about), sdktrace.WithIDGenerator(ids{}), sdktrace.WithSpanProcessor(p),
			sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())), sdktrace.WithRawSpanLimits(limits),
		).Tracer("github.com/ingotmetal/ingot")
	}
	t.live, t.stored = provider(t.queue), provider(t.made)
	return t, nil
}

// limits holds the maximum sizes of the parts of one span.
var limits = sdktrace.SpanLimits{
	AttributeValueLengthLimit: 1024, AttributeCountLimit: 64, EventCountLimit: 16, LinkCountLimit: 4,
	AttributePerEventCountLimit: 16, AttributePerLinkCountLimit: 4,
}

// Run sends spans until ctx ends, and then sends the remaining spans.
func (t *Tracing) Run(ctx context.Context) error {
	changed, cancel := t.cfg.Store.Subscribe()
	defer cancel()
	stored := true // true = the inventory may have new events
	pause := passEvery
	for {
		if stored || t.waiting() {
			err := t.pass(ctx)
			switch {
			case ctx.Err() != nil: // the last pass is below
			case err == nil && pause > passEvery:
				t.cfg.Log.Info("sending traces works again")
				pause = passEvery
			case err == nil:
				stored = false
			case err != nil && pause == passEvery:
				t.cfg.Log.Warn("cannot send traces; they wait", "error", err)
				pause *= 2
			default:
				pause = min(2*pause, longestPause)
			}
		}

		select {
		case <-time.After(pause):
		case <-ctx.Done():
			last, stop := context.WithTimeout(context.WithoutCancel(ctx), lastPass)
			defer stop()
			if err := t.pass(last); err != nil {
				t.cfg.Log.Warn("sending the last traces", "error", err)
			}
			return nil
		}
		select {
		case <-changed:
			stored = true
		default:
		}
	}
}

// waiting reports whether spans or deliveries wait in memory.
func (t *Tracing) waiting() bool { return t.queue.len() > 0 || len(t.deliveries) > 0 }

// pass sends all spans that are ready.
func (t *Tracing) pass(ctx context.Context) error {
	// Send the stored spans first: they are the parents of the others.
	if err := t.sendStored(ctx); err != nil {
		return err
	}
	if err := t.takeDeliveries(ctx); err != nil {
		return err
	}
	return t.sendLive(ctx)
}

// export sends spans. Spans that the collector refuses permanently are only counted; they cause no error.
func (t *Tracing) export(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if len(spans) == 0 {
		return nil
	}
	err := t.exporter.ExportSpans(ctx, spans)
	var refused refusedError
	switch {
	case errors.As(err, &refused):
		all := int64(len(spans))
		dropped := min(cmp.Or(refused.spans, all), all)
		t.refused.Add(dropped)
		t.exported.Add(all - dropped)
		t.cfg.Log.Warn("the collector refused spans, which were dropped", "spans", dropped, "of", all, "error", err)
		return nil
	case err != nil:
		return err
	}
	t.exported.Add(int64(len(spans)))
	return nil
}
