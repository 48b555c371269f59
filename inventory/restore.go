package inventory

import (
	"strings"
	"time"
)

// EventHeld is never stored: reconcile informs a run that was open when the
// server was restored from a backup.
const EventHeld = "held"

// A Restore is what a restored site keeps about its backup.
type Restore struct {
	Backup string    `json:"backup"` // its id
	Taken  time.Time `json:"taken"`  // when the backup was made
	At     time.Time `json:"at"`
	// Held are the runs that were open. They are not continued: the machines may have
	// changed since.
	Held []HeldRun `json:"held"`
	// AwaitsCluster: the runs that are open in the Temporal cluster are not in Held yet.
	AwaitsCluster bool `json:"awaitsCluster,omitempty"`
}

// A HeldRun is a run that was open when the server was restored from a backup.
type HeldRun struct {
	Run      string `json:"run"`
	Workflow string `json:"workflow"`          // id
	Machine  string `json:"machine,omitempty"` // empty: an operation
	// Later: the backup does not know it as open, because it began later. It is cancelled.
	Later bool `json:"later,omitempty"`
}

// NewHeldRun returns the HeldRun of a run that is known by its workflow's id only.
func NewHeldRun(run, workflow string) HeldRun {
	h := HeldRun{Run: run, Workflow: workflow}
	kind, rest, _ := strings.Cut(workflow, "/")
	if kind == "machine" || kind == "bmc" {
		h.Machine, _, _ = strings.Cut(rest, "/")
	}
	return h
}
