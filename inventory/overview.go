package inventory

import (
	"strings"
	"time"
)

// The types below describe the whole site at one moment, for metrics.

// OpenWork is an operation or a run that has not ended, or a number of such runs with the same type and phase.
type OpenWork struct {
	Count   int
	Type    string
	Machine string // of a run that waits for an operator; "" for several runs
	Name    string // name of the operation; "" for runs
	Phase   string // phase of the runs; "" for an operation
	// About is what an operator is asked about: the result of AboutOf, AboutStep or AboutButton; "" = the work does not wait for
	// an operator. Since is when the wait began.
	About string
	Since time.Time
}

// What an operator is asked about if the id of the question contains no phase.
const (
	AboutButton = "button" // no question: the operator only has to press the machine's power button
	AboutAction = "action" // an action failed
	AboutStep   = "step"   // a step of an operation
	AboutStop   = "stop"   // a silent agent may still be writing, and the machine could not be switched off
	// AboutManualOff: a machine without a BMC did not report that it switches itself off.
	AboutManualOff = "manual-off"
)

// AboutOf returns what the run's question with that id is about. The id has one of the forms epoch.subject.n (with power, off, bind …
// as subject), epoch.action.attempt, epoch.action.attempt.stop and epoch.action.attempt.off.
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

// Windows and their holders.
const (
	WindowNetboot = "netboot"
	WindowSecrets = "secrets"

	HeldByRun      = "run"      // an open run
	HeldByOperator = "operator" // an operator, for rescue
	HeldByNone     = "none"     // a run that has ended: the reconcile loop closes such a window within seconds
)

// OpenWindow is an open window of a machine, or the number of windows of one kind that open runs hold.
type OpenWindow struct {
	Count   int
	Machine string    // "" = the windows of all open runs
	Window  string    // WindowNetboot or WindowSecrets
	Holder  string    // HeldByRun …
	Until   time.Time // when the last of them closes
}

// PhaseEnd is the change of a run's phase.
type PhaseEnd struct {
	PhaseChange
	Type    string    // type of the run
	Class   string    // the machine's label LabelClass
	Started time.Time // when the run started
}

// LabelClass is the label of a machine that names its class of hardware. Durations are shown for each class.
const LabelClass = "class"

// Ended reports whether the run has ended with this change.
func (p PhaseEnd) Ended() bool {
	return p.Phase == PhaseDone || p.Phase == PhaseFailed || p.Phase == PhaseCancelled
}
