package identity

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// S64: a token or a key that group or others may use is refused. A certificate alone is public.
func TestS64KeysAndTokensArePrivate(t *testing.T) {
	dir := t.TempDir()
	token, pair := filepath.Join(dir, "token"), filepath.Join(dir, "agent.pem")
	_, err := LoadToken(token)
	require.NoError(t, err)
	_, err = LoadCertificate(pair)
	require.NoError(t, err)

	text, err := os.ReadFile(pair)
	require.NoError(t, err)
	at := bytes.Index(text, []byte("-----BEGIN CERTIFICATE"))
	key, cert := filepath.Join(dir, "tls.key"), filepath.Join(dir, "tls.pem")
	require.NoError(t, os.WriteFile(key, text, 0o600))
	require.NoError(t, os.WriteFile(cert, text[at:], 0o666))
	read := map[string]func() error{
		token: func() error { _, err := ReadToken(token); return err },
		pair:  func() error { _, err := LoadCertificate(pair); return err },
		key:   func() error { _, err := LoadKeyPair(cert, key); return err },
	}
	for file, f := range read {
		require.NoError(t, f(), file)
		for _, mode := range []os.FileMode{0o666, 0o644, 0o640, 0o604, 0o620} {
			require.NoError(t, os.Chmod(file, mode))
			require.ErrorContains(t, f(), "run: chmod 600 "+file, mode)
		}
	}
}
