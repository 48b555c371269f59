package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// Files that an earlier version stored get the names that they have now.
func TestImagesOfAnEarlierVersionAreAdopted(t *testing.T) {
	dir, a, b := t.TempDir(), strings.Repeat("a", 64), strings.Repeat("b", 64)
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	put := func(name, file, sum string) {
		require.NoError(
			t,
			store.Images.PutImage(t.Context(), inventory.Image{Name: name, File: file, SHA256: sum, Size: 1, Format: "raw"}, "test"),
		)
	}
	put("old", "old."+a[:16], a)
	put("twin", "twin."+a[:16], a)
	put("crashed", "crashed."+b[:16], b) // after its file was renamed
	put("gone", "gone.raw", strings.Repeat("c", 64))
	for _, name := range []string{"old." + a[:16], "twin." + a[:16], b} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	for range 2 {
		require.NoError(t, adoptImages(t.Context(), store.Images, dir))
		for name, file := range map[string]string{"old": a, "twin": a, "crashed": b, "gone": "gone.raw"} {
			i, err := store.Images.Image(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, file, i.File)
		}
		all, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, all, 2)
	}
	files := images{store.Images, imagefile.New(dir, nil)}
	for _, sum := range []string{"", a} {
		f, i, err := files.OpenImage(t.Context(), "old", sum)
		require.NoError(t, err)
		require.Equal(t, a, i.SHA256)
		require.NoError(t, f.Close())
	}
	put("old", b, b)
	f, i, err := files.OpenImage(t.Context(), "old", a)
	require.NoError(t, err, "the digest counts, not the name")
	require.Equal(t, a, i.SHA256)
	require.NoError(t, f.Close())
	require.NoError(t, files.stored(t.Context(), inventory.PlannedImage{SHA256: a}))
	require.ErrorIs(t, files.stored(t.Context(), inventory.PlannedImage{SHA256: strings.Repeat("d", 64)}), inventory.ErrNotFound)
	_, _, err = files.OpenImage(t.Context(), "old", "../"+filepath.Base(dir)+"/"+a)
	require.Error(t, err)
}
