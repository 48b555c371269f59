package disktest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// TestImage returns an image of a little more than 5 MiB of noise, text and zeros. All tests share it: it must not be changed.
var TestImage = sync.OnceValue(func() []byte {
	rnd := rand.New(rand.NewChaCha8([32]byte{1}))
	b := make([]byte, 5*blockdev.MiB+12345)
	for i := range b[:2*blockdev.MiB] {
		b[i] = byte(rnd.Uint32())
	}
	copy(b[2*blockdev.MiB:], bytes.Repeat([]byte("an operating system "), 50000))
	b[len(b)-1] = 0xee
	return b
})

var (
	packedMu sync.Mutex
	packed   = map[string][]byte{}
)

// PackedImage returns TestImage in the given format. All tests share the result.
func PackedImage(t *testing.T, format string) []byte {
	t.Helper()
	packedMu.Lock()
	defer packedMu.Unlock()
	if packed[format] == nil {
		packed[format] = Pack(t, TestImage(), format)
	}
	return packed[format]
}

// Pack returns image in the given format. If this repository cannot write the format, Pack runs the usual program.
func Pack(t *testing.T, image []byte, format string) []byte {
	t.Helper()
	var buf bytes.Buffer
	var w io.WriteCloser
	switch format {
	case "raw":
		return image
	case "gz":
		w = gzip.NewWriter(&buf)
	case "zst":
		z, err := zstd.NewWriter(&buf)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	case "frames":
		f, err := diskimage.NewFrameWriter(&buf)
		if err != nil {
			t.Fatal(err)
		}
		w = f
	case "xz", "xz blocks", "bzip2":
		words := map[string][]string{
			"xz": {"xz", "-1c"}, "xz blocks": {"xz", "-1c", "-T2", "--block-size=1MiB"}, "bzip2": {"bzip2", "-1c"},
		}[format]
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Stdin, cmd.Stdout = bytes.NewReader(image), &buf
		if err := cmd.Run(); err != nil {
			t.Fatalf("this test needs a program for %s (Debian's xz-utils, bzip2): %v", format, err)
		}
		return buf.Bytes()
	}
	if _, err := w.Write(image); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// SHA256 returns the digest of b in hex.
func SHA256(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// Mirror is an image server that can inject faults.
type Mirror struct {
	Mu       sync.Mutex
	Data     []byte
	Etag     string
	Requests []string // Range header of each request; "" = none
	// Serve, if set, is called first for each request, which has the number n (from 1). If Serve returns false, the mirror responds
	// itself.
	Serve func(w http.ResponseWriter, r *http.Request, n int) bool
}

func (m *Mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.Mu.Lock()
	m.Requests = append(m.Requests, r.Header.Get("Range"))
	n, data, etag := len(m.Requests), m.Data, m.Etag
	m.Mu.Unlock()
	if m.Serve != nil && m.Serve(w, r, n) {
		return
	}
	if etag != "" {
		w.Header().Set("ETag", etag)
	}
	var from int
	if h := r.Header.Get("Range"); h != "" && (r.Header.Get("If-Range") == "" || r.Header.Get("If-Range") == etag) {
		from, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(h, "bytes="), "-")) // cannot fail, because the agent wrote the header
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
		w.Header().Set("Content-Length", strconv.Itoa(len(data)-from))
		w.WriteHeader(http.StatusPartialContent)
	} else {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	}
	_, _ = w.Write(data[from:]) // the agent may have disconnected
}

// CutAfter sends the first n bytes of a response that begins at byte from, and closes the connection.
func (m *Mirror) CutAfter(w http.ResponseWriter, from, n int) {
	if m.Etag != "" {
		w.Header().Set("ETag", m.Etag)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(m.Data)-from))
	if from > 0 {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(m.Data)-1, len(m.Data)))
		w.WriteHeader(http.StatusPartialContent)
	}
	_, _ = w.Write(m.Data[from : from+n]) // the agent may have disconnected
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// ImageDiskSize is the size of a disk for TestImage, in bytes.
const ImageDiskSize = 8 * blockdev.MiB

// RequireImage checks the result of image2disk: disk must contain image, and the output must contain the digests of image and of
// served, the image file that the server has delivered.
func RequireImage(t *testing.T, res action.Result, disk, image, served []byte) {
	t.Helper()
	if res.State != action.Success {
		t.Fatalf("%s: %s\n%s", res.State, res.Message, res.Log)
	}
	if !bytes.Equal(disk[:len(image)], image) {
		t.Fatal("the disk's content differs from the image")
	}
	end := len(disk) - blockdev.MiB
	if len(image) <= end && !blockdev.AllZero(disk[end:]) {
		t.Fatal("the end of the disk still contains old data")
	}
	if res.Output["contentSHA256"] != SHA256(image) || res.Output["sha256"] != SHA256(served) ||
		res.Output["bytes"] != fmt.Sprint(len(image)) || res.Output["readback"] != "ok" {
		t.Fatalf("output %v", res.Output)
	}
}
