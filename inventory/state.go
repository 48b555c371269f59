package inventory

import "time"

// A MachineState is a machine with its grant, its shown run, and the time of its agent's last contact.
type MachineState struct {
	Machine
	Grant Grant
	// Workflow is the run whose state is shown for the machine: its open run, or else the latest run that installed or wiped it; nil = none.
	Workflow *Workflow
	// LastSeen is the stored time of the last contact with the machine's newest agent. Contacts are stored with a delay.
	LastSeen time.Time
}

// An OpenRun is a run that has not ended.
type OpenRun struct {
	Run     string `db:"run"`
	Machine string `db:"machine"`
}
