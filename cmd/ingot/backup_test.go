package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/inventory"
)

// A backup is refused before it is begun when its copies would take the room
// that runs need, and leaves nothing.
func TestBackupNeedsRoom(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.MinFree = 1 << 40 // MiB
	s := testServer(t, cfg)
	for range 2 { // the first must have let go of the lock
		_, err := s.backup(t.Context(), api.BackupRequest{})
		require.ErrorIs(t, err, inventory.ErrFull)
	}
	_, err := os.Stat(filepath.Join(cfg.DataDir, backupDir))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestBackupNeedsTemporal(t *testing.T) {
	t.Parallel()
	s := testServer(t, testConfig(t))
	_, err := s.backup(t.Context(), api.BackupRequest{})
	require.ErrorIs(t, err, inventory.ErrUnreachable)
	s.backingUp.Lock()
	_, err = s.backup(t.Context(), api.BackupRequest{})
	require.ErrorIs(t, err, inventory.ErrConflict)
}

// What was made is undone when a step fails, whichever: the host is as it was.
func TestARestoreThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	require.NoError(t, os.Remove(cfg.DataDir))
	r := restoring{cfg: cfg, file: filepath.Join(t.TempDir(), "no.tar")}
	_, err := r.do(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = os.Stat(cfg.DataDir)
	require.True(t, errors.Is(err, os.ErrNotExist), "the directory that was made is gone")

	// What lies in it is not a site's, or is one that has begun.
	for name, empty := range map[string]bool{"lost+found": true, "images": true, "ingot.db": false, "temporal": false, "notes.txt": false} {
		cfg := testConfig(t)
		require.NoError(t, os.Mkdir(filepath.Join(cfg.DataDir, name), 0o700))
		err := (&restoring{cfg: cfg}).empty()
		if empty {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, inventory.ErrConflict, name)
		if name != "notes.txt" {
			// The rest of a restore that broke off is nobody's.
			require.NoError(t, os.Mkdir(filepath.Join(cfg.DataDir, restoreDir), 0o700))
			require.NoError(t, (&restoring{cfg: cfg}).empty(), name)
			require.ErrorIs(t, restoreBrokeOff(cfg.DataDir), inventory.ErrConflict)
		}
	}
}

func TestABackupHasNoAddressThatIsACredential(t *testing.T) {
	t.Parallel()
	for webhook, want := range map[string]string{
		"":                                 "notify: {url: X}",
		"https://example.org":              "notify: {url: https://example.org}",
		"https://example.org/hook/t0ken":   "notify: {url: https://example.org/LEFT-OUT}",
		"https://example.org:8443?k=t0ken": "notify: {url: https://example.org:8443/LEFT-OUT}",
		"https://me:t0ken@example.org/":    "notify: {url: https://example.org/LEFT-OUT}",
	} {
		is := webhook
		if is == "" {
			is = "X"
		}
		got, ok := withoutCredential("notify: {url: "+is+"}", webhook)
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	_, ok := withoutCredential(`notify: {url: "https://example.org/hook/t0k\u0065n"}`, "https://example.org/hook/t0ken")
	require.False(t, ok, "it is there in other words")
}
