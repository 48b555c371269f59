package server

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/inventory"
)

// storingConfig is the configuration of a server that stores backups, and whose runs live elsewhere.
func storingConfig(t *testing.T) config.Config {
	t.Helper()
	cfg := testConfig(t)
	cfg.Temporal.Address = "127.0.0.1:7233"
	cfg.MinFree = 1
	dir := t.TempDir()
	cfg.Backup = config.Backup{Dir: filepath.Join(dir, "backups"), PassphraseFile: filepath.Join(dir, "passphrase"), KeepDays: 1}
	require.NoError(t, os.Mkdir(cfg.Backup.Dir, 0o700))
	require.NoError(t, os.WriteFile(cfg.Backup.PassphraseFile, []byte("correct horse battery\nsecond line\n"), 0o600))
	return cfg
}

// TestStoredBackup: it holds the keys under the server's passphrase, replaces the one of the same day, and the next server
// on the same data knows when it was made.
func TestStoredBackup(t *testing.T) {
	t.Parallel()
	cfg := storingConfig(t)
	s := testServer(t, cfg)
	require.Zero(t, s.backups.status().Verified)
	first, err := s.backups.storeInDir(t.Context())
	require.NoError(t, err)
	second, err := s.backups.storeInDir(t.Context())
	require.NoError(t, err)
	if first.Created.Equal(second.Created) { // the names of two backups of one second have no order
		require.Len(t, second.Deleted, 1)
	} else {
		require.Equal(t, []string{first.File}, second.Deleted)
	}

	b := &backups{cfg: cfg, store: s.records.store, log: s.log}
	b.look(t.Context())
	require.Equal(t, second.Created, b.status().Verified)
	require.Empty(t, b.status().Error)
	require.NoDirExists(t, filepath.Join(cfg.DataDir, backupDir))

	f, err := os.Open(b.status().File)
	require.NoError(t, err)
	defer f.Close() // ignore the error: the file was only read
	u, err := backup.Unpack(t.Context(), f, t.TempDir(), false)
	require.NoError(t, err)
	keys, err := u.UnwrapKeys(inventory.NewSecret("correct horse battery"))
	require.NoError(t, err)
	require.NotEmpty(t, keys)
}

// TestStoringABackupFails (S64): the error names the cause, the status shows it until a backup is stored, and nothing remains.
func TestStoringABackupFails(t *testing.T) {
	t.Parallel()
	write := func(text string, mode os.FileMode) func(t *testing.T, cfg *config.Config) {
		return func(t *testing.T, cfg *config.Config) {
			t.Helper()
			require.NoError(t, os.WriteFile(cfg.Backup.PassphraseFile, []byte(text), mode))
			require.NoError(t, os.Chmod(cfg.Backup.PassphraseFile, mode))
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, cfg *config.Config)
		kind  error
		says  string
	}{
		"not configured": {func(_ *testing.T, cfg *config.Config) { cfg.Backup.Dir = "" }, inventory.ErrUnsupported, "set backup.dir"},
		"no passphrase": {
			func(t *testing.T, cfg *config.Config) {
				t.Helper()
				require.NoError(t, os.Remove(cfg.Backup.PassphraseFile))
			},
			inventory.ErrUnavailable, "no such file",
		},
		"empty passphrase": {write("", 0o600), inventory.ErrUnavailable, "shorter than 12 characters"},
		"open passphrase":  {write("correct horse battery", 0o644), inventory.ErrUnavailable, "chmod 600"},
		"no directory": {
			func(t *testing.T, cfg *config.Config) { t.Helper(); require.NoError(t, os.Remove(cfg.Backup.Dir)) },
			inventory.ErrUnavailable, "must exist, and",
		},
		"full disk": {func(_ *testing.T, cfg *config.Config) { cfg.MinFree = 1 << 40 }, inventory.ErrFull, "of free space"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := storingConfig(t)
			c.spoil(t, &cfg)
			s := testServer(t, cfg)
			_, err := s.backups.storeInDir(t.Context())
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
			if cfg.Backup.Dir == "" {
				require.Nil(t, s.backups.status())
				return
			}
			require.Contains(t, s.backups.status().Error, c.says)
			entries, _ := os.ReadDir(cfg.Backup.Dir) // it may be missing
			require.Empty(t, entries)
		})
	}
}

// TestAnotherBackupIsBeingMade: the second one is refused, and the first one is not disturbed.
func TestAnotherBackupIsBeingMade(t *testing.T) {
	t.Parallel()
	s := testServer(t, storingConfig(t))
	s.backups.busy.Lock()
	_, err := s.backups.storeInDir(t.Context())
	require.ErrorIs(t, err, inventory.ErrConflict)
	s.backups.busy.Unlock()
	_, err = s.backups.storeInDir(t.Context())
	require.NoError(t, err)
	require.Empty(t, s.backups.status().Error)
}

// TestABackupOfTheFutureIsNotTheNewest: the clock of the server was wrong when it was made.
func TestABackupOfTheFutureIsNotTheNewest(t *testing.T) {
	t.Parallel()
	cfg := storingConfig(t)
	s := testServer(t, cfg)
	site, err := s.records.store.Restores.SiteID(t.Context())
	require.NoError(t, err)
	for _, at := range []string{"20200101T000000Z", "21990101T000000Z"} {
		require.NoError(t, os.WriteFile(filepath.Join(cfg.Backup.Dir, "ingot-"+site+"-"+at+"-a.tar"), nil, 0o600))
	}
	s.backups.look(t.Context())
	require.Equal(t, time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), s.backups.status().Verified)
}
