package inventory

import (
	"strings"
	"time"
)

// The types below describe the whole site at one moment, for metrics.

// OpenWork is an operation that has not ended, a run that has not ended, or a number of such runs with the same type and phase.
type OpenWork struct {
	Count   int
	Type    string
	Machine string // machine of a run that waits for an operator; "" for several runs
	Name    string // name of the operation; "" for runs
	Phase   string // phase of the runs; "" for an operation
	// About says why an operator is needed: it is a result of AboutOf, AboutStep or AboutButton; "" = the work does not wait for an operator.
	// Since is when the wait began.
	About string
	Since time.Time
}

// Values of OpenWork.About for questions whose id does not contain the subject, and for waits without a question.
const (
	AboutButton = "button" // there is no question: the operator only has to press the machine's power button
	AboutAction = "action" // an action failed
	AboutStep   = "step"   // a step of an operation
	AboutStop   = "stop"   // a silent agent may still be writing, because the machine could not be switched off
	// AboutManualOff: a machine without a BMC has to switch itself off, but did not report that it does so.
	AboutManualOff = "manual-off"
)

// AboutOf returns the subject of the run's question with that id. The id has one of the forms epoch.subject.n (subjects are power, off,
// bind …), epoch.action.attempt, epoch.action.attempt.stop and epoch.action.attempt.off.
func AboutOf(id string) string {
	parts := strings.Split(id, ".")
	if len(parts) >= 2 && strings.Trim(parts[1], "0123456789") != "" {
		return parts[1]
	}

	switch {
	case len(parts) == 4 && parts[3] == "stop":
		return AboutStop
	case len(parts) == 4 && parts[3] == "off":
		return AboutManualOff
	}
	return AboutAction
}

// Kinds of windows of a grant (see Grant), and kinds of holders of the grant.
const (
	WindowNetboot = "netboot"
	WindowSecrets = "secrets"

	HeldByRun      = "run"      // an open run
	HeldByOperator = "operator" // an operator, for rescue
	HeldByNone     = "none"     // a run that has ended; the reconcile loop closes the window within seconds
)

// OpenWindow is a window of a machine's grant that is open, or the number of open windows of one kind that runs hold.
type OpenWindow struct {
	Count   int
	Machine string    // "" = the windows of all open runs
	Window  string    // WindowNetboot or WindowSecrets
	Holder  string    // HeldByRun …
	Until   time.Time // when the window closes; for several windows, when the last one closes
}

// PhaseEnd is the change of a run from one phase to the next.
type PhaseEnd struct {
	PhaseChange
	Type    string    // type of the run
	Class   string    // the machine's label LabelClass
	Started time.Time // when the run started
}

// PhaseTime is how long a phase takes.
type PhaseTime struct {
	Phase   string  `json:"phase"`
	Seconds float64 `json:"seconds"` // the median
	Count   int     `json:"count"`   // how many times the phase ended
}

// LabelClass is the label that names a machine's class of hardware. Durations are shown for each class.
const LabelClass = "class"

// Ended reports whether the run has ended with this change.
func (p PhaseEnd) Ended() bool {
	return p.Phase == PhaseDone || p.Phase == PhaseFailed || p.Phase == PhaseCancelled
}
