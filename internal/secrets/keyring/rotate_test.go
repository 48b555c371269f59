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
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), ".keys.json-left"), []byte("of a crash"), 0o600))
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

// S24: an earlier key file that was put back is not taken for the present one.
func TestAnotherKeyFileIsNotRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	r, err := Create(path)
	require.NoError(t, err)
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, r.Rotate(path))
	require.NoError(t, r.Retire(path))
	present, err := os.ReadFile(path)
	require.NoError(t, err)
	sealed, err := r.Seal(BMC, "b", []byte("canary"))
	require.NoError(t, err)
	same := func(want []byte) {
		t.Helper()
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, want, got)
		plain, err := r.Open(BMC, "b", sealed)
		require.NoError(t, err)
		require.Equal(t, "canary", string(plain))
	}

	require.NoError(t, os.WriteFile(path, first, 0o600))
	err = r.Rotate(path)
	require.ErrorIs(t, err, inventory.ErrSealed)
	require.ErrorContains(t, err, "has changed since this server loaded it")
	same(first)
	require.NoError(t, os.WriteFile(path, present, 0o600))
	require.NoError(t, r.Rotate(path))
	rotating, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, other := range [][]byte{first, present} {
		require.NoError(t, os.WriteFile(path, other, 0o600))
		require.ErrorIs(t, r.Retire(path), inventory.ErrSealed)
		same(other)
	}
	// A file that a rotation wrote and that is not loaded yet keeps both.
	require.NoError(t, os.WriteFile(path, rotating, 0o600))
	before := New()
	before.keys = map[string][]byte{BMC: r.old[BMC][0]}
	require.ErrorIs(t, before.Retire(path), inventory.ErrSealed, "its key is among the old ones")
	require.NoError(t, before.Rotate(path))
	require.NoError(t, r.Retire(path))
}
