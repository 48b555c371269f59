package client

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestTokenStaysWithItsServer(t *testing.T) {
	t.Setenv("INGOT_TOKEN", "")
	t.Setenv("INGOT_SERVER", "")
	dir := t.TempDir()
	l := &Lookup{ConfigFile: filepath.Join(dir, "ingot.yaml")}
	require.NoError(t, os.WriteFile(l.ConfigFile, fmt.Appendf(nil, "listen: 127.0.0.1:9\ntoken_file: %s/token\n", dir), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("local\n"), 0o600))
	c, err := l.FindServer()
	require.NoError(t, err)
	require.Equal(t, "local", c.token)
	l.ServerURL = "http://127.0.0.1:9"
	c, err = l.FindServer()
	require.NoError(t, err)
	require.Equal(t, "local", c.token)
	l.ServerURL = "https://elsewhere.example"
	_, err = l.FindServer()
	require.ErrorIs(t, err, inventory.ErrInvalid, "the local token must not go elsewhere")
	t.Setenv("INGOT_TOKEN", "named")
	c, err = l.FindServer()
	require.NoError(t, err)
	require.Equal(t, "named", c.token)
	l.ServerURL = "http://elsewhere.example"
	_, err = l.FindServer()
	require.ErrorContains(t, err, "without TLS")
}

// S64: the command line reads no token, and no log-in, that others may use.
func TestS64ClientTokensArePrivate(t *testing.T) {
	t.Setenv("INGOT_TOKEN", "")
	t.Setenv("INGOT_SERVER", "")
	for _, name := range []string{"token", "given", "login.json"} {
		dir := t.TempDir()
		l := &Lookup{ConfigFile: filepath.Join(dir, "ingot.yaml")}
		require.NoError(t, os.WriteFile(l.ConfigFile, fmt.Appendf(nil, "listen: 127.0.0.1:9\ntoken_file: %s/token\n", dir), 0o600))
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte("{}"), 0o600))
		require.NoError(t, os.Chmod(file, 0o640))
		if name == "given" {
			l.ServerURL, l.TokenFile = "http://127.0.0.1:9", file
		}
		_, err := l.FindServer()
		require.ErrorContains(t, err, "run: chmod 600 "+file, name)
	}
}
