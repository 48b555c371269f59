package provenance

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// S19: what is not signed by the given key is refused.
func TestS19Minisign(t *testing.T) {
	public, private, err := minisign.GenerateKey(rand.Reader)
	require.NoError(t, err)
	stranger, strangers, err := minisign.GenerateKey(rand.Reader)
	require.NoError(t, err)
	file := []byte(strings.Repeat("a disk image ", 100_000))
	sign := func(key minisign.PrivateKey, content []byte) []byte {
		in := minisign.NewReader(bytes.NewReader(content))
		_, err := bytes.NewBuffer(nil).ReadFrom(in)
		require.NoError(t, err)
		return in.Sign(key)
	}
	signature := sign(private, file)
	keyFile, err := public.MarshalText()
	require.NoError(t, err)

	require.NoError(t, VerifyMinisign(bytes.NewReader(file), signature, keyFile))
	line := public.String()
	require.NoError(t, VerifyMinisign(bytes.NewReader(file), signature, []byte(line[strings.Index(line, "RW"):]+"\n")))

	changed := bytes.Clone(file)
	changed[len(changed)/2] ^= 1
	otherComment := bytes.Replace(signature, []byte("timestamp:"), []byte("timestamp:1"), 1)
	otherKey, err := stranger.MarshalText()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		file, signature, key []byte
		says                 string
	}{
		"a flipped bit":       {changed, signature, keyFile, "the signature does not match the file"},
		"a cut file":          {file[:len(file)-1], signature, keyFile, "the signature does not match the file"},
		"another comment":     {file, otherComment, keyFile, "the signature does not match the file"},
		"a stranger's":        {file, sign(strangers, file), keyFile, "the signature was made with key"},
		"the stranger's key":  {file, signature, otherKey, "the signature was made with key"},
		"the old form":        {file, minisign.Sign(private, file), keyFile, "the signature has the legacy form"},
		"none":                {file, nil, keyFile, "signature: "},
		"a key for it":        {file, keyFile, keyFile, "signature: "},
		"a signature for key": {file, signature, signature, "public key: "},
		"no key":              {file, signature, nil, "public key: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := VerifyMinisign(bytes.NewReader(c.file), c.signature, c.key)
			require.ErrorIs(t, err, inventory.ErrInvalid)
			require.ErrorContains(t, err, c.says)
		})
	}
	broken := errors.New("the disk is broken")
	require.ErrorIs(t, VerifyMinisign(failing{broken}, signature, keyFile), broken)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// What the program signs is accepted.
func TestS19MinisignOfTheProgram(t *testing.T) {
	program, err := exec.LookPath("minisign")
	if err != nil {
		t.Skipf("%v: it is in the package minisign (make deps)", err)
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	run := func(args ...string) {
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	require.NoError(t, os.WriteFile(path("f"), []byte("a disk image"), 0o600))
	run("-G", "-W", "-p", path("k.pub"), "-s", path("k.key"))
	run("-S", "-s", path("k.key"), "-m", path("f"))
	key, err := os.ReadFile(path("k.pub"))
	require.NoError(t, err)
	signature, err := os.ReadFile(path("f.minisig"))
	require.NoError(t, err)
	require.NoError(t, VerifyMinisign(strings.NewReader("a disk image"), signature, key))

	run("-S", "-l", "-s", path("k.key"), "-m", path("f"))
	old, err := os.ReadFile(path("f.minisig"))
	require.NoError(t, err)
	require.ErrorContains(t, VerifyMinisign(strings.NewReader("a disk image"), old, key), "the signature has the legacy form")
}
