package blockdev

import (
	"io"
)

// deviceReader reads the bytes of a device from offset at to offset end. Its reads start at a page boundary and cover whole pages,
// so that direct I/O reads them from the disk and not from the page cache.
type deviceReader struct {
	dev     Device
	at, end int64
}

// NewReader returns a reader of the bytes of dev from offset at to offset end; at must be a multiple of PageSize.
func NewReader(dev Device, at, end int64) io.Reader { return &deviceReader{dev, at, end} }

// Read implements io.Reader. It reads the last page as a whole, unless the disk ends within that page.
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

// Fill reads until buf is full or r ends. Unlike io.ReadFull, it does not change the error of r: a decompressor returns
// io.ErrUnexpectedEOF if the image is incomplete, and io.EOF at the end of the image.
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
