package inventory

import (
	"strings"
	"time"
)

// What is shown of the whole site at one moment, for metrics.

// OpenWork is a run or an operation that has not ended and awaits an operator, or a number of runs that are alike.
type OpenWork struct {
	Count   int
	Type    string
	Machine string // of a run that awaits an operator
	Name    string // of an operation
	Phase   string // of runs
	// About is what an operator is asked about: AboutOf the question, AboutStep or AboutButton;
	// "": no operator is awaited. Since is since when.
	About string
	Since time.Time
}

// What an operator is asked about, where a question's id names no phase.
const (
	AboutButton = "button" // nothing but to press the machine's power button
	AboutAction = "action" // an action failed
	AboutStep   = "step"   // of an operation
	AboutStop   = "stop"   // a silent agent may still be writing, and the machine could not be switched off
	// AboutManualOff: a machine without a BMC did not report that it switches itself off.
	AboutManualOff = "manual-off"
)

// AboutOf returns what the question with that id is about. Ids of runs are epoch.subject.n (power, off, bind, …),
// epoch.action.attempt, epoch.action.attempt.stop and epoch.action.attempt.off.
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

	HeldByRun      = "run"      // that is open
	HeldByOperator = "operator" // an operator, for rescue
	HeldByNone     = "none"     // a run that has ended: the reconcile loop closes such a window within seconds
)

// OpenWindow is an open window of a machine, or a number of windows that open runs own.
type OpenWindow struct {
	Count   int
	Machine string    // "" = of open runs
	Window  string    // WindowNetboot or WindowSecrets
	Holder  string    // HeldByRun …
	Until   time.Time // the last of them
}

// PhaseEnd is the change of a run's phase.
type PhaseEnd struct {
	PhaseChange
	Type    string    // of the run
	Class   string    // the machine's label LabelClass
	Started time.Time // the run
}

// LabelClass is the label of a machine that names its class of hardware. Durations are shown for each class.
const LabelClass = "class"

// Ended reports whether the run has ended with this change.
func (p PhaseEnd) Ended() bool {
	return p.Phase == PhaseDone || p.Phase == PhaseFailed || p.Phase == PhaseCancelled
}
