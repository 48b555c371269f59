package inventory

import "time"

// EventHeld is never stored: reconcile informs a run that was open when the
// server was restored from a backup.
const EventHeld = "held"

// A Restore is what a site that was restored from a backup remembers of it.
type Restore struct {
	Backup string    `json:"backup"` // its id
	Taken  time.Time `json:"taken"`  // when the backup was made
	At     time.Time `json:"at"`
	// Held are the runs that were open in the backup. Nothing is done for them
	// any more: the world has moved on since.
	Held []HeldRun `json:"held"`
}

// A HeldRun is a run that was open in the backup.
type HeldRun struct {
	Run      string `json:"run"`
	Workflow string `json:"workflow"` // id
	Machine  string `json:"machine,omitempty"`
}
