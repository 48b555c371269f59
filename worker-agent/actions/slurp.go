package actions

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// uploadAnswer is how long a server may take to respond after it has received the whole form.
const uploadAnswer = 10 * time.Minute

// errStalled means that the server has stopped receiving data.
var errStalled = fmt.Errorf("the server has accepted no data for %s", fetch.Stall)

// slurp reads the bound disk and posts it as a form (multipart/form-data, RFC 7578).
//
//	SOURCE_DISK  the bound disk
//	DEST_URL     address to send to; before the server signed the order, it checked that the configuration lists the address's host
//	IMG_NAME     name of the file in the form
//	COMPRESSED   whether the content is packed with gzip
//
// The disk is opened exclusively, so that no other process writes to it. An interrupted upload is not resumed; its receiver then
// sees an incomplete request.
//
// Output: sha256 (of the disk's content), bytes (of the disk), sent (of the form).
func slurp(ctx context.Context, t *Task) (err error) {
	packed, err := action.Bool(t.env, action.CompressedVariable, false)
	if err != nil {
		return err
	}
	disk, dev, err := t.open(ctx, action.SourceDiskVariable)
	if err != nil {
		return err
	}
	defer closeDisk(dev, disk.Path, &err)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	target := action.PublicURL(t.env[action.UploadURLVariable])
	form, err := newDiskForm(dev, t.env[action.UploadNameVariable], packed)
	if err != nil {
		return err
	}
	defer form.content.Close()
	form.watch = time.AfterFunc(fetch.Stall, func() { cancel(errStalled) })
	defer form.watch.Stop()

	t.track(dev.Size(), "sending", form.read.Load)
	err = form.post(ctx, t.env[action.UploadURLVariable])
	form.Close() // waits until nothing reads the disk any more
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("sending %s to %s, at byte %d of %d: %w", disk.Path, target, form.read.Load(), dev.Size(), err)
	}

	sum := hex.EncodeToString(form.sum())
	t.output["sha256"], t.output["bytes"], t.output["sent"] = sum, fmt.Sprint(dev.Size()), fmt.Sprint(form.sent)
	t.progress(dev.Size(), dev.Size(), "sent")
	t.logf("%d bytes of %s sent to %s, sha256 %s", dev.Size(), disk.Path, target, sum)
	return nil
}

// A diskForm is the body of a form that contains a disk's content. Until Close is called, the HTTP client may read the body, even
// after the request has ended.
type diskForm struct {
	kind    string // Content-Type
	length  int64  // -1 = unknown
	content *blockdev.ReadAhead
	sum     func() []byte // returns the digest of the disk's content; valid once end is empty
	read    atomic.Int64  // bytes of the disk that were read
	watch   *time.Timer

	mu     sync.Mutex
	form   io.Reader
	end    *bytes.Reader // the last part of form; empty once all of form was read
	sent   int64
	closed bool
}

// newDiskForm returns a form with the content of dev, and starts to read dev. The caller must first close the form, and then the
// form's field content.
func newDiskForm(dev blockdev.Device, name string, packed bool) (*diskForm, error) {
	var around bytes.Buffer
	w := multipart.NewWriter(&around)
	if _, err := w.CreateFormFile(action.UploadField, name); err != nil {
		return nil, err
	}
	head := around.Len()
	if err := w.Close(); err != nil {
		return nil, err
	}
	sum := sha256.New()
	f := &diskForm{kind: w.FormDataContentType(), length: int64(around.Len()) + dev.Size()}
	f.sum = func() []byte { return sum.Sum(nil) }
	f.content = blockdev.StartReadAhead(blockdev.NewReader(dev, 0, dev.Size()), sum, 3, blockdev.MiB)

	var content io.Reader = countingReader{f.content, &f.read}
	if packed {
		f.length = -1
		p := &packer{in: content, piece: make([]byte, blockdev.MiB)}
		p.gz = gzip.NewWriter(&p.packed)
		content = p
	}
	f.end = bytes.NewReader(around.Bytes()[head:])
	f.form = io.MultiReader(bytes.NewReader(around.Bytes()[:head]), content, f.end)
	return f, nil
}

// post sends the form. It returns nil only if the server has received the whole form and has responded with a 2xx status. It
// follows no redirect, because the disk's content must go to no other host.
func (f *diskForm) post(ctx context.Context, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, f)
	if err != nil {
		return errors.New("making a request: invalid address")
	}
	req.ContentLength = f.length
	req.Header.Set("Content-Type", f.kind)
	req.Header.Set("Expect", "100-continue") // a server that refuses the request receives no data

	via := fetch.NewTransport(&tls.Config{MinVersion: tls.VersionTLS12}, uploadAnswer)
	via.ExpectContinueTimeout = 5 * time.Second
	via.DisableKeepAlives = true
	resp, err := httpclient.New(via).Do(req)
	if err != nil {
		var u *url.Error // its text contains the whole address, so return only the error inside it
		if errors.As(err, &u) {
			err = u.Err
		}
		return err
	}
	_ = resp.Body.Close() // only the status counts

	f.mu.Lock()
	defer f.mu.Unlock()
	switch code := resp.StatusCode; {
	case code >= 300 && code < 400:
		return fmt.Errorf("%w: the agent does not follow redirects: set the final address", &fetch.StatusError{Code: code})
	case code < 200 || code > 299:
		return &fetch.StatusError{Code: code}
	case f.end.Len() > 0:
		return errors.New("the server answered before it had received the whole disk")
	}
	return nil
}

// Read implements io.Reader.
func (f *diskForm) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0, errors.New("reading a form that is already closed")
	}
	f.watch.Reset(fetch.Stall)
	n, err := f.form.Read(p)
	f.sent += int64(n)
	if f.end.Len() == 0 {
		f.watch.Stop() // the whole form was read: from here on, uploadAnswer is the time limit
	}
	return n, err
}

// Close makes further reads fail. It waits for a read that is in progress.
func (f *diskForm) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// countingReader adds the number of bytes read to n.
type countingReader struct {
	io.Reader
	n *atomic.Int64
}

func (c countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// packer is a reader of the content of in, compressed with gzip.
type packer struct {
	in     io.Reader
	gz     *gzip.Writer // compresses into packed
	packed bytes.Buffer
	piece  []byte
	err    error // the error with which reading in has ended
}

// Read implements io.Reader.
func (p *packer) Read(b []byte) (int, error) {
	for p.packed.Len() == 0 {
		if p.err != nil {
			return 0, p.err
		}
		n, err := p.in.Read(p.piece)
		if _, e := p.gz.Write(p.piece[:n]); e != nil {
			return 0, e
		}
		if errors.Is(err, io.EOF) {
			if e := p.gz.Close(); e != nil {
				return 0, e
			}
		}
		p.err = err
	}
	return p.packed.Read(b)
}
