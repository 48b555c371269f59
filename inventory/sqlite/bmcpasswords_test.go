package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// TestS26Candidate: the password that a rotation sets stays next to the present one until it takes its place or is dropped, and is
// sealed again with it. Package server has the tests of whole rotations.
func TestS26Candidate(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	m := machine("m1", 1)
	m.BMC = &inventory.BMC{Driver: inventory.DriverRedfish, Host: "10.0.9.1", User: "u", Password: inventory.NewSecret("old")}
	require.NoError(t, put(t, w.Store, true, m))
	next, other := inventory.NewSecret("next"), inventory.NewSecret("other")
	is := func(password, candidate string) {
		t.Helper()
		p, err := w.BMCPasswords.BMCPassword(ctx, "m1")
		require.NoError(t, err)
		c, _, err := w.BMCPasswords.BMCCandidate(ctx, "m1")
		require.NoError(t, err)
		require.Equal(t, []string{password, candidate}, []string{p.Reveal(), c.Reveal()})
	}

	o := w.take("run-1")
	require.ErrorIs(t, w.BMCPasswords.CommitBMCCandidate(ctx, "m1", next), inventory.ErrConflict)
	require.NoError(t, w.BMCPasswords.PutBMCCandidate(ctx, o, next))
	is("old", "next")
	require.ErrorIs(t, w.BMCPasswords.CommitBMCCandidate(ctx, "m1", other), inventory.ErrConflict)
	require.ErrorIs(t, w.BMCPasswords.DropBMCCandidate(ctx, "m1", next, ""), inventory.ErrConflict, "its run holds the machine")

	n, err := w.Keys.Reseal(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	is("old", "next")
	require.NoError(t, w.Grants.EndGrant(ctx, o))
	require.ErrorIs(t, w.BMCPasswords.PutBMCCandidate(ctx, o, other), inventory.ErrFenced)
	require.NoError(t, w.BMCPasswords.DropBMCCandidate(ctx, "m1", next, ""))
	is("old", "")

	o = w.take("run-2")
	require.NoError(t, w.BMCPasswords.PutBMCCandidate(ctx, o, next))
	require.NoError(t, w.BMCPasswords.CommitBMCCandidate(ctx, "m1", next))
	is("next", "")
	require.NoError(t, w.BMCPasswords.PutBMCCandidate(ctx, o, other))
	require.NoError(t, w.BMCPasswords.DropBMCCandidate(ctx, "m1", other, o.Run), "its own run drops it")

	require.NoError(t, w.BMCPasswords.PutBMCCandidate(ctx, o, other))
	m.BMC.Password = inventory.NewSecret("entered")
	require.NoError(t, put(t, w.Store, true, m))
	is("entered", "")

	require.NoError(t, w.BMCPasswords.PutBMCCandidate(ctx, o, other))
	w.reopen(keyring.New())
	_, _, err = w.BMCPasswords.BMCCandidate(ctx, "m1")
	require.ErrorIs(t, err, inventory.ErrSealed)
}
