package sqlite

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

func TestFacts(t *testing.T) {
	w := newWorld(t)
	_, err := w.Genesis.Fact(t.Context(), "genesis/lab", "kubeconfig")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.NoError(t, w.Genesis.PutFact(t.Context(), "genesis/lab", "kubeconfig", inventory.NewSecret("first-kubeconfig-text")))
	require.NoError(t, w.Genesis.PutFact(t.Context(), "genesis/lab", "kubeconfig", inventory.NewSecret("second-kubeconfig-text")))
	got, err := w.Genesis.Fact(t.Context(), "genesis/lab", "kubeconfig")
	require.NoError(t, err)
	require.Equal(t, "second-kubeconfig-text", got.Reveal())
	_, err = w.Genesis.Fact(t.Context(), "genesis/other", "kubeconfig")
	require.ErrorIs(t, err, inventory.ErrNotFound)

	// The fact is not stored in plain text, and a rotation of the keys seals it again.
	for _, file := range []string{w.path, w.path + "-wal"} {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(b), "kubeconfig-text")
	}
	n, err := w.Keys.Reseal(t.Context())
	require.NoError(t, err)
	require.Positive(t, n)
	got, err = w.Genesis.Fact(t.Context(), "genesis/lab", "kubeconfig")
	require.NoError(t, err)
	require.Equal(t, "second-kubeconfig-text", got.Reveal())

	require.NoError(t, w.Genesis.PutFact(t.Context(), "genesis/lab", "kubeconfig", inventory.NewSecret("third-kubeconfig-text")))
	w.reopen(keyring.New())
	_, err = w.Genesis.Fact(t.Context(), "genesis/lab", "kubeconfig")
	require.ErrorIs(t, err, inventory.ErrSealed)
	lost, err := w.Keys.RunsUnreadable(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"fact of run genesis/lab#kubeconfig"}, lost)
}
