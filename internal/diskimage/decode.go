// Package diskimage reads disk images: how they are compressed, and what is in
// them. The server reads an image with it when it is stored, the agent when it
// is written, so that both accept the same files.
package diskimage

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

// Formats of image files.
const (
	Raw   = "raw"
	Gzip  = "gz"
	Zstd  = "zst"
	XZ    = "xz"
	Bzip2 = "bz2"
	// Qcow2 is read by the server alone, with OpenQcow2: agents get zst.
	Qcow2 = "qcow2"
)

// Compressions names the compressions for an operator.
const Compressions = "gzip, zstd, xz or bzip2"

// maxWindow bounds the memory that a compressed image may ask of the agent:
// zstd --long=27, xz -9 and a little.
const maxWindow = 128 << 20

// A Refusal is a file that cannot be written to a disk.
type Refusal struct {
	What   string // what it is, or what is wrong with it
	Remedy string // what to do about it
}

func (r *Refusal) Error() string { return r.What + ": " + r.Remedy }

func refuse(remedy, format string, args ...any) error {
	return &Refusal{What: fmt.Sprintf(format, args...), Remedy: remedy}
}

// againRemedy is for a file that is not as its publisher made it.
const againRemedy = "get the file again, compare its digest with the publisher's, and store it again (ingot image add)"

// Format returns the format of a file by its first bytes. At least 8 bytes are needed.
func Format(head []byte) string {
	starts := func(s string) bool { return bytes.HasPrefix(head, []byte(s)) }
	switch {
	case starts("\x1f\x8b"):
		return Gzip
	case starts("\x28\xb5\x2f\xfd"), len(head) >= 4 && head[0]&0xf0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18":
		return Zstd // the second is a skippable frame, with which a zstd file may begin
	case starts("\xfd7zXZ\x00"):
		return XZ
	case starts("BZh"):
		return Bzip2
	case starts(qcow2Start):
		return Qcow2
	}
	return Raw
}

// Content is the decompressed content of a file. Reading it to its end proves
// that the file is whole: a damaged or cut file is a *Refusal.
type Content struct {
	Format string
	file   *source
	open   io.ReadCloser
}

// Open begins to read a file from its beginning on. What can be told by the first bytes to be no disk image is a *Refusal.
// Close the content to release its memory; the file stays the caller's. Goroutines may read the file ahead until the
// content is closed; Close waits for a read that is under way.
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

func (c *Content) decompressor(in *bufio.Reader) (io.ReadCloser, error) {
	switch c.Format {
	case Gzip:
		return gzip.NewReader(in)
	case Zstd:
		return openZstd(in)
	case XZ:
		z, err := xz.NewReader(in, maxWindow)
		return io.NopCloser(z), err
	case Bzip2:
		return io.NopCloser(bzip2.NewReader(in)), nil
	case Qcow2: // its tables may be anywhere in the file
		return nil, Identify([]byte(qcow2Start)).Refusal()
	}
	return io.NopCloser(in), nil
}

// Read implements io.Reader. io.EOF means that the whole file was read and is whole.
func (c *Content) Read(p []byte) (int, error) {
	n, err := c.open.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.judge(err)
	}
	return n, err
}

// Close implements io.Closer.
func (c *Content) Close() error { return c.open.Close() }

// exceedsMemory reports whether a decompressor refused the data because it would need too much memory.
func exceedsMemory(err error) bool {
	return errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, xz.ErrMemlimit)
}

// judge classifies err: damaged file (*Refusal), or failed read.
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
	case end != nil: // the decompressor wanted more than there is
		return refuse(againRemedy, "the %s data is cut short or damaged (%v)", c.Format, err)
	}
	return refuse(againRemedy, "the %s data is damaged (%v)", c.Format, err)
}

// source remembers how the file itself ended.
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

// err returns what the file ended with, nil if it has not ended.
func (s *source) err() error {
	if end := s.end.Load(); end != nil {
		return *end
	}
	return nil
}

// ended requires that nothing but zero padding follows the compressed data,
// because decompressors stop at its end.
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
		err = refuse(againRemedy, "%d bytes follow the %s data", more, e.c.Format)
	}
	return n, err
}

// trailing counts the bytes left in r, without those of blocks of zeros.
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

// reader ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
