package server

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// Orders contain the digest of the file that agents get now.
func TestRuntimeDigestFollowsTheFile(t *testing.T) {
	r := containerRuntime{path: filepath.Join(t.TempDir(), "runtime.tar.zst")}
	_, err := r.sum()
	require.ErrorIs(t, err, inventory.ErrInvalid)
	for i, text := range []string{"one", "two"} {
		require.NoError(t, os.WriteFile(r.path, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(r.path, time.Time{}, time.Unix(int64(i+1), 0)))
		want := sha256.Sum256([]byte(text))
		for range 2 {
			got, err := r.sum()
			require.NoError(t, err)
			require.Equal(t, hex.EncodeToString(want[:]), got)
		}
	}
}
