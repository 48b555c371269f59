package engine

import "sync"

// Counts is what the loops have repaired since the server started.
type Counts struct {
	GrantsEnded            int64 `json:"grantsEnded"`
	OperatorWindowsExpired int64 `json:"operatorWindowsExpired"`
	RecordsRepaired        int64 `json:"recordsRepaired"`
	AgentsLost             int64 `json:"agentsLost"`
	AgentsIdle             int64 `json:"agentsIdle"`
	// ClockSteps is how often the clock of this server was set.
	ClockSteps int64 `json:"clockSteps"`
	// SignalsRefused is how many events Temporal has refused.
	SignalsRefused int64 `json:"signalsRefused"`
	// RunsFenced is how many runs were told that they have lost their machine.
	RunsFenced int64 `json:"runsFenced"`
	// Stuck is how many runs have workflow code that keeps failing now.
	Stuck int64 `json:"stuck"`
}

// repairs counts what the loops repair.
type repairs struct {
	mu     sync.Mutex
	counts Counts
}

func (r *repairs) count(add func(c *Counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(&r.counts)
}

func (r *repairs) read() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}
