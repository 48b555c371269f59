package inventory

import "time"

// A Trace identifies the OpenTelemetry trace of a run. The record of the run contains it, so that after a restart the server can
// still make every span of the run.
type Trace struct {
	ID string `json:"id"` // 32 hexadecimal digits
	// Parent is the parent span of the run, 16 hexadecimal digits; "" = the run is the root span.
	Parent string `json:"parent,omitempty"`
	// Request is the API request that started the run, with Parent as its span; nil = no API request started the run.
	Request *TraceRequest `json:"request,omitempty"`
}

// TraceRequest is the request that started a run.
type TraceRequest struct {
	Method   string    `json:"method"`
	Route    string    `json:"route"` // contains the names of parameters, not their values
	Received time.Time `json:"received"`
	// Caller is the span of the client that made the request; "": the client sent none.
	Caller string `json:"caller,omitempty"`
}

// TracedKinds returns the kinds of events that are spans of a run's trace.
func TracedKinds() []string {
	return []string{
		EventPhase, EventDHCP, EventOS, EventDisk, EventRebooted, EventLoader, EventScript, EventKernel, EventInitrd,
		EventMetadata, EventDocument, EventHello, EventActionDone, EventPhoneHome, EventPayload, EventInstalled,
		EventInstallFailed, EventClaimConflict, EventAgentLost, EventBootLost,
	}
}

// A TracedEvent is an event of a run, with the data for its span.
type TracedEvent struct {
	Event
	// Phase is the last EventPhase of the run before this event: it began the phase in which this event happened. The zero
	// event if there is none.
	Phase Event
	// Since is when the agent fetched the action whose end this event reports; zero for other events.
	Since time.Time
}

// A Transfer is the detail of events about files that were sent to a machine: how long sending took.
type Transfer struct {
	Seconds float64 `json:"seconds"`
}
