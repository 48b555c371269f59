package activities

import (
	"context"

	"github.com/ingotmetal/ingot/inventory"
)

// RecoverRequest asks for the machines of a recovery and their order.
type RecoverRequest struct {
	Machines []string          `json:"machines,omitempty"`
	Selector map[string]string `json:"selector,omitempty"`
	Order    [][]string        `json:"order,omitempty"`
}

// RecoverTargets returns groups of machines, one group after another; see
// inventory.RecoverOrder.
func (a *operations) RecoverTargets(ctx context.Context, q RecoverRequest) ([][]string, error) {
	all, err := a.Machines.Machines(ctx)
	if err != nil {
		return nil, err
	}
	return inventory.RecoverOrder(all, q.Machines, q.Selector, q.Order)
}
