package agent

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
)

// stall is how long a download may receive no data before it is requested again.
const stall = 60 * time.Second

// errChanged means that the file on the server changed since the download began: the whole file has
// to be written again.
var errChanged = errors.New("the image changed on the server while it was read")

// source reads a file over HTTP as one continuous stream: if the connection breaks, it continues at
// the same byte of the same file.
type source struct {
	ctx       context.Context
	log       func(format string, args ...any)
	do        func(*http.Request) (*http.Response, error)
	authorize func(*http.Request)
	url       string
	shown     string // the address without parts that may be secret
	backoff   time.Duration
	// digested means that the file's digest is declared: wrong data after a reconnection would be
	// detected at the end.
	digested bool

	body      io.ReadCloser
	cancel    context.CancelFunc
	watch     *time.Timer
	validator string // strong ETag, else Last-Modified
	etag      string
	total     int64 // -1 = unknown
	read      atomic.Int64
	err       error
}

// plainHTTP returns the client for image servers other than the Ingot server.
func plainHTTP() *http.Client {
	t := transport(&tls.Config{MinVersion: tls.VersionTLS12})
	t.ResponseHeaderTimeout = stall
	return &http.Client{Transport: t, CheckRedirect: checkRedirect}
}

// checkRedirect keeps the address that led to another server from it: the query may be a credential (security S22). net/http
// itself keeps user and password from it.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > 5 {
		return errors.New("more than five redirects")
	}
	r.Header.Del("Referer")
	return nil
}

// newSource opens address, see start.
func (t *attempt) newSource(ctx context.Context, address string, digested bool) (*source, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("reading the URL: it is invalid")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("invalid URL scheme %q; must be http or https", u.Scheme)
	}

	s := &source{
		ctx: ctx, log: t.logf, url: address, shown: u.Scheme + "://" + u.Host + u.Path,
		backoff: t.agent.cfg.Backoff, digested: digested, total: -1,
		authorize: func(*http.Request) {},
	}
	if t.agent.api.owns(u) {
		s.do, s.authorize = t.agent.api.http.Do, t.agent.api.authorize
	} else {
		s.do = plainHTTP().Do
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	return s, nil
}

// start requests the file. It tries again after temporary errors until its context ends; an error
// that it returns is permanent.
func (s *source) start() error {
	for try := (backoff{max: s.backoff}); ; {
		again, err := s.connect(0)
		if err == nil {
			return nil
		}
		if !again {
			return fmt.Errorf("getting %s: %w", s.shown, err)
		}
		s.log("getting %s: %v; trying again", s.shown, err)
		if e := try.pause(s.ctx); e != nil {
			return fmt.Errorf("getting %s: %w (%w)", s.shown, err, e)
		}
	}
}

// connect requests the file from byte off. again reports whether another attempt may succeed.
func (s *source) connect(off int64) (again bool, err error) {
	ctx, cancel := context.WithCancel(s.ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		cancel()
		return false, errors.New("making a request: invalid address")
	}

	// The digest and the byte count are those of the file as stored on the server.
	req.Header.Set("Accept-Encoding", "identity")
	s.authorize(req)
	if off > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", off))
		if s.validator != "" {
			req.Header.Set("If-Range", s.validator)
		}
	}

	resp, err := s.do(req)
	if err != nil {
		cancel()
		// The error of net/http contains the whole address, including the query.
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}

		// An invalid certificate does not become valid by waiting.
		var unproven *tls.CertificateVerificationError
		return s.ctx.Err() == nil && !errors.As(err, &unproven), err
	}

	if again, err = s.check(resp, off); err != nil {
		_ = resp.Body.Close() // the body is not needed
		cancel()
		return again, err
	}

	s.body, s.cancel = resp.Body, cancel
	s.watch = time.AfterFunc(stall, cancel)
	if off > 0 && resp.StatusCode == http.StatusOK {
		// The server sent the same file from its beginning: skip the bytes already read.
		if _, err := io.CopyN(io.Discard, s.watched(), off); err != nil {
			s.disconnect()
			return true, err
		}
	}
	return false, nil
}

