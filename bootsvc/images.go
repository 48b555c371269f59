package bootsvc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Images opens what the image server serves: the file with that SHA-256, or, with "", what the
// image called name is now. inventory.ErrNotFound: there is
// no such image, or this server has no copy of it.
type Images interface {
	OpenImage(ctx context.Context, name, sha256 string) (io.ReadSeekCloser, inventory.Image, error)
}

var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ImageHandler serves images by GET and HEAD: the last element of the path is
// the image's name; a digest before it names the file whatever image has the
// name now. The entity tag is strong and is the file's sha256, so that a broken stream resumes by Range and If-Range, or starts again when
// the image was replaced. Ranges are single; a list of them gets the whole
// file, as RFC 9110 §14.2 allows.
func ImageHandler(images Images, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		name := path.Base(r.URL.Path)
		if !fileName(name) {
			notFound(w)
			return
		}
		sum := path.Base(path.Dir(r.URL.Path))
		if !sha256Form.MatchString(sum) {
			sum = ""
		}
		f, image, err := images.OpenImage(r.Context(), name, sum)
		if err != nil {
			if !errors.Is(err, inventory.ErrNotFound) {
				log.Error("opening an image", "image", name, "error", err)
				http.Error(w, "the image cannot be opened, see the server's log", http.StatusInternalServerError)
				return
			}
			notFound(w)
			return
		}
		defer f.Close()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Cache-Control", "no-transform")
		if sha256Form.MatchString(image.SHA256) {
			h.Set("ETag", `"`+image.SHA256+`"`)
		}
		serveFile(w, r, name, f)
	})
}

// serveFile serves a file by range with deadlines that move with the stream:
// a client that takes less than a MiB in a minute is cut off, a slow link is not.
func serveFile(w http.ResponseWriter, r *http.Request, name string, f io.ReadSeeker) {
	if strings.Contains(r.Header.Get("Range"), ",") {
		r.Header.Del("Range") // a list of small ranges costs us more than the caller
	}
	http.ServeContent(&streamWriter{ResponseWriter: w, control: http.NewResponseController(w)}, r, name, time.Time{}, f)
}

const (
	streamChunk = 1 << 20
	streamStall = time.Minute
)

// A streamWriter extends the write deadline chunk by chunk, and keeps
// sendfile: an image is not copied through our memory.
type streamWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	status  int
	written int64
}

func (w *streamWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *streamWriter) extend() {
	// A writer without deadlines (a test's recorder) has none to extend.
	_ = w.control.SetWriteDeadline(time.Now().Add(streamStall))
}

func (w *streamWriter) Write(b []byte) (int, error) {
	w.extend()
	n, err := w.ResponseWriter.Write(b)
	w.written += int64(n)
	return n, err
}

// ReadFrom implements io.ReaderFrom, which io.CopyN of http.ServeContent uses
// with an io.LimitedReader around the file.
func (w *streamWriter) ReadFrom(src io.Reader) (int64, error) {
	limited, ok := src.(*io.LimitedReader)
	if !ok {
		limited = &io.LimitedReader{R: src, N: 1<<63 - 1}
	}
	var total int64
	for limited.N > 0 {
		w.extend()
		chunk := min(limited.N, streamChunk)
		n, err := io.CopyN(w.ResponseWriter, limited.R, chunk)
		limited.N -= n
		total += n
		w.written += n
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func notFound(w http.ResponseWriter) { http.Error(w, "not found", http.StatusNotFound) }
