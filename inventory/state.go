package inventory

import "time"

// A MachineState is a machine with what is going on there.
type MachineState struct {
	Machine
	Grant    Grant
	Workflow *Workflow // the run that started last; nil: none
	// LastSeen is when its newest agent was heard last, by the store.
	LastSeen time.Time
}

// An OpenRun is a run that is not over.
type OpenRun struct {
	Run     string `db:"run"`
	Machine string `db:"machine"`
}
