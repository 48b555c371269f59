package inventory

import "time"

// A MachineState is a machine with its open run, or the latest that installed or wiped it, and its agent.
type MachineState struct {
	Machine
	Grant    Grant
	Workflow *Workflow // the run that started last; nil: none
	// LastSeen is when the machine's newest agent last reported, as stored.
	LastSeen time.Time
}

// An OpenRun is a run that has not ended.
type OpenRun struct {
	Run     string `db:"run"`
	Machine string `db:"machine"`
}
