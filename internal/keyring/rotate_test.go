package keyring

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// S24: while keys are replaced, what either of them sealed opens; afterwards
// what the old ones had sealed does not.
func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	r, err := Create(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), ".key-left"), []byte("of a crash"), 0o600))
	seal := func() map[string][]byte {
		out := map[string][]byte{}
		for _, p := range Sealing() {
			out[p], err = r.Seal(p, "b", []byte(p))
			require.NoError(t, err)
		}
		return out
	}
	opens := func(r *Ring, sealed map[string][]byte, ok bool) {
		t.Helper()
		for p, s := range sealed {
			plain, err := r.Open(p, "b", s)
			if !ok {
				require.ErrorIs(t, err, inventory.ErrSealed)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, p, string(plain))
			_, err = r.Open(p, "another", s)
			require.ErrorIs(t, err, inventory.ErrSealed)
		}
	}
	old, claim, signer := seal(), r.Key(Claim), r.PlanSigner()
	require.NotNil(t, signer)
	loaded := func() *Ring {
		t.Helper()
		got, err := Load(path)
		require.NoError(t, err)
		return got
	}
	require.False(t, r.Rotating())
	require.NoError(t, r.Rotate(path))
	require.True(t, r.Rotating())
	fresh := seal()
	for _, x := range []*Ring{r, loaded(), loaded().Only(BMC, UserData, Plan)} {
		opens(x, old, true)
		opens(x, fresh, true)
		require.Equal(t, signer, x.PlanSigner())
	}
	// Begun again, it is the same rotation: no key gets lost between two.
	require.NoError(t, r.Rotate(path))
	opens(r, old, true)
	opens(r, fresh, true)

	require.NoError(t, r.Retire(path))
	for _, x := range []*Ring{r, loaded()} {
		require.False(t, x.Rotating())
		opens(x, old, false)
		opens(x, fresh, true)
		require.Equal(t, claim, x.Key(Claim))
		require.Equal(t, signer, x.PlanSigner())
	}
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	names, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, names, 1)

	require.NoError(t, os.Remove(path))
	require.ErrorIs(t, r.Rotate(path), inventory.ErrSealed)
	opens(r, fresh, true)
	var none *Ring
	require.False(t, none.Rotating())
}
