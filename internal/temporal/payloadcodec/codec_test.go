package payloadcodec

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"

	"github.com/ingotmetal/ingot/inventory"
)

func newCodec(t *testing.T, file string) *Codec {
	t.Helper()
	_, err := NewKey(file)
	require.NoError(t, err)
	c, err := Read(file)
	require.NoError(t, err)
	return c
}

// TestS61PayloadsAreEncrypted: nothing of a payload is readable, equal payloads differ, and one that was changed is refused.
func TestS61PayloadsAreEncrypted(t *testing.T) {
	c := newCodec(t, filepath.Join(t.TempDir(), "keys"))
	const secret = "canary-of-a-payload"
	plain, err := converter.GetDefaultDataConverter().ToPayloads(secret, secret)
	require.NoError(t, err)
	sealed, err := c.Encode(plain.GetPayloads())
	require.NoError(t, err)
	require.NotEqual(t, sealed[0].GetData(), sealed[1].GetData())
	for _, p := range sealed {
		require.NotContains(t, string(p.GetData()), secret)
		require.NotContains(t, string(p.GetData()), "json/plain")
	}
	again, err := c.Encode(sealed)
	require.NoError(t, err)
	require.Equal(t, sealed, again)

	back, err := c.Decode(append(sealed, plain.GetPayloads()[0]))
	require.NoError(t, err)
	for _, p := range back {
		var got string
		require.NoError(t, converter.GetDefaultDataConverter().FromPayload(p, &got))
		require.Equal(t, secret, got)
	}

	for at := range sealed[0].GetData() {
		changed := bytes.Clone(sealed[0].GetData())
		changed[at] ^= 1
		_, err := c.Decode([]*commonpb.Payload{{Metadata: sealed[0].GetMetadata(), Data: changed}})
		require.ErrorIs(t, err, inventory.ErrSealed)
	}
	_, err = c.Decode([]*commonpb.Payload{{Metadata: sealed[0].GetMetadata(), Data: []byte("short")}})
	require.ErrorIs(t, err, inventory.ErrSealed)
}

// TestKeysAreReplaced: a new key encrypts, the old one decrypts until its line is gone.
func TestKeysAreReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	first := newCodec(t, file)
	plain, err := converter.GetDefaultDataConverter().ToPayloads("x")
	require.NoError(t, err)
	old, err := first.Encode(plain.GetPayloads())
	require.NoError(t, err)

	second := newCodec(t, file)
	require.NotEqual(t, first.current, second.current)
	_, err = second.Decode(old)
	require.NoError(t, err)
	fresh, err := second.Encode(plain.GetPayloads())
	require.NoError(t, err)
	_, err = first.Decode(fresh)
	require.ErrorContains(t, err, "which is not in "+file)

	st, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
}

// TestBadKeyFiles: every bad line is named, none is quoted, and a file that others may read is refused.
func TestBadKeyFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	newCodec(t, file)
	good, err := os.ReadFile(file)
	require.NoError(t, err)
	id, _, _ := strings.Cut(string(good), " ")

	write := func(text string, mode os.FileMode) error {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.NoError(t, os.Chmod(file, mode))
		_, err := Read(file)
		return err
	}
	require.NoError(t, write("# keys\n\n"+string(good), 0o600))
	err = write(string(good)+"a secretsecret\n"+string(good), 0o600)
	require.ErrorContains(t, err, file+":2: invalid line")
	require.ErrorContains(t, err, file+`:3: two lines have the key id "`+id+`"`)
	require.NotContains(t, err.Error(), "secretsecret")
	require.ErrorContains(t, write("", 0o600), "ingot temporal new-key")
	require.ErrorContains(t, write(string(good), 0o640), "chmod 600")
	_, err = NewKey(file)
	require.ErrorContains(t, err, "chmod 600")
}
