package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestMedia(t *testing.T) {
	s := newWorld(t)
	ctx := t.Context()
	old := inventory.Media{Machine: "m1", Run: "run-1", URL: "http://10.0.0.1/a.iso", BMC: "bmc-1:443"}
	next := inventory.Media{Machine: "m1", Run: "run-2", URL: "http://10.0.0.1/b.iso", BMC: "bmc-2:443"}
	require.NoError(t, s.Media.PutMedia(ctx, old))
	require.NoError(t, s.Media.PutMedia(ctx, next))
	require.NoError(t, s.Media.DeleteMedia(ctx, old), "it belongs to the next run now")
	all, err := s.Media.Media(ctx)
	require.NoError(t, err)
	require.Equal(t, []inventory.Media{next}, all)

	err = s.Machines.DeleteMachine(ctx, "m1", "test")
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, next.URL)
	require.NoError(t, s.Media.DeleteMedia(ctx, next))
	all, err = s.Media.Media(ctx)
	require.NoError(t, err)
	require.Empty(t, all)
	require.NoError(t, s.Machines.DeleteMachine(ctx, "m1", "test"))
}
