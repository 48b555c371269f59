package inventory

import "time"

// EventHeld is never stored: reconcile informs a run that was open when the
// server was restored from a backup.
const EventHeld = "held"

// A Restore is what a restored site keeps about its backup.
type Restore struct {
	Backup string    `json:"backup"` // its id
	Taken  time.Time `json:"taken"`  // when the backup was made
	At     time.Time `json:"at"`
	// Held are the runs that were open in the backup. They are not continued: the
	// machines may have changed since.
	Held []HeldRun `json:"held"`
}

// A HeldRun is a run that was open in the backup.
type HeldRun struct {
	Run      string `json:"run"`
	Workflow string `json:"workflow"` // id
	Machine  string `json:"machine,omitempty"`
}