// check checks the response to a request for the file from byte off.
func (s *source) check(resp *http.Response, off int64) (again bool, err error) {
	etag := resp.Header.Get("Etag")
	switch code := resp.StatusCode; {
	case code == http.StatusOK && off == 0:
		s.etag, s.total = etag, resp.ContentLength
		s.validator = etag
		if etag == "" || strings.HasPrefix(etag, "W/") {
			s.validator = resp.Header.Get("Last-Modified")
		}
		if s.total < 0 && len(resp.TransferEncoding) == 0 && !s.digested {
			return false, errors.New("the server does not send the image's length, and no IMG_SHA256 is given: " +
				"its end cannot be distinguished from a broken connection")
		}
		return false, nil

	case code == http.StatusPartialContent && off > 0:
		first, total, ok := contentRange(resp.Header.Get("Content-Range"))
		if !ok || first != off {
			return false, fmt.Errorf("the answer to a request for the bytes from %d has Content-Range %q", off,
				resp.Header.Get("Content-Range"))
		}
		if etag != s.etag || s.total >= 0 && total >= 0 && total != s.total || s.validator == "" && !s.digested {
			return false, errChanged
		}
		return false, nil

	case code == http.StatusOK: // off > 0
		if s.validator == "" || etag != s.etag || s.etag == "" && resp.Header.Get("Last-Modified") != s.validator ||
			resp.ContentLength != s.total {
			return false, errChanged
		}
		return false, nil
	case code == http.StatusRequestedRangeNotSatisfiable:
		return false, errChanged
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return true, &statusError{code: code}
	case code == http.StatusConflict:
		return false, &statusError{code: code, text: "the file of the image was changed after it was added to the server"}
	default:
		return false, &statusError{code: code}
	}
}

// contentRange parses "bytes 5-9/10"; total is -1 for "*".
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

// watched returns the body; each byte received restarts the stall timer.
func (s *source) watched() io.Reader { return watchedReader{s.body, s.watch} }

type watchedReader struct {
	r io.Reader
	t *time.Timer
}

func (w watchedReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if n > 0 {
		w.t.Reset(stall)
	}
	return n, err
}

func (s *source) disconnect() {
	if s.body != nil {
		s.watch.Stop()
		s.cancel()
		_ = s.body.Close() // the data was read or is not needed
		s.body = nil
	}
}

// Read implements io.Reader. It returns io.EOF only after the whole file was read.
func (s *source) Read(p []byte) (int, error) {
	if s.err != nil || len(p) == 0 {
		return 0, s.err
	}

	try := backoff{max: s.backoff}
	for {
		if s.ctx.Err() != nil {
			s.err = context.Cause(s.ctx)
			return 0, s.err
		}
		if s.body == nil {
			again, err := s.connect(s.read.Load())
			if err != nil && !again {
				s.err = fmt.Errorf("getting %s again from byte %d: %w", s.shown, s.read.Load(), err)
				return 0, s.err
			}
			if err != nil {
				s.log("getting %s again from byte %d: %v", s.shown, s.read.Load(), err)
				if err := try.pause(s.ctx); err != nil {
					s.err = err
					return 0, err
				}
				continue
			}
		}

		n, err := s.watched().Read(p)
		if n > 0 {
			if at := s.read.Add(int64(n)); s.total >= 0 && at > s.total {
				s.err = fmt.Errorf("getting %s: more than the announced %d bytes", s.shown, s.total)
				return 0, s.err
			}

			// The next read returns the error that ended the body.
			return n, nil
		}
		if err == nil {
			continue
		}

		at := s.read.Load()
		if errors.Is(err, io.EOF) && (s.total < 0 || at == s.total) {
			s.err = io.EOF
			return 0, io.EOF
		}
		s.disconnect()
		if s.ctx.Err() == nil {
			s.log("the connection to %s broke after %d of %d bytes (%v); going on from there", s.shown, at, s.total, err)
			if err := try.pause(s.ctx); err != nil {
				s.err = err
				return 0, err
			}
		}
	}
}

// Close ends the download.
func (s *source) Close() { s.disconnect() }
