package inventory

import "time"

// A Trace says to which OpenTelemetry trace a run belongs. It is stored with the record of the run, so that every
// span of the run can be made again after a restart.
type Trace struct {
	ID string `json:"id"` // 32 hexadecimal digits
	// Parent is the span that the run is a part of, 16 hexadecimal digits; "": the run is the root.
	Parent string `json:"parent,omitempty"`
	// Request is the request that started the run; its span is Parent. nil: no request to the API did.
	Request *TraceRequest `json:"request,omitempty"`
}

// TraceRequest is the request that started a run.
type TraceRequest struct {
	Method   string    `json:"method"`
	Route    string    `json:"route"` // with names of parameters, not with their values
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

// A TracedEvent is an event of a run with what its span needs.
type TracedEvent struct {
	Event
	// Phase is the event with which the phase of the run began that e belongs to, or that e ends; the zero
	// event if there is none.
	Phase Event
	// Since is when the action was handed out that e ends; zero for other events.
	Since time.Time
}

// A Transfer is the detail of events about files that were sent to a machine.
type Transfer struct {
	Seconds float64 `json:"seconds"`
}
