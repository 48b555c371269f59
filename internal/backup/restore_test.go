package backup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/inventory"
)

// testConfig is the configuration of a server in a folder of its own.
func testConfig(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	cfg := config.Default()
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.KeyFile = filepath.Join(dir, "etc", "keys.json")
	cfg.TokenFile = filepath.Join(dir, "etc", "token")
	cfg.Listen, cfg.MinFree = "127.0.0.1:0", 1
	require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
	return cfg
}

// What was made is undone when a step fails, whichever: the host is as it was.
func TestFailedRestoreChangesNothing(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	require.NoError(t, os.Remove(cfg.DataDir))
	r := Restore{Config: cfg, File: filepath.Join(t.TempDir(), "no.tar")}
	_, err := r.Do(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = os.Stat(cfg.DataDir)
	require.True(t, errors.Is(err, os.ErrNotExist), "the directory that was made is gone")

	// What lies in it is not a site's, or is one that has begun.
	for name, empty := range map[string]bool{"lost+found": true, "images": true, "ingot.db": false, "temporal": false, "notes.txt": false} {
		cfg := testConfig(t)
		require.NoError(t, os.Mkdir(filepath.Join(cfg.DataDir, name), 0o700))
		err := (&Restore{Config: cfg}).requireEmpty()
		if empty {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, inventory.ErrConflict, name)
		if name != "notes.txt" {
			// The rest of a restore that broke off belongs to no server.
			require.NoError(t, os.Mkdir(filepath.Join(cfg.DataDir, restoreDir), 0o700))
			require.NoError(t, (&Restore{Config: cfg}).requireEmpty(), name)
			require.ErrorIs(t, RefuseUnfinishedRestore(cfg.DataDir), inventory.ErrConflict)
		}
	}
}
