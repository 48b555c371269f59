package engine

import (
	"sync"

	"github.com/ingotmetal/ingot/internal/apitypes"
)

// Counts is what the loops have repaired since the server started.
type Counts = apitypes.Repairs

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
