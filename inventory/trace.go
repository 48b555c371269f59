package inventory

import "time"

// A Trace identifies the OpenTelemetry trace of a run. It is part of the run's record, so that the server can still make every span of the
// run after a restart.
type Trace struct {
	ID string `json:"id"` // 32 hexadecimal digits
	// Parent is the parent of the run's span, 16 hexadecimal digits; "" = the run's span is the root of the trace.
	Parent string `json:"parent,omitempty"`
	// Request is the API request that started the run; the request's span is Parent. nil = no API request started the run.
	Request *TraceRequest `json:"request,omitempty"`
}

// TraceRequest is the API request that started a run.
type TraceRequest struct {
	Method   string    `json:"method"`
	Route    string    `json:"route"` // with the names of path parameters in place of their values
	Received time.Time `json:"received"`
	// Caller is the span that the client's request names as its parent; "" = the request names none.
	Caller string `json:"caller,omitempty"`
}

// TracedKinds returns the kinds of events that become spans of a run's trace.
func TracedKinds() []string {
	return []string{
		EventPhase, EventDHCP, EventOS, EventDisk, EventRebooted, EventLoader, EventScript, EventKernel, EventInitrd,
		EventMetadata, EventDocument, EventHello, EventActionDone, EventPhoneHome, EventPayload, EventInstalled,
		EventInstallFailed, EventClaimConflict, EventAgentLost, EventBootLost,
	}
}

// A TracedEvent is an event of a run, with the data that its span needs.
type TracedEvent struct {
	Event
	// Phase is the last EventPhase of the run before this event: it says in which phase this event happened. It is the zero event if there is
	// none.
	Phase Event
	// Since is set only if this event reports the end of an action: it is when the agent fetched the action.
	Since time.Time
}

// A Transfer is the detail of an event about a file that was sent to a machine. It says how long sending the file took.
type Transfer struct {
	Seconds float64 `json:"seconds"`
}
