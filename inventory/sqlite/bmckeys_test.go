package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestS27BMCKeys: the first key of a BMC stays until an operator forgets it.
func TestS27BMCKeys(t *testing.T) {
	s := newWorld(t)
	ctx := t.Context()
	has, err := s.BMCKeys.HasBMCKey(ctx, "bmc-1:443")
	require.NoError(t, err)
	require.False(t, has)
	for range 2 {
		known, err := s.BMCKeys.KnownBMCKey(ctx, "bmc-1:443", "sha256:aa")
		require.NoError(t, err)
		require.Equal(t, "sha256:aa", known)
	}
	known, err := s.BMCKeys.KnownBMCKey(ctx, "bmc-1:443", "sha256:bb")
	require.NoError(t, err)
	require.Equal(t, "sha256:aa", known)
	known, err = s.BMCKeys.KnownBMCKey(ctx, "bmc-2:443", "sha256:bb")
	require.NoError(t, err)
	require.Equal(t, "sha256:bb", known)

	has, err = s.BMCKeys.HasBMCKey(ctx, "bmc-1:443")
	require.NoError(t, err)
	require.True(t, has)
	require.NoError(t, s.BMCKeys.ForgetBMCKey(ctx, "bmc-1:443"))
	known, err = s.BMCKeys.KnownBMCKey(ctx, "bmc-1:443", "sha256:bb")
	require.NoError(t, err)
	require.Equal(t, "sha256:bb", known)
}
