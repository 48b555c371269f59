package tracing

import (
	"encoding/json"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// A request describes a machine's request that an event records. Its route contains names of parameters instead of
// values, because some values are secret.
type request struct {
	method, route string
	tftp          string // name of the span if the file was fetched by TFTP
	failed        bool
}

// requestOf returns the request that events of this kind record, or false if they record none.
func requestOf(kind string) (request, bool) {
	const run = "/c/{machine}/{capability}"
	q, ok := map[string]request{
		inventory.EventScript:        {method: "GET", route: "/ipxe/script/{mac}/auto.ipxe", tftp: "TFTP autoexec.ipxe"},
		inventory.EventLoader:        {method: "GET", route: "/ipxe/binary/{mac}/{loader}", tftp: "TFTP {loader}"},
		inventory.EventKernel:        {method: "GET", route: "/boot/{mac}/{token}/{kernel}", tftp: "TFTP {kernel}"},
		inventory.EventInitrd:        {method: "GET", route: "/boot/{mac}/{token}/{initrd}", tftp: "TFTP {initrd}"},
		inventory.EventPayload:       {method: "GET", route: "/boot/{mac}/{token}/{payload}"},
		inventory.EventMetadata:      {method: "GET", route: "/{metadata}"},
		inventory.EventDocument:      {method: "GET", route: run + "/documents/{document}"},
		inventory.EventHello:         {method: "POST", route: "/agent/v1/claim"},
		inventory.EventClaimConflict: {method: "POST", route: "/agent/v1/claim", failed: true},
		inventory.EventPhoneHome:     {method: "POST", route: "/phone-home/{machine}/{nonce}"},
		inventory.EventInstalled:     {method: "POST", route: run + "/webhook/{event}"},
		inventory.EventInstallFailed: {method: "POST", route: run + "/webhook/{event}", failed: true},
	}[kind]
	return q, ok
}

// A value of the type stored describes a span that is created from records in the inventory.
type stored struct {
	id           trace.SpanID
	parent       trace.SpanContext // invalid for the root of the trace
	name         string
	kind         trace.SpanKind
	began, ended time.Time
	keys         []attribute.KeyValue
	failed       string // reason of the failure; "" for none
}

// spanOfKind returns the span of an event other than a change of phase, or false if events of this kind have no
// span.
func spanOfKind(w inventory.Workflow, e inventory.TracedEvent) (stored, bool) {
	s := stored{kind: trace.SpanKindServer, began: e.At, ended: e.At, keys: []attribute.KeyValue{attribute.String("ingot.event", e.Kind)}}
	var sent inventory.Transfer
	if len(e.Detail) > 0 && json.Unmarshal(e.Detail, &sent) == nil {
		s.began = e.At.Add(-time.Duration(sent.Seconds * float64(time.Second)))
	}

	switch e.Kind {
	case inventory.EventDHCP, inventory.EventOS, inventory.EventDisk, inventory.EventRebooted:
		s.name = "DHCP"
		s.keys = append(s.keys, semconv.NetworkProtocolName("dhcp"))
		return s, true
	case inventory.EventActionDone:
		return spanOfAction(w, e, s)
	case inventory.EventAgentLost, inventory.EventBootLost:
		s.name, s.kind, s.failed = strings.ReplaceAll(e.Kind, "-", " "), trace.SpanKindInternal, e.Kind
		return s, true
	}

	q, ok := requestOf(e.Kind)
	if !ok {
		return s, false
	}
	if q.failed {
		s.failed = e.Kind
	}
	if q.tftp != "" && strings.HasSuffix(e.Message, " by TFTP") {
		s.name = q.tftp
		s.keys = append(s.keys, semconv.NetworkProtocolName("tftp"))
		return s, true
	}
	s.name = q.method + " " + q.route
	s.keys = append(s.keys, semconv.HTTPRequestMethodKey.String(q.method), semconv.HTTPRoute(q.route))
	return s, true
}

// spanOfAction returns the span of an attempt of an action. Its times are by this server's clock, because the
// machine's clock may be wrong.
func spanOfAction(w inventory.Workflow, e inventory.TracedEvent, s stored) (stored, bool) {
	var r action.Result
	if err := json.Unmarshal(e.Detail, &r); err != nil {
		return s, false
	}
	s.name, s.kind = "action", trace.SpanKindInternal
	s.keys = append(s.keys, attribute.Int("ingot.action.attempt", r.Key.Attempt))
	if i := r.Key.Action; i >= 0 && i < len(w.Actions) {
		s.name = "action " + w.Actions[i].Name
		s.keys = append(s.keys,
			attribute.String("ingot.action.name", w.Actions[i].Name), attribute.String("ingot.action.image", w.Actions[i].Image))
	}
	if !e.Since.IsZero() {
		s.began = e.Since
	}
	if r.State != action.Success {
		s.failed = string(r.State) // without the message, which is text from the machine
	}
	return s, true
}
