package sqlite

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

func bundle(password string) inventory.GenesisBundle {
	return inventory.GenesisBundle{Name: "home", File: "lab.yaml", Files: map[string]inventory.Secret{
		"lab.yaml": inventory.NewSecret("name: home\n"), "amt.password": inventory.NewSecret(password),
	}}
}

func TestGenesis(t *testing.T) {
	w := newWorld(t)
	_, err := w.Genesis.Genesis(t.Context(), "home")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Genesis.PutGenesis(t.Context(), inventory.GenesisBundle{Name: "Home", File: "lab.yaml"}, "test")
	var ps inventory.Problems
	require.ErrorAs(t, err, &ps)
	require.Len(t, ps, 2, "an invalid name, and a bundle without its lab file")

	first, err := w.Genesis.PutGenesis(t.Context(), bundle("canary-password-1"), "test")
	require.NoError(t, err)
	require.Equal(t, bundle("canary-password-1").Digest(), first.SHA256)
	second, err := w.Genesis.PutGenesis(t.Context(), bundle("canary-password-2"), "test")
	require.NoError(t, err)
	require.NotEqual(t, first.SHA256, second.SHA256)
	require.Equal(t, first.Created, second.Created)

	got, err := w.Genesis.Genesis(t.Context(), "home")
	require.NoError(t, err)
	require.Equal(t, bundle("canary-password-2").Files, got.Files)
	require.Equal(t, second.SHA256, got.SHA256)
	b, err := got.Read("amt.password")
	require.NoError(t, err)
	require.Equal(t, "canary-password-2", string(b))
	_, err = got.Read("other")
	require.ErrorIs(t, err, os.ErrNotExist)

	all, err := w.Genesis.GenesisList(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Empty(t, all[0].Files)

	// S13: the files are not stored in plain text, and a rotation of the keys seals them again.
	for _, file := range []string{w.path, w.path + "-wal"} {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(b), "canary-password")
	}
	n, err := w.Keys.Reseal(t.Context())
	require.NoError(t, err)
	require.Positive(t, n)
	_, err = w.Genesis.Genesis(t.Context(), "home")
	require.NoError(t, err)

	w.reopen(keyring.New())
	_, err = w.Genesis.Genesis(t.Context(), "home")
	require.ErrorIs(t, err, inventory.ErrSealed)
	lost, err := w.Keys.RunsUnreadable(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"genesis of run genesis/home"}, lost)
	require.NoError(t, w.Genesis.DeleteGenesis(t.Context(), "home", "test"))
	_, err = w.Genesis.Genesis(t.Context(), "home")
	require.ErrorIs(t, err, inventory.ErrNotFound)
}
