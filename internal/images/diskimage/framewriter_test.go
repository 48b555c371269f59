package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

func frames(t *testing.T, out io.Writer) *FrameWriter {
	t.Helper()
	f, err := NewFrameWriter(out)
	require.NoError(t, err)
	return f
}

// pieces returns content of size bytes, partly random and partly zeros.
func pieces(size int) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewPCG(3, 3))
	for at := 0; at < size; at += 1 << 20 {
		part := b[at:min(at+r.IntN(1<<16), size)]
		for i := range part {
			part[i] = byte(r.Uint32())
		}
	}
	return b
}

func TestFrames(t *testing.T) {
	for _, size := range []int{1, FrameSize - 1, FrameSize, 3*FrameSize + 5} {
		content := pieces(size)
		var file, again bytes.Buffer
		for _, out := range []*bytes.Buffer{&file, &again} {
			w := frames(t, out)
			_, err := io.CopyBuffer(struct{ io.Writer }{w}, bytes.NewReader(content), make([]byte, 999_999))
			require.NoError(t, errors.Join(err, w.Close()))
		}
		require.True(t, bytes.Equal(file.Bytes(), again.Bytes()), "the same content gives the same bytes")

		d, err := describeFile(t.Context(), bytes.NewReader(file.Bytes()), maxSize)
		require.NoError(t, err)
		require.Equal(t, Zstd, d.Format)
		require.Equal(t, int64(size), d.Size)
		require.Equal(t, digest(content), d.SHA256)
		require.True(t, bytes.Equal(content, byTable(t, file.Bytes())), "each frame can be read alone")
	}
}

// byTable decompresses the frames one by one from the offsets in the table at the end.
func byTable(t *testing.T, file []byte) (content []byte) {
	t.Helper()
	little := binary.LittleEndian
	footer := file[len(file)-9:]
	require.Equal(t, uint32(0x8f92eab1), little.Uint32(footer[5:]))
	require.Zero(t, footer[4])
	count := int(little.Uint32(footer))
	table := file[len(file)-9-8*count:]
	require.Equal(t, uint32(0x184d2a5e), little.Uint32(file[len(file)-9-8*count-8:]))
	require.Equal(t, uint32(8*count+9), little.Uint32(file[len(file)-9-8*count-4:]))

	z, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer z.Close()
	at := 0
	for n := range count {
		packed, size := int(little.Uint32(table[8*n:])), int(little.Uint32(table[8*n+4:]))
		if n < count-1 {
			require.Equal(t, FrameSize, size)
		}
		part, err := z.DecodeAll(file[at:at+packed], nil)
		require.NoError(t, err)
		require.Len(t, part, size)
		content, at = append(content, part...), at+packed
	}
	require.Equal(t, len(file)-9-8*count-8, at)
	return content
}

// The zstd program can read the result.
func TestFramesAreReadByZstd(t *testing.T) {
	program, err := exec.LookPath("zstd")
	if err != nil {
		t.Skipf("%v: it is in the package zstd (make deps)", err)
	}
	content := pieces(FrameSize + 77)
	var file, out bytes.Buffer
	w := frames(t, &file)
	_, err = w.Write(content)
	require.NoError(t, errors.Join(err, w.Close()))
	cmd := exec.CommandContext(t.Context(), program, "-d", "-c")
	cmd.Stdin, cmd.Stdout = &file, &out
	require.NoError(t, cmd.Run())
	require.True(t, bytes.Equal(content, out.Bytes()))
}

// A write error ends the work, at every position.
func TestFramesEndOnWriteError(t *testing.T) {
	content := pieces(6 * FrameSize)
	for _, room := range []int{0, 1 << 20} {
		full := errors.New("the disk is full")
		w := frames(t, &limited{room: room, err: full})
		_, err := w.Write(content)
		if err == nil {
			err = w.Close()
		}
		require.ErrorIs(t, err, full)
	}
}

// limited is a writer that fails after a number of bytes.
type limited struct {
	room int
	err  error
}

func (l *limited) Write(p []byte) (int, error) {
	if l.room -= len(p); l.room < 0 {
		return 0, l.err
	}
	return len(p), nil
}
