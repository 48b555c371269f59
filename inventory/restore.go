package inventory

import (
	"strings"
	"time"
)

// EventHeld is never stored. The reconcile loop only signals it, to a run that was open when the server was restored from a backup.
const EventHeld = "held"

// A Restore is the record of a restore from a backup.
type Restore struct {
	Backup string    `json:"backup"` // id of the backup
	Taken  time.Time `json:"taken"`  // when the backup was made
	At     time.Time `json:"at"`
	// Held lists the runs that were open when the server was restored. They do not continue, because the machines may have changed since
	// the backup.
	Held []HeldRun `json:"held"`
	// AwaitsCluster: Held is not complete, because the runs that are open in the Temporal cluster were not added yet.
	AwaitsCluster bool `json:"awaitsCluster,omitempty"`
}

// A HeldRun is a run that was open when the server was restored from a backup.
type HeldRun struct {
	Run      string `json:"run"`
	Workflow string `json:"workflow"`          // workflow id
	Machine  string `json:"machine,omitempty"` // "" for an operation
	// Later: the run began after the backup, so the backup does not contain it as open. The run is cancelled.
	Later bool `json:"later,omitempty"`
}

// NewHeldRun returns the HeldRun of a run. The name of the machine comes from the workflow id.
func NewHeldRun(run, workflow string) HeldRun {
	h := HeldRun{Run: run, Workflow: workflow}
	kind, rest, _ := strings.Cut(workflow, "/")
	if kind == "machine" || kind == "bmc" {
		h.Machine, _, _ = strings.Cut(rest, "/")
	}
	return h
}
