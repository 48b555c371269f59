package server

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// A backup is refused before it is begun when its copies would take the room
// that runs need, and leaves nothing.
func TestBackupNeedsRoom(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.MinFree = 1 << 40 // MiB
	s := testServer(t, cfg)
	for range 2 { // the first must have let go of the lock
		_, err := s.backups.create(t.Context(), api.BackupRequest{})
		require.ErrorIs(t, err, inventory.ErrFull)
	}
	_, err := os.Stat(filepath.Join(cfg.DataDir, backupDir))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestBackupNeedsTemporal(t *testing.T) {
	t.Parallel()
	s := testServer(t, testConfig(t))
	require.Positive(t, s.backups.childWait, "Temporal may just be starting")
	s.backups.childWait = 0
	_, err := s.backups.create(t.Context(), api.BackupRequest{})
	require.ErrorIs(t, err, inventory.ErrUnreachable)
	s.backups.busy.Lock()
	_, err = s.backups.create(t.Context(), api.BackupRequest{})
	require.ErrorIs(t, err, inventory.ErrConflict)
}

// writeBackup backs a site up whose runs live elsewhere, and returns the archive.
func writeBackup(t *testing.T, s *server, passphrase string) string {
	t.Helper()
	a, err := s.backups.create(t.Context(), api.BackupRequest{Passphrase: inventory.NewSecret(passphrase)})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "backup.tar")
	f, err := os.Create(file)
	require.NoError(t, err)
	_, err = a.WriteTo(f)
	require.NoError(t, errors.Join(err, f.Close(), a.Close()))
	return file
}

// swapped is an archive with another server's inventory, in which every digest is
// valid, as anyone makes it who has the file and no key. Strip leaves the keys
// out, too.
func swapped(t *testing.T, file string, other *server, key []byte, strip bool) string {
	t.Helper()
	dir, paths := t.TempDir(), map[string]string{}
	f, err := os.Open(file)
	require.NoError(t, err)
	m, _, err := backup.Read(f, func(_ backup.Manifest, p backup.Part, r io.Reader) error {
		paths[p.Name] = filepath.Join(dir, p.Name)
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		return os.WriteFile(paths[p.Name], b, 0o600)
	})
	require.NoError(t, errors.Join(err, f.Close()))
	paths[backup.InventoryName] = filepath.Join(dir, "other.db")
	require.NoError(t, other.records.store.Copy(t.Context(), paths[backup.InventoryName], m.ID))
	c, err := sqlite.ReadCopy(t.Context(), paths[backup.InventoryName])
	require.NoError(t, err)
	m.Inventory = c.Database
	if strip {
		m.Key = nil
		m.Parts = slices.DeleteFunc(m.Parts, func(p backup.Part) bool { return p.Name == backup.KeysName })
	}
	for i, p := range m.Parts {
		m.Parts[i], err = backup.Describe(p.Name, paths[p.Name])
		require.NoError(t, err)
	}
	to := filepath.Join(dir, "swapped.tar")
	w, err := os.Create(to)
	require.NoError(t, err)
	require.NoError(t, errors.Join(backup.Write(w, m, paths, key), w.Close()))
	return to
}

// TestSwappedInventoryIsRefused (S58): the digests prove that a backup is complete, the
// keys that it is this site's. Nothing is opened, and nothing is left.
func TestSwappedInventoryIsRefused(t *testing.T) {
	t.Parallel()
	elsewhere := func() config.Config {
		cfg := testConfig(t)
		cfg.Temporal.Address = "127.0.0.1:7233"
		return cfg
	}
	const passphrase = "correct horse battery"
	s, other := testServer(t, elsewhere()), testServer(t, elsewhere())
	secretsOf(t, s.records.store, "m1", 1)
	secretsOf(t, other.records.store, "evil", 1)
	whole, bare := writeBackup(t, s, passphrase), writeBackup(t, s, "")
	// restore restores on a host, on which the key file lies or not.
	restore := func(file, passphrase string, keyFile, withoutKey bool) (config.Config, error) {
		cfg := elsewhere()
		if keyFile {
			b, err := os.ReadFile(s.cfg.KeyFile)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Dir(cfg.KeyFile), 0o700))
			require.NoError(t, os.WriteFile(cfg.KeyFile, b, 0o600))
		}
		r := backup.Restore{Config: cfg, File: file, Passphrase: inventory.NewSecret(passphrase), WithoutKey: withoutKey}
		_, err := r.Do(t.Context())
		return cfg, err
	}
	for name, x := range map[string]struct {
		file, passphrase    string
		keyFile, withoutKey bool
		says                string
	}{
		"whole":                             {whole, passphrase, false, false, ""},
		"whole, by the key file":            {whole, "", true, true, ""},
		"bare":                              {bare, "", false, false, "no key proves who made this backup"},
		"bare, by the operator's word":      {bare, "", false, true, ""},
		"bare, by the key file":             {bare, "", true, false, ""},
		"swapped":                           {swapped(t, whole, other, nil, false), passphrase, false, false, "was changed after it was made"},
		"swapped, sealed with another key":  {swapped(t, whole, other, other.secrets.ring.BackupKeys()[0], false), passphrase, false, false, "was changed after it was made"},
		"swapped, by the key file":          {swapped(t, whole, other, other.secrets.ring.BackupKeys()[0], false), "", true, true, "was changed after it was made"},
		"swapped, without keys":             {swapped(t, whole, other, nil, true), passphrase, false, false, "no key proves who made this backup"},
		"swapped, without keys, but a file": {swapped(t, whole, other, nil, true), "", true, true, "was changed after it was made"},
	} {
		cfg, err := restore(x.file, x.passphrase, x.keyFile, x.withoutKey)
		if x.says == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, inventory.ErrInvalid, name)
		require.ErrorContains(t, err, x.says, name)
		left, err := os.ReadDir(cfg.DataDir)
		require.NoError(t, err, name)
		require.Empty(t, left, name)
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

	var c config.Config
	c.Notify.URL, c.Tracing.Endpoint = "https://example.org/hook/t0ken", "https://example.com/t0ken/v1/traces"
	got, ok := withoutCredentials(c.Notify.URL+" "+c.Tracing.Endpoint, c)
	require.True(t, ok)
	require.Equal(t, "https://example.org/LEFT-OUT https://example.com/LEFT-OUT", got)
	for _, endpoint := range []string{"https://example.org/hook/t0ken/v1/traces", c.Notify.URL} {
		c.Tracing.Endpoint = endpoint
		got, ok = withoutCredentials(c.Notify.URL+" "+endpoint, c)
		require.True(t, ok)
		require.Equal(t, "https://example.org/LEFT-OUT https://example.org/LEFT-OUT", got)
	}
}

// S64: a backup does not take in a secret that others may use, as if it were still one.
func TestS64BackupRefusesOpenFiles(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Temporal.Address = "127.0.0.1:7233"
	s := testServer(t, cfg)
	require.NoError(t, os.WriteFile(cfg.TokenFile, []byte("a token"), 0o600))
	require.NoError(t, os.Chmod(cfg.TokenFile, 0o644))
	_, err := s.backups.create(t.Context(), api.BackupRequest{Passphrase: inventory.NewSecret("correct horse battery")})
	require.ErrorContains(t, err, "chmod 600 "+cfg.TokenFile)
}
