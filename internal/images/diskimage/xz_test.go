package diskimage

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"testing"

	"github.com/mikelolasagasti/xz"
	"github.com/stretchr/testify/require"
)

// compressXZ returns what the program xz makes of content.
func compressXZ(t testing.TB, content []byte, flags ...string) []byte {
	t.Helper()
	c := exec.Command("xz", append([]string{"-c", "-1"}, flags...)...)
	c.Stdin = bytes.NewReader(content)
	out, err := c.Output()
	require.NoError(t, err)
	return out
}

func readContent(file []byte) ([]byte, error) {
	c, err := Open(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(c)
	return content, errors.Join(err, c.Close())
}

func TestXZBlocks(t *testing.T) {
	withProcessors(t, 4)
	content := noise(1<<18 + 321)
	blocks := compressXZ(t, content, "-T2", "--block-size=80KiB")
	single := compressXZ(t, content, "-T1")
	double := append(bytes.Clone(content), content...)
	for name, c := range map[string]struct{ file, want []byte }{
		"blocks":              {blocks, content},
		"one block":           {single, content},
		"CRC32":               {compressXZ(t, content, "-T2", "--block-size=100KiB", "-C", "crc32"), content},
		"SHA-256":             {compressXZ(t, content, "-T2", "--block-size=100KiB", "-C", "sha256"), content},
		"no check":            {compressXZ(t, content, "-T2", "--block-size=100KiB", "-C", "none"), content},
		"a filter":            {compressXZ(t, content, "-T2", "--block-size=100KiB", "--x86", "--lzma2"), content},
		"no content":          {compressXZ(t, nil, "-T2"), nil},
		"two streams":         {append(bytes.Clone(blocks), blocks...), double},
		"padding":             {append(append(bytes.Clone(blocks), make([]byte, 8)...), blocks...), double},
		"padding at the end":  {append(bytes.Clone(blocks), make([]byte, 1024)...), content},
		"blocks, then stream": {append(bytes.Clone(blocks), single...), double},
		"stream, then blocks": {append(bytes.Clone(single), blocks...), double},
		"empty, then blocks":  {append(compressXZ(t, nil, "-T2"), blocks...), content},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readContent(c.file)
			require.NoError(t, err)
			require.True(t, bytes.Equal(c.want, got), "%d bytes of %d", len(got), len(c.want))
		})
	}

	// Blocks that declare more than is decompressed in parallel are read as one stream.
	large := append(make([]byte, maxBlock), "end"...)
	got, err := readContent(compressXZ(t, large, "-0", "-T2", "--block-size=40MiB"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(large, got))
}

// Every file that is cut is refused. A flipped bit is found, or changes nothing: the first byte of a chunk is not used.
func TestDamagedXZBlocks(t *testing.T) {
	withProcessors(t, 4)
	content := noise(3 << 10)
	file := compressXZ(t, content, "-T2", "--block-size=1KiB")
	for cut := 8; cut < len(file); cut++ {
		got, err := readContent(file[:cut])
		var r *Refusal
		require.ErrorAs(t, err, &r, "cut at %d", cut)
		require.Contains(t, r.What, "cut short or damaged")
		require.True(t, bytes.HasPrefix(content, got))
	}
	unused := 0
	for at := 8; at < len(file); at++ {
		bad := bytes.Clone(file)
		bad[at] ^= 0x40
		got, err := readContent(bad)
		require.True(t, bytes.HasPrefix(content, got), "flipped at %d", at)
		if err == nil {
			unused++
			require.Len(t, got, len(content), "flipped at %d", at)
			continue
		}
		var r *Refusal
		require.ErrorAs(t, err, &r, "flipped at %d", at)
	}

	require.LessOrEqual(t, unused, 3, "of three blocks")

	for _, more := range []string{"more", "\x00", "\x00\x00\x00\x00more"} {
		_, err := readContent(append(bytes.Clone(file), more...))
		var r *Refusal
		require.ErrorAs(t, err, &r, "%q", more)
	}
}

// A file that was read in part is not cut short: its reader failed.
func TestXZBlocksOfUnreadableFile(t *testing.T) {
	withProcessors(t, 2)
	file := compressXZ(t, noise(1<<20), "-T2", "--block-size=64KiB")
	failed := errors.New("input/output error")
	c, err := Open(io.MultiReader(bytes.NewReader(file[:len(file)/2]), failing{failed}))
	require.NoError(t, err)
	_, err = io.ReadAll(c)
	require.ErrorIs(t, err, failed)
	require.NoError(t, c.Close())
}

// FuzzXZ: what is accepted has the content that the serial decoder finds.
func FuzzXZ(f *testing.F) {
	content := noise(300)
	f.Add(compressXZ(f, content, "-T2", "--block-size=100"))
	f.Add(append(compressXZ(f, content, "-T2", "--block-size=100"), compressXZ(f, content, "-T1")...))
	f.Add(compressXZ(f, nil))
	f.Fuzz(func(t *testing.T, file []byte) {
		if len(file) > 64<<10 {
			return
		}
		c, err := Open(bytes.NewReader(file))
		if err != nil {
			return
		}
		if c.Format != XZ {
			require.NoError(t, c.Close())
			return
		}
		got, err := io.ReadAll(io.LimitReader(c, 1<<20))
		require.NoError(t, c.Close())
		if err != nil || len(got) == 1<<20 {
			return
		}
		z, err := xz.NewReader(bytes.NewReader(file), maxWindow)
		require.NoError(t, err)
		want, err := io.ReadAll(z)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	})
}
