package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
)

// ErrChanged means that the file on the server has changed since the download began: the caller must start over.
var ErrChanged = errors.New("the image changed on the server during the download")

// File is a file on a web server.
type File struct {
	URL   string
	Shown string // the URL without parts that may be secret
	// Digested means that the caller verifies the file's digest at the end, and so detects wrong data after a reconnection.
	Digested bool
	Do       func(*http.Request) (*http.Response, error)
}

// Source reads a file over HTTP as one stream. If the connection breaks, it reconnects and continues at the same byte of the same
// file.
type Source struct {
	File
	ctx     context.Context
	log     func(format string, args ...any)
	backoff time.Duration

	body      io.ReadCloser
	cancel    context.CancelFunc
	watch     *time.Timer
	validator string // strong ETag, or else Last-Modified
	etag      string
	Total     int64 // -1 = unknown
	Received  atomic.Int64
	err       error
}

// Server is the Ingot server, whose key is pinned. It also serves images.
type Server interface {
	// Owns reports whether u is an address of the server.
	Owns(u *url.URL) bool
	// Do sends a request with the agent's token.
	Do(r *http.Request) (*http.Response, error)
}

// Opener opens files for one attempt at an action.
type Opener struct {
	Server  Server
	Log     func(format string, args ...any)
	Backoff time.Duration // longest pause before a failed request is repeated
}

// OpenAddress opens the file at address, on the Ingot server or any other; see OpenFile.
func (o Opener) OpenAddress(ctx context.Context, address string, digested bool) (*Source, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the URL is invalid")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("invalid URL scheme %q; must be http or https", u.Scheme)
	}

	f := File{URL: address, Shown: u.Scheme + "://" + u.Host + u.Path, Digested: digested, Do: NewClient().Do}
	if o.Server.Owns(u) {
		f.Do = o.Server.Do
	}
	return o.OpenFile(ctx, f)
}

// OpenFile requests a file. It retries after temporary errors until ctx ends; the error that it returns is permanent.
func (o Opener) OpenFile(ctx context.Context, f File) (*Source, error) {
	s := &Source{File: f, ctx: ctx, log: o.Log, backoff: o.Backoff, Total: -1}
	if err := s.start(); err != nil {
		return nil, err
	}
	return s, nil
}

// start requests the file. It retries after temporary errors until s.ctx ends; the error that it returns is permanent.
func (s *Source) start() error {
	for try := (clock.Backoff{Max: s.backoff}); ; {
		again, err := s.connect(0)
		if err == nil {
			return nil
		}
		if !again {
			return fmt.Errorf("getting %s: %w", s.Shown, err)
		}
		s.log("getting %s: %v; trying again", s.Shown, err)
		if e := try.Pause(s.ctx); e != nil {
			return fmt.Errorf("getting %s: %w (%w)", s.Shown, err, e)
		}
	}
}

// connect requests the file from byte off. again reports whether another attempt may succeed.
func (s *Source) connect(off int64) (again bool, err error) {
	ctx, cancel := context.WithCancel(s.ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	if err != nil {
		cancel()
		return false, errors.New("making a request: invalid address")
	}

	// Request the file without a content encoding, because its digest and its size are compared.
	req.Header.Set("Accept-Encoding", "identity")
	if off > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", off))
		if s.validator != "" {
			req.Header.Set("If-Range", s.validator)
		}
	}

	resp, err := s.Do(req)
	if err != nil {
		cancel()
		// The error of net/http contains the whole address, including the query.
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}

		// Waiting does not make an invalid certificate valid.
		var unproven *tls.CertificateVerificationError
		return s.ctx.Err() == nil && !errors.As(err, &unproven), err
	}

	if again, err = s.check(resp, off); err != nil {
		_ = resp.Body.Close() // the body is not needed
		cancel()
		return again, err
	}

	s.body, s.cancel = resp.Body, cancel
	s.watch = time.AfterFunc(Stall, cancel)
	if off > 0 && resp.StatusCode == http.StatusOK {
		// The server has sent the same file from its beginning: skip the bytes that were already read.
		if _, err := io.CopyN(io.Discard, s.watched(), off); err != nil {
			s.disconnect()
			return true, err
		}
	}
	return false, nil
}

