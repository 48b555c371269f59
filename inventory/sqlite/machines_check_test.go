package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestCheckMachines: a check ends as storing would end, and changes nothing.
func TestCheckMachines(t *testing.T) {
	s := newWorld(t).Store // holds m1
	ctx := t.Context()
	before, err := s.Machines.Machines(ctx)
	require.NoError(t, err)

	changed := machine("m1", 1)
	changed.Image = "other"
	require.NoError(t, s.Machines.CheckMachines(ctx, []inventory.Machine{changed, machine("m2", 2)}, true))
	require.ErrorIs(t, s.Machines.CheckMachines(ctx, []inventory.Machine{changed}, false), inventory.ErrConflict)
	require.ErrorContains(t, s.Machines.CheckMachines(ctx, []inventory.Machine{machine("m3", 1)}, true), `belongs to machine "m1" already`)

	after, err := s.Machines.Machines(ctx)
	require.NoError(t, err)
	require.Equal(t, before, after)
}
