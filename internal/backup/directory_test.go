package backup

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

func touch(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
}

func namesIn(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestPruneKeepsDays: of each of the last days the newest backup stays, however many were made on one day; files of
// another site, of operators and of unfinished backups stay, too.
func TestPruneKeepsDays(t *testing.T) {
	dir := t.TempDir()
	others := []string{
		"ingot-other-20200101T000000Z-a.tar", "ingot-20200101T000000Z-a.tar", "ingot-site-20200101T000000Z-a.tar.gz",
		"ingot-site-before-upgrade.tar", "ingot-site-unfinished",
	}
	touch(t, dir, others...)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "ingot-site-20200101T000000Z-b.tar"), 0o700))
	others = append(others, "ingot-site-20200101T000000Z-b.tar")
	touch(t, dir,
		"ingot-site-20200102T010000Z-a.tar", "ingot-site-20200102T230000Z-b.tar", "ingot-site-20260301T010000Z-c.tar",
		"ingot-site-20260302T010000Z-d.tar", "ingot-site-20260302T010000Z-e.tar", "ingot-site-20260302T020000Z-f.tar")
	touch(t, dir, "ingot-site-20990101T000000Z-a.tar") // the clock was wrong
	others = append(others, "ingot-site-20990101T000000Z-a.tar")
	d, now := Directory{dir, "site"}, time.Date(2026, 3, 2, 3, 0, 0, 0, time.UTC)

	deleted, err := d.Prune(now, 3)
	require.NoError(t, err)
	require.Len(t, deleted, 3)
	kept := []string{"ingot-site-20200102T230000Z-b.tar", "ingot-site-20260301T010000Z-c.tar", "ingot-site-20260302T020000Z-f.tar"}
	require.ElementsMatch(t, append(kept, others...), namesIn(t, dir))

	all, err := d.List(now)
	require.NoError(t, err)
	require.Len(t, all, 3)
	require.Equal(t, time.Date(2026, 3, 2, 2, 0, 0, 0, time.UTC), all[2].Created)
	_, err = d.Prune(now, 1)
	require.NoError(t, err)
	require.ElementsMatch(t, append(kept[2:], others...), namesIn(t, dir), "the newest one always stays")
}

// newStoredDraft returns a draft with an inventory alone, and the directory of its files.
func newStoredDraft(t *testing.T) (*Draft, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, "ingot.db"), nil)
	require.NoError(t, err)
	draft := NewDraft("20260302T010000Z-abc", "test")
	file := filepath.Join(dir, InventoryName)
	require.NoError(t, s.Copy(t.Context(), file, draft.ID))
	require.NoError(t, s.Close())
	require.NoError(t, draft.AddInventory(t.Context(), file))
	return draft, dir
}

// TestSave: a backup has its name once it is complete and verified. What does not become one leaves nothing.
func TestSave(t *testing.T) {
	draft, scratch := newStoredDraft(t)
	d := Directory{t.TempDir(), "site"}
	touch(t, d.Path, "ingot-site-unfinished") // of a server that was killed
	s, err := d.Save(t.Context(), draft, scratch, 0)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(d.Path, "ingot-site-20260302T010000Z-abc.tar"), s.Path)
	require.Equal(t, []string{filepath.Base(s.Path)}, namesIn(t, d.Path))
	m, err := Verify(t.Context(), s.Path, "")
	require.NoError(t, err)
	require.Equal(t, draft.ID, m.ID)
	require.Equal(t, []string{"ingot.db"}, namesIn(t, scratch), "the copy and the unpacked backup are removed")

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, attempt := range map[string]func(draft *Draft, d Directory, scratch string) error{
		"interrupted": func(draft *Draft, d Directory, scratch string) error {
			_, err := d.Save(canceled, draft, scratch, 0)
			return err
		},
		"full disk": func(draft *Draft, d Directory, scratch string) error {
			_, err := d.Save(t.Context(), draft, scratch, 1<<60)
			require.ErrorIs(t, err, inventory.ErrFull)
			return err
		},
		"changed copy": func(draft *Draft, d Directory, scratch string) error {
			require.NoError(t, os.Truncate(filepath.Join(scratch, InventoryName), 100))
			_, err := d.Save(t.Context(), draft, scratch, 0)
			return err
		},
		"damaged copy": func(draft *Draft, d Directory, scratch string) error {
			file := filepath.Join(scratch, InventoryName)
			require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("x", 5000)), 0o600))
			p, err := Describe(InventoryName, file)
			require.NoError(t, err)
			draft.Parts = []Part{p}
			_, err = d.Save(t.Context(), draft, scratch, 0)
			require.ErrorContains(t, err, "reading back the backup")
			return err
		},
	} {
		draft, scratch := newStoredDraft(t)
		d := Directory{t.TempDir(), "site"}
		require.Error(t, attempt(draft, d, scratch), name)
		require.Empty(t, namesIn(t, d.Path), name)
	}
}
