package inventory

import "time"

// A MachineState is a machine with its grant, its shown run and the last contact of its agent.
type MachineState struct {
	Machine
	Grant Grant
	// Workflow is the shown run: the machine's open run, or else the latest run that installed or wiped it; nil = none.
	Workflow *Workflow
	// LastSeen is when the machine's newest agent last reported, as stored.
	LastSeen time.Time
}

// An OpenRun is a run that has not ended.
type OpenRun struct {
	Run     string `db:"run"`
	Machine string `db:"machine"`
}
