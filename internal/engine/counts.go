package engine

import (
	"sync"

	"github.com/ingotmetal/ingot/internal/apitypes"
)

// Counts counts the repairs of the Reconciler and of the agent watch since the server started.
type Counts = apitypes.Repairs

// repairs holds Counts under a lock.
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
