package bootsvc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/inventory"
)

// Images opens the files of the image server. OpenImage returns the file of the named image that has the given SHA-256,
// or the current file of the image if sha256 is "". It returns inventory.ErrNotFound if the image does not exist or
// this server has no copy of it, and inventory.ErrConflict if another program has changed the file.
type Images interface {
	OpenImage(ctx context.Context, name, sha256 string) (io.ReadSeekCloser, inventory.Image, error)
}

var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// imageHandler serves images by GET and HEAD. The last element of the path is the image's name. If the element before
// the name is a digest, it selects the file with this digest, even if the image was replaced since. The strong entity
// tag is the file's SHA-256. So a client can resume with Range and If-Range; if the image was replaced, it gets the
// whole new file. A request for several ranges gets the whole file, as RFC 9110 §14.2 allows.
func imageHandler(images Images, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		name := path.Base(r.URL.Path)
		if !isFileName(name) {
			notFound(w)
			return
		}
		sum := path.Base(path.Dir(r.URL.Path))
		if !sha256Form.MatchString(sum) {
			sum = ""
		}
		f, image, err := images.OpenImage(r.Context(), name, sum)
		if err != nil {
			if errors.Is(err, inventory.ErrConflict) {
				log.Error("refusing an image whose file was changed after it was added", "image", name, "error", err)
				http.Error(w, "the file of the image was changed after it was added; see the server's log", http.StatusConflict)
				return
			}
			if !errors.Is(err, inventory.ErrNotFound) {
				log.Error("opening an image", "image", name, "error", err)
				http.Error(w, "the image cannot be opened; see the server's log", http.StatusInternalServerError)
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

// serveFile serves a file, or one range of a file, in pieces. It disconnects a client that needs more than one minute
// for a MiB.
func serveFile(w http.ResponseWriter, r *http.Request, name string, f io.ReadSeeker) {
	if strings.Contains(r.Header.Get("Range"), ",") {
		r.Header.Del("Range") // many small ranges would cost the server more work than the client
	}
	defer httpserve.Cork(r.Context())()
	http.ServeContent(newStreamWriter(w), r, name, time.Time{}, f)
}

// A Delivery describes how a machine's request for an image was answered.
type Delivery struct {
	Owner         inventory.Owner // copied from the machine's grant
	Boot          int
	Method, Image string
	Client        netip.Addr
	Status        int
	Bytes         int64
	Began, Ended  time.Time
}

const (
	minPiece    = 1 << 20
	maxPiece    = 4 << 20
	quickPiece  = 100 * time.Millisecond // if a client takes a piece in less time, the next piece is larger
	streamStall = time.Minute            // how long a client may take for each MiB of a piece
)

// streamWriter sets a new write deadline before each piece. It implements io.ReaderFrom, so that files are sent with
// the system call sendfile.
type streamWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	status  int
	written int64
}

// newStreamWriter returns a streamWriter around w. If w is a streamWriter already, it returns w itself, so that one
// writer counts all bytes of the answer.
func newStreamWriter(w http.ResponseWriter) *streamWriter {
	if s, ok := w.(*streamWriter); ok {
		return s
	}
	return &streamWriter{ResponseWriter: w, control: http.NewResponseController(w)}
}

func (w *streamWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *streamWriter) extend(size int64) {
	mib := (size + 1<<20 - 1) >> 20
	// SetWriteDeadline fails only for a writer without deadlines, as in tests.
	_ = w.control.SetWriteDeadline(time.Now().Add(time.Duration(mib) * streamStall))
}

func (w *streamWriter) Write(b []byte) (int, error) {
	w.extend(int64(len(b)))
	n, err := w.ResponseWriter.Write(b)
	w.written += int64(n)
	return n, err
}

// ReadFrom implements io.ReaderFrom. http.ServeContent calls it through io.CopyN, so src is an io.LimitedReader around
// the file.
func (w *streamWriter) ReadFrom(src io.Reader) (int64, error) {
	limited, ok := src.(*io.LimitedReader)
	if !ok {
		limited = &io.LimitedReader{R: src, N: 1<<63 - 1}
	}
	var total int64
	for piece := int64(minPiece); limited.N > 0; {
		size := min(limited.N, piece)
		w.extend(size)
		began := time.Now()
		n, err := io.CopyN(w.ResponseWriter, limited.R, size)
		limited.N -= n
		total += n
		w.written += n
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if piece = min(2*piece, maxPiece); time.Since(began) >= quickPiece {
			piece = minPiece
		}
	}
	return total, nil
}

func notFound(w http.ResponseWriter) { http.Error(w, "not found", http.StatusNotFound) }
