package keyring

import (
	"crypto/ed25519"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestCreateAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc", "keys.json")
	_, err := Load(path)
	require.ErrorIs(t, err, inventory.ErrSealed)
	require.ErrorIs(t, err, fs.ErrNotExist)
	r, err := Create(path)
	require.NoError(t, err)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	text, err := os.ReadFile(path)
	require.NoError(t, err)

	// A second time it is left alone.
	_, err = Create(path)
	require.ErrorIs(t, err, fs.ErrExist)
	same, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, text, same)
	names, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, names, 1, "nothing else is left behind")

	got, err := Load(path)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, p := range []string{BMC, UserData, Plan, Claim} {
		require.Len(t, got.Key(p), 32)
		require.Equal(t, r.Key(p), got.Key(p))
		seen[string(got.Key(p))] = true
	}
	require.Len(t, seen, 4, "each purpose has a key of its own")
}

func TestConcurrentCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	var wg sync.WaitGroup
	rings := make([]*Ring, 8)
	for i := range rings {
		wg.Go(func() { rings[i], _ = Create(path) })
	}
	wg.Wait()
	stored, err := Load(path)
	require.NoError(t, err)
	made := 0
	for _, r := range rings {
		if r != nil {
			made++
			require.Equal(t, stored.Key(BMC), r.Key(BMC))
		}
	}
	require.Equal(t, 1, made)
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	good := `{"version":1,"keys":{"bmc":"` + key + `"}}`
	_, err := Load(write("good", good, 0o400))
	require.NoError(t, err)
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o660, 0o644} {
		_, err := Load(write("open", good, mode))
		require.ErrorContains(t, err, "chmod 600")
	}
	for name, text := range map[string]string{
		"empty": "", "text": "canary-key", "version": `{"version":2,"keys":{}}`, "short": `{"version":1,"keys":{"bmc":"` + key[:22] + `=="}}`,
		"unknown": `{"version":1,"canary-key":1}`,
	} {
		_, err := Load(write(name, text, 0o600))
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "canary-key", "an error does not quote what might be a key")
	}
}

func TestOutside(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	require.NoError(t, os.MkdirAll(filepath.Join(data, "sub"), 0o700))
	require.NoError(t, os.Symlink(data, filepath.Join(dir, "link")))
	for path, ok := range map[string]bool{
		"etc/keys.json": true, "keys.json": true, "data.json": true, "data-2/keys.json": true,
		"data/keys.json": false, "data/new/keys.json": false, "data/sub/../keys.json": false, "link/keys.json": false, "link/new/keys.json": false,
	} {
		err := Outside(filepath.Join(dir, path), data)
		if ok {
			require.NoError(t, err, path)
		} else {
			require.ErrorIs(t, err, inventory.ErrInvalid, path)
		}
	}
}

func TestSeal(t *testing.T) {
	r := New()
	sealed, err := r.Seal(BMC, "machine=a", []byte("canary"))
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "canary")
	again, err := r.Seal(BMC, "machine=a", []byte("canary"))
	require.NoError(t, err)
	require.NotEqual(t, sealed, again)
	plain, err := r.Open(BMC, "machine=a", sealed)
	require.NoError(t, err)
	require.Equal(t, "canary", string(plain))

	var none *Ring
	for name, open := range map[string]func() ([]byte, error){
		"other binding": func() ([]byte, error) { return r.Open(BMC, "machine=b", sealed) },
		"other purpose": func() ([]byte, error) { return r.Open(UserData, "machine=a", sealed) },
		"other ring":    func() ([]byte, error) { return New().Open(BMC, "machine=a", sealed) },
		"no key":        func() ([]byte, error) { return r.Only(UserData).Open(BMC, "machine=a", sealed) },
		"no ring":       func() ([]byte, error) { return none.Open(BMC, "machine=a", sealed) },
		"truncated":     func() ([]byte, error) { return r.Open(BMC, "machine=a", sealed[:20]) },
		"empty":         func() ([]byte, error) { return r.Open(BMC, "machine=a", nil) },
		"version":       func() ([]byte, error) { return r.Open(BMC, "machine=a", append([]byte{2}, sealed[1:]...)) },
	} {
		_, err := open()
		require.ErrorIs(t, err, inventory.ErrSealed, name)
	}
	for i := range sealed {
		bad := append([]byte(nil), sealed...)
		bad[i] ^= 1
		_, err := r.Open(BMC, "machine=a", bad)
		require.ErrorIs(t, err, inventory.ErrSealed, "byte %d", i)
	}
	_, err = none.Seal(BMC, "", nil)
	require.ErrorIs(t, err, inventory.ErrSealed)
	require.Nil(t, none.Key(Claim))
}

func TestPlanSigner(t *testing.T) {
	r := New()
	signer := r.PlanSigner()
	require.Len(t, signer, ed25519.PrivateKeySize)
	require.Equal(t, signer, r.Only(Plan).PlanSigner(), "the same each time, and from that key alone")
	require.NotEqual(t, signer, New().PlanSigner())
	require.NotContains(t, string(signer), string(r.Key(Plan)))
	var none *Ring
	require.Nil(t, none.PlanSigner())
	require.Nil(t, r.Only(Claim, UserData).PlanSigner(), "a node that boots machines signs nothing")
}
