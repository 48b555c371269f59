package activities

import (
	"context"

	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/inventory"
)

// RecoverRequest asks which machines a recovery installs, and in which order. The fields are the same as in
// contract.RecoverInput.
type RecoverRequest struct {
	Machines []string          `json:"machines,omitempty"`
	Selector selector.Selector `json:"selector,omitempty"`
	Order    [][]string        `json:"order,omitempty"`
}

// RecoverTargets returns groups of names of machines. The groups are installed one after another; see
// inventory.RecoverOrder.
func (a *operations) RecoverTargets(ctx context.Context, q RecoverRequest) ([][]string, error) {
	all, err := a.Machines.Machines(ctx)
	if err != nil {
		return nil, err
	}
	return inventory.RecoverOrder(all, q.Machines, q.Selector, q.Order)
}
