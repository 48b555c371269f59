// Package fakecollector is an OpenTelemetry collector in a test: it takes spans by OTLP over HTTP, and keeps them.
package fakecollector

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A Span is a received span.
type Span struct {
	Trace, ID, Parent string // hexadecimal; Parent "": none
	Name              string
	Keys              map[string]string // attributes, and those of the resource
	Kind              tracepb.Span_SpanKind
	Failed            bool
	Began, Ended      uint64 // nanoseconds since 1970
	Times             int    // how often it was received
}

// A Collector is a http.Handler. The zero value is ready to use.
type Collector struct {
	// Answer, if set, returns the status of the answer to a request; spans are kept only if it is 200.
	Answer func(r *http.Request) int
	// Rejects is how many spans of each request it says that it has left out.
	Rejects int64

	mu      sync.Mutex
	spans   []Span
	text    bytes.Buffer
	bad     []error
	changed chan struct{} // closed with the next request
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status := http.StatusOK
	if c.Answer != nil {
		status = c.Answer(r)
	}
	if status == http.StatusOK {
		c.take(r)
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.WriteHeader(status)
	if c.Rejects > 0 {
		answer, err := proto.Marshal(&collector.ExportTraceServiceResponse{
			PartialSuccess: &collector.ExportTracePartialSuccess{RejectedSpans: c.Rejects},
		})
		if err == nil {
			_, err = w.Write(answer)
		}
		if err != nil {
			panic(err)
		}
	}
}

func (c *Collector) take(r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.read(r); err != nil {
		c.bad = append(c.bad, err)
	}
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

func (c *Collector) read(r *http.Request) error {
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-protobuf" {
		return fmt.Errorf("%s of %q", r.Method, r.Header.Get("Content-Type"))
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			return err
		}
		body = z
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var q collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(text, &q); err != nil {
		return err
	}
	c.text.Write(text)
	for _, about := range q.GetResourceSpans() {
		for _, scope := range about.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				if err := c.keep(s, about.GetResource().GetAttributes()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// keep stores a span. The same span may come again.
func (c *Collector) keep(s *tracepb.Span, about []*commonpb.KeyValue) error {
	span := Span{
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Name: s.GetName(), Keys: map[string]string{}, Kind: s.GetKind(), Failed: s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR,
		Began: s.GetStartTimeUnixNano(), Ended: s.GetEndTimeUnixNano(), Times: 1,
	}
	for _, a := range slices.Concat(about, s.GetAttributes()) {
		switch v := a.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			span.Keys[a.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			span.Keys[a.GetKey()] = fmt.Sprint(v.IntValue)
		default:
			return fmt.Errorf("span %q: attribute %q has an unexpected value %v", span.Name, a.GetKey(), v)
		}
	}
	i := slices.IndexFunc(c.spans, func(o Span) bool { return o.Trace == span.Trace && o.ID == span.ID })
	if i < 0 {
		c.spans = append(c.spans, span)
		return nil
	}
	old := &c.spans[i]
	if old.Name != span.Name || old.Parent != span.Parent || old.Began != span.Began || old.Ended != span.Ended {
		return fmt.Errorf("span %s came again and is another one: %+v, then %+v", span.ID, *old, span)
	}
	old.Times++
	return nil
}

// Spans returns the spans of a trace in the order in which they came.
func (c *Collector) Spans(trace string) ([]Span, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Span
	for _, s := range c.spans {
		if s.Trace == trace {
			out = append(out, s)
		}
	}
	return out, errors.Join(c.bad...)
}

// Text returns all requests that were taken, decompressed.
func (c *Collector) Text() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.text.Bytes())
}

// Await returns the spans of a trace as soon as they are what is wanted.
func (c *Collector) Await(ctx context.Context, trace string, wanted func([]Span) bool) ([]Span, error) {
	for {
		c.mu.Lock()
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		spans, err := c.Spans(trace)
		if err != nil || wanted(spans) {
			return spans, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return spans, fmt.Errorf("awaiting spans of trace %s, which has %d: %w", trace, len(spans), ctx.Err())
		}
	}
}

// Root returns the root of a trace, and an error if a span is not its descendant. caller is the span outside of the
// trace that is the root's parent; "": none.
func Root(spans []Span, caller string) (Span, error) {
	byID := map[string]Span{}
	for _, s := range spans {
		byID[s.ID] = s
	}
	var roots []Span
	var errs []error
	for _, s := range spans {
		if s.Parent == caller {
			roots = append(roots, s)
			continue
		}
		if _, ok := byID[s.Parent]; !ok {
			errs = append(errs, fmt.Errorf("span %q (%s): its parent %s is missing", s.Name, s.ID, s.Parent))
		}
		if s.Began > s.Ended {
			errs = append(errs, fmt.Errorf("span %q (%s) ends before it begins", s.Name, s.ID))
		}
	}
	if len(roots) != 1 {
		return Span{}, errors.Join(append(errs, fmt.Errorf("%d roots: %+v", len(roots), roots))...)
	}
	return roots[0], errors.Join(errs...)
}
