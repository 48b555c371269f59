package engine

import (
	"sync"

	"github.com/ingotmetal/ingot/internal/apitypes"
)

// repairs counts the repairs of the Reconciler and of the agent watch since the server started.
type repairs struct {
	mu     sync.Mutex
	counts apitypes.Repairs
}

func (r *repairs) count(add func(c *apitypes.Repairs)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(&r.counts)
}

func (r *repairs) read() apitypes.Repairs {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}
