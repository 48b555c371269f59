package host

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNameBackup: a complete backup replaces no file, and is never lost.
func TestNameBackup(t *testing.T) {
	dir := t.TempDir()
	part, to := filepath.Join(dir, "ingot.tar.part"), filepath.Join(dir, "ingot.tar")
	require.NoError(t, os.WriteFile(part, []byte("new"), 0o600))
	require.NoError(t, os.WriteFile(to, []byte("old"), 0o600))
	holds := func(file, want string) {
		t.Helper()
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}

	err := nameBackup(part, to)
	require.ErrorIs(t, err, fs.ErrExist)
	require.ErrorContains(t, err, part+" could not be renamed")
	holds(part, "new")
	holds(to, "old")

	require.NoError(t, os.Remove(to))
	require.NoError(t, nameBackup(part, to))
	holds(to, "new")
	require.NoFileExists(t, part)
}

// TestNameBackupWithoutHardLinks: a directory has no hard links either.
func TestNameBackupWithoutHardLinks(t *testing.T) {
	dir := t.TempDir()
	part, to := filepath.Join(dir, "ingot.tar.part"), filepath.Join(dir, "ingot.tar")
	require.NoError(t, os.Mkdir(part, 0o700))
	require.NoError(t, nameBackup(part, to))
	require.DirExists(t, to)
	require.NoDirExists(t, part)
}