// check returns nil if resp is a valid response to a request for the file from byte off. again reports whether another attempt may
// succeed.
func (s *Source) check(resp *http.Response, off int64) (again bool, err error) {
	etag := resp.Header.Get("Etag")
	switch code := resp.StatusCode; {
	case code == http.StatusOK && off == 0:
		s.etag, s.Total = etag, resp.ContentLength
		s.validator = etag
		if etag == "" || strings.HasPrefix(etag, "W/") {
			s.validator = resp.Header.Get("Last-Modified")
		}
		if s.Total < 0 && len(resp.TransferEncoding) == 0 && !s.Digested {
			return false, errors.New("the server does not send the image's length, and IMG_SHA256 is not set, " +
				"so the agent cannot distinguish the image's end from a broken connection")
		}
		return false, nil

	case code == http.StatusPartialContent && off > 0:
		first, total, ok := contentRange(resp.Header.Get("Content-Range"))
		if !ok || first != off {
			return false, fmt.Errorf("the server answered a request for the bytes from %d on with the wrong Content-Range %q", off,
				resp.Header.Get("Content-Range"))
		}
		if etag != s.etag || s.Total >= 0 && total >= 0 && total != s.Total || s.validator == "" && !s.Digested {
			return false, ErrChanged
		}
		return false, nil

	case code == http.StatusOK: // off > 0
		if s.validator == "" || etag != s.etag || s.etag == "" && resp.Header.Get("Last-Modified") != s.validator ||
			resp.ContentLength != s.Total {
			return false, ErrChanged
		}
		return false, nil
	case code == http.StatusRequestedRangeNotSatisfiable:
		return false, ErrChanged
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return true, &StatusError{Code: code}
	case code == http.StatusConflict:
		return false, &StatusError{Code: code, Text: "the image's file was changed after the image was added to the server"}
	default:
		return false, &StatusError{Code: code}
	}
}

// contentRange parses a Content-Range header such as "bytes 5-9/10"; total is -1 for "*".
func contentRange(h string) (first, total int64, ok bool) {
	span, size, ok := strings.Cut(strings.TrimPrefix(h, "bytes "), "/")
	if !ok {
		return 0, 0, false
	}

	from, _, ok := strings.Cut(span, "-")
	if !ok {
		return 0, 0, false
	}

	first, err := strconv.ParseInt(from, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if size == "*" {
		return first, -1, true
	}

	total, err = strconv.ParseInt(size, 10, 64)
	return first, total, err == nil
}

// watched returns a reader of the body. Each read that returns data restarts the stall timer.
func (s *Source) watched() io.Reader { return watchedReader{s.body, s.watch} }

type watchedReader struct {
	r io.Reader
	t *time.Timer
}

func (w watchedReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if n > 0 {
		w.t.Reset(Stall)
	}
	return n, err
}

func (s *Source) disconnect() {
	if s.body != nil {
		s.watch.Stop()
		s.cancel()
		_ = s.body.Close() // the data was read or is not needed
		s.body = nil
	}
}

// Read implements io.Reader. It returns io.EOF only after the whole file was read.
func (s *Source) Read(p []byte) (int, error) {
	if s.err != nil || len(p) == 0 {
		return 0, s.err
	}

	try := clock.Backoff{Max: s.backoff}
	for {
		if s.ctx.Err() != nil {
			s.err = context.Cause(s.ctx)
			return 0, s.err
		}
		if s.body == nil {
			again, err := s.connect(s.Received.Load())
			if err != nil && !again {
				s.err = fmt.Errorf("getting %s again from byte %d: %w", s.Shown, s.Received.Load(), err)
				return 0, s.err
			}
			if err != nil {
				s.log("getting %s again from byte %d: %v", s.Shown, s.Received.Load(), err)
				if err := try.Pause(s.ctx); err != nil {
					s.err = err
					return 0, err
				}
				continue
			}
		}

		n, err := s.watched().Read(p)
		if n > 0 {
			if at := s.Received.Add(int64(n)); s.Total >= 0 && at > s.Total {
				s.err = fmt.Errorf("getting %s: the server sent more than the announced %d bytes", s.Shown, s.Total)
				return 0, s.err
			}

			// If the body has ended, the next read returns the error.
			return n, nil
		}
		if err == nil {
			continue
		}

		at := s.Received.Load()
		if errors.Is(err, io.EOF) && (s.Total < 0 || at == s.Total) {
			s.err = io.EOF
			return 0, io.EOF
		}
		s.disconnect()
		if s.ctx.Err() == nil {
			s.log("the connection to %s broke after %d of %d bytes (%v); continuing from there", s.Shown, at, s.Total, err)
			if err := try.Pause(s.ctx); err != nil {
				s.err = err
				return 0, err
			}
		}
	}
}

// Close ends the download.
func (s *Source) Close() { s.disconnect() }
