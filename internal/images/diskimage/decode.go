// Package diskimage reads disk images: it detects their compression and describes their contents. The server uses
// it to store an image, and the agent to write one, so both accept the same files.
package diskimage

import (
	"bufio"
	"compress/bzip2"
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
)

// Content is the decompressed content of a file. Reading it to its end verifies that the file is complete: if the
// file is damaged or truncated, the error is a *Refusal.
type Content struct {
	Format string
	file   *source
	open   io.ReadCloser
}

// Open starts to read a file from its beginning. If the first bytes show that it cannot be decompressed to a disk
// image, the error is a *Refusal. Until Close is called, goroutines may read ahead in the file. Close waits for a read
// that is in progress and releases memory; it does not close the file.
func Open(file io.Reader) (*Content, error) {
	src := &source{r: file}
	in := bufio.NewReaderSize(src, 256<<10)
	magic, err := in.Peek(8)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}

	c := &Content{Format: Format(magic), file: src}
	if c.open, err = c.decompressor(in); err != nil {
		return nil, c.judge(err)
	}

	c.open = ended{c.open, in, c}
	return c, nil
}

// OpenQcow2 opens the disk in a qcow2 image of length bytes. It first reads the tables of the image and checks that
// their references agree with the refcounts. If the image cannot be read completely from this one file, the error is a
// *Refusal. Close the content to release its memory; this does not close the file.
func OpenQcow2(file io.ReaderAt, length int64) (*Content, error) {
	q, err := newQcow2(file, length, maxSize)
	if err != nil {
		return nil, err
	}
	return &Content{Format: Qcow2, file: &source{}, open: q}, nil
}

func (c *Content) decompressor(in *bufio.Reader) (io.ReadCloser, error) {
	switch c.Format {
	case Gzip:
		return gzip.NewReader(in)
	case Zstd:
		return openZstd(in)
	case XZ:
		return openXZ(in)
	case Bzip2:
		return io.NopCloser(bzip2.NewReader(in)), nil
	case Qcow2: // the format requires random access: use OpenQcow2
		return nil, Identify([]byte(qcow2Start)).Refusal()
	}
	return io.NopCloser(in), nil
}

// Read implements io.Reader. It returns io.EOF only after the whole file was read and found complete.
func (c *Content) Read(p []byte) (int, error) {
	n, err := c.open.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.judge(err)
	}
	return n, err
}

// Close implements io.Closer.
func (c *Content) Close() error { return c.open.Close() }

// judge returns a *Refusal if err means that the file is damaged, and otherwise the error with which reading the
// file failed.
func (c *Content) judge(err error) error {
	var refusal *Refusal
	end := c.file.err()
	switch {
	case errors.As(err, &refusal), c.Format == Raw, c.Format == Qcow2:
		return err
	case end != nil && !errors.Is(end, io.EOF):
		return end
	case exceedsMemory(err):
		return refuse("compress it again with a smaller window, for example: zstd -19",
			"the %s data needs more than %d MiB of memory to decompress", c.Format, maxWindow>>20)
	case end != nil: // the file has ended, but the decompressor needs more data
		return refuse(againRemedy, "the %s data is cut short or damaged (%v)", c.Format, err)
	}
	return refuse(againRemedy, "the %s data is damaged (%v)", c.Format, err)
}

// source reads a file and stores the error with which reading ended.
type source struct {
	r   io.Reader
	end atomic.Pointer[error]
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil {
		s.end.Store(&err)
	}
	return n, err
}

// err returns the error with which reading the file ended, io.EOF for example, or nil if it has not ended.
func (s *source) err() error {
	if end := s.end.Load(); end != nil {
		return *end
	}
	return nil
}

// ended is a reader of decompressed data. At the end of that data, where decompressors stop, it returns an error if the
// file continues with anything but zeros.
type ended struct {
	io.ReadCloser
	rest io.Reader
	c    *Content
}

func (e ended) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if !errors.Is(err, io.EOF) || e.c.Format == Raw {
		return n, err
	}

	more, restErr := trailing(e.rest)
	switch {
	case restErr != nil:
		err = restErr
	case more > 0:
		err = refuse(againRemedy, "%d unexpected bytes follow the %s data", more, e.c.Format)
	}
	return n, err
}

// trailing reads r to its end and returns the number of bytes, not counting blocks that contain only zeros.
func trailing(r io.Reader) (n int64, err error) {
	buf := make([]byte, 64<<10)
	for {
		k, err := r.Read(buf)
		if slices.ContainsFunc(buf[:k], func(b byte) bool { return b != 0 }) {
			n += int64(k)
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// EndWith returns a reader of r whose Read fails, with the cause, once ctx has ended.
func EndWith(ctx context.Context, r io.Reader) io.Reader { return reader{ctx, r} }

// reader is what EndWith returns.
type reader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (r reader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
