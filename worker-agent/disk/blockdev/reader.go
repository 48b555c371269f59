package blockdev

import (
	"io"
)

// deviceReader reads the bytes from at to end. Its reads start at a page boundary and cover whole pages, so that direct I/O
// reads them from the disk and not from the page cache.
type deviceReader struct {
	dev     Device
	at, end int64
}

// NewReader returns a reader of the bytes of dev from at to end; at must be a multiple of PageSize.
func NewReader(dev Device, at, end int64) io.Reader { return &deviceReader{dev, at, end} }

// Read implements io.Reader. It reads the whole last page if the disk is large enough.
func (r *deviceReader) Read(p []byte) (int, error) {
	n := min(int64(len(p)), r.end-r.at)
	if n <= 0 {
		return 0, io.EOF
	}

	ask := min((n+PageSize-1)&^(PageSize-1), r.dev.Size()-r.at)
	if _, err := r.dev.ReadAt(p[:ask], r.at); err != nil {
		return 0, err
	}
	r.at += n
	return int(n), nil
}

// Fill reads until buf is full or r ends. Unlike io.ReadFull, it returns the error of r itself: io.ErrUnexpectedEOF from a
// decompressor means an incomplete image, and io.EOF the end of the image.
func Fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var k int
		k, err = r.Read(buf[n:])
		n += k
	}
	return n, err
}

// Filling is a reader that fills the buffer in each read except the last.
type Filling struct{ R io.Reader }

func (f Filling) Read(p []byte) (int, error) { return Fill(f.R, p) }
