package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestHandOverRequest(t *testing.T) {
	ctx := t.Context()
	s := newWorld(t).Store
	_, err := s.HandOvers.LastHandOver(ctx)
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.ErrorIs(t, s.HandOvers.RequestHandOver(ctx, inventory.HandOver{ID: "a"}), inventory.ErrInvalid)
	require.NoError(t, s.HandOvers.RequestHandOver(ctx, inventory.HandOver{ID: "a", Target: "um760"}))
	first, err := s.HandOvers.LastHandOver(ctx)
	require.NoError(t, err)
	require.Equal(t, int64(2), first.SiteEpoch)
	require.NoError(t, s.HandOvers.RequestHandOver(ctx, inventory.HandOver{ID: "a", Target: "another", Force: true}), "a retry")
	again, err := s.HandOvers.LastHandOver(ctx)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.NoError(t, s.HandOvers.RequestHandOver(ctx, inventory.HandOver{ID: "b", Target: "um760", Force: true}))
	last, err := s.HandOvers.LastHandOver(ctx)
	require.NoError(t, err)
	require.Equal(t, "b", last.ID)
	require.True(t, last.Force)
}

func TestIntakeAndOwnership(t *testing.T) {
	ctx := t.Context()
	s := newWorld(t).Store
	g, err := s.Grants.TakeGrant(ctx, "m1", "run-1", "machine/m1", false)
	require.NoError(t, err)
	require.NoError(t, s.HandOvers.CloseIntake(ctx, "moving"))
	why, err := s.HandOvers.Intake(ctx)
	require.NoError(t, err)
	require.Equal(t, "moving", why)
	require.NoError(t, s.HandOvers.OpenIntake(ctx))
	why, err = s.HandOvers.Intake(ctx)
	require.NoError(t, err)
	require.Empty(t, why)

	require.NoError(t, s.HandOvers.CloseIntake(ctx, "moving"))
	require.NoError(t, s.HandOvers.Owned(ctx, 3))
	require.NoError(t, s.HandOvers.Owned(ctx, 2), "an earlier epoch")
	n, err := s.HandOvers.SiteEpoch(ctx)
	require.NoError(t, err)
	require.Equal(t, int64(3), n)
	moved, err := s.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, int64(3), moved.SiteEpoch)
	require.Equal(t, g.Owner, moved.Owner, "the run keeps its identity")
	why, err = s.HandOvers.Intake(ctx)
	require.NoError(t, err)
	require.Empty(t, why)
}
