package diskimage

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// zstdFrames returns content in zstd frames of size bytes each, with a skippable frame before the
// second one.
func zstdFrames(t testing.TB, content []byte, size int) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	require.NoError(t, err)
	var out []byte
	for at := 0; at < len(content); at += size {
		out = enc.EncodeAll(content[at:min(at+size, len(content))], out)
		if at == 0 {
			out = append(out, "\x5e\x2a\x4d\x18\x03\x00\x00\x00abc"...)
		}
	}
	return out
}

// noise returns n bytes, half of them compressible.
func noise(n int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		if i>>10&1 == 0 {
			b[i] = byte(rnd.Uint32())
		}
	}
	return b
}

// withProcessors sets the number of processors for a test. With one processor, zstd files are read
// as one stream.
func withProcessors(t *testing.T, n int) {
	t.Helper()
	old := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

func TestZstdFrames(t *testing.T) {
	withProcessors(t, 4)
	content := noise(5<<20 + 321)
	var stream bytes.Buffer
	w, err := zstd.NewWriter(&stream)
	require.NoError(t, err)
	_, err = w.Write(content)
	require.NoError(t, errors.Join(err, w.Close()))

	large := noise(FrameSize + 1)
	for name, c := range map[string]struct{ file, want []byte }{
		"small frames":           {zstdFrames(t, content, 1<<20), content},
		"tiny frames":            {zstdFrames(t, content[:5000], 3), content[:5000]},
		"one frame":              {zstdFrames(t, content, len(content)), content},
		"no size in the header":  {stream.Bytes(), content},
		"frames, then a stream":  {append(zstdFrames(t, content, 1<<20), stream.Bytes()...), append(bytes.Clone(content), content...)},
		"stream, then frames":    {append(bytes.Clone(stream.Bytes()), zstdFrames(t, content, 1<<20)...), append(bytes.Clone(content), content...)},
		"a frame that is larger": {zstdFrames(t, large, len(large)), large},
		"an empty frame":         {append(zstdFrames(t, nil, 1), zstdFrames(t, content[:9], 9)...), content[:9]},
		"skippable at the end":   {append(zstdFrames(t, content, 1<<20), "\x50\x2a\x4d\x18\x00\x00\x00\x00"...), content},
	} {
		t.Run(name, func(t *testing.T) {
			c0, err := Open(bytes.NewReader(c.file))
			require.NoError(t, err)
			require.Equal(t, Zstd, c0.Format)
			sum := sha256.New()
			_, err = io.Copy(sum, c0)
			require.NoError(t, err)
			want := sha256.Sum256(c.want)
			require.Equal(t, want[:], sum.Sum(nil))
			n, err := c0.Read(make([]byte, 1))
			require.Zero(t, n)
			require.ErrorIs(t, err, io.EOF)
			require.NoError(t, c0.Close())
		})
	}
}

// Every truncation of a file is detected, and all damage that the frames' checksums cover.
func TestDamagedZstdFrames(t *testing.T) {
	withProcessors(t, 4)
	content := noise(3 << 10)
	file := zstdFrames(t, content, 1<<10)
	read := func(b []byte) ([]byte, error) {
		c, err := Open(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return io.ReadAll(c)
	}

	whole := 0
	for cut := 8; cut < len(file); cut++ {
		got, err := read(file[:cut])
		var r *Refusal
		if err == nil { // truncated between two frames
			whole++
			require.Zero(t, len(got)%1024)
			continue
		}
		require.ErrorAs(t, err, &r, "cut at %d", cut)
		require.Contains(t, r.What, "cut short or damaged")
	}
	require.Equal(t, 3, whole, "the ends of the frames, one with the skippable frame and one without")

	for at := 8; at < len(file); at++ {
		bad := bytes.Clone(file)
		bad[at] ^= 0x40
		got, err := read(bad)
		require.False(t, err == nil && len(got) == len(content) && !bytes.Equal(got, content), "flipped at %d", at)
	}

	_, err := read(append(bytes.Clone(file), "more"...))
	var r *Refusal
	require.ErrorAs(t, err, &r)
}

// Blocks without content could make a small frame endless.
func TestZstdFrameLargerThanItsContent(t *testing.T) {
	withProcessors(t, 2)
	file := "\x28\xb5\x2f\xfd\x20\x05" + strings.Repeat("\x00\x00\x00", 1<<20) // content of 5 bytes
	c, err := Open(strings.NewReader(file))
	require.NoError(t, err)
	defer c.Close()
	_, err = io.ReadAll(c)
	require.ErrorContains(t, err, "a compressed frame is larger than its content")
}

// A failed read of the file is reported as a read error, not as damage.
func TestZstdFramesOfUnreadableFile(t *testing.T) {
	withProcessors(t, 2)
	file := zstdFrames(t, noise(1<<20), 64<<10)
	failed := errors.New("input/output error")
	c, err := Open(io.MultiReader(bytes.NewReader(file[:len(file)/2]), failing{failed}))
	require.NoError(t, err)
	_, err = io.ReadAll(c)
	require.ErrorIs(t, err, failed)
	require.NoError(t, c.Close())
}

// Close ends the goroutines of a content that was not read to its end.
func TestCloseDuringZstdFrames(t *testing.T) {
	withProcessors(t, 4)
	file := zstdFrames(t, noise(8<<20), 256<<10)
	for _, n := range []int64{0, 1, 300 << 10} {
		c, err := Open(bytes.NewReader(file))
		require.NoError(t, err)
		_, err = io.CopyN(io.Discard, c, n)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
}
