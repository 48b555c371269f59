package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPageInFirefox goes through the main flows of the page in Firefox: log in, find, add, edit, preview an installation,
// upload; by keyboard, in dark colours and in three widths, with axe.
func TestPageInFirefox(t *testing.T) {
	runInTurn(t, 60, 10)
	s := newPageSite(t)
	require.FileExists(t, "firefox/node_modules/.package-lock.json", "make deps-e2e installs it")
	file := filepath.Join(t.TempDir(), "some-disk.img")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("some"), 5<<20), 0o600))

	cmd := exec.CommandContext(t.Context(), "node", "firefox/flows.mjs", s.URL, pageToken, file)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "MOZ_HEADLESS=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	m, err := s.store.Machines.Machine(t.Context(), "node-f")
	require.NoError(t, err)
	require.Equal(t, "fox", m.Labels["rack"])
}
