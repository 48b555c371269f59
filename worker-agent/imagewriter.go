package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

const (
	// block is the size of one write.
	block = 4 * mib
	// held is the size of each end of the disk that stays zero until everything else is verified:
	// it contains the boot sectors and both partition tables.
	held = mib
)

// imageWriter writes a stream to a disk from its beginning. It keeps the two ends of the disk in
// memory for finish.
type imageWriter struct {
	dev        Device
	off        int64 // bytes of the stream so far
	tailAt     int64 // offset of the end that is kept in memory
	head, tail []byte
	sum        hash.Hash // of the content; nil if not needed
}

func newImageWriter(dev Device) *imageWriter {
	at := (dev.Size() - held) &^ (pageSize - 1)
	return &imageWriter{
		dev: dev, tailAt: at, head: aligned(held), tail: make([]byte, dev.Size()-at), sum: sha256.New(),
	}
}

// zeroEnds zeroes both ends of the disk and syncs it.
func (w *imageWriter) zeroEnds() error {
	for _, span := range [][2]int64{{0, held}, {w.tailAt, w.dev.Size() - w.tailAt}} {
		if err := w.dev.Zero(span[0], span[1]); err != nil {
			return err
		}
	}
	return w.dev.Sync()
}

// copy reads r to its end. Reading (and decompressing), hashing and writing run in parallel; stop
// ends the reading when writing fails. When copy returns, all goroutines have ended.
func (w *imageWriter) copy(ctx context.Context, stop func(), r io.Reader) error {
	content := startReadAhead(filling{r}, w.sum, 4, block)
	defer content.close()

	for p := range content.ready {
		err := w.take(ctx, p.data)
		if err == nil && !errors.Is(p.err, io.EOF) {
			err = p.err
		}
		if err != nil {
			stop()
			return err
		}
		if p.err != nil {
			break
		}
		content.release(p.data)
	}
	return nil
}

// take writes p at w.off, except for the parts that belong to the two ends.
func (w *imageWriter) take(ctx context.Context, p []byte) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if w.off+int64(len(p)) > w.dev.Size() {
		return fmt.Errorf("the image is larger than the disk of %d bytes: use a smaller image or a larger disk", w.dev.Size())
	}

	for len(p) > 0 {
		var n int
		switch at := w.off; {
		case at < held:
			n = copy(w.head[at:], p)
		case at >= w.tailAt:
			n = copy(w.tail[at-w.tailAt:], p)
		default:
			n = int(min(int64(len(p)), w.tailAt-at))
			if err := writeBlocks(w.dev, p[:n], at); err != nil {
				return err
			}
		}

		p = p[n:]
		w.off += int64(n)
	}

	return nil
}

// readBack returns the SHA-256 of the content as read from the disk, with the ends from memory in
// their places. Reading and hashing run in parallel.
func (w *imageWriter) readBack(ctx context.Context, progress func(int64)) (string, error) {
	sum := sha256.New()
	sum.Write(w.head[:min(w.off, held)])

	at := int64(held)
	content := startReadAhead(&deviceReader{dev: w.dev, at: at, end: min(w.off, w.tailAt)}, sum, 3, block)
	defer content.close()

	for p := range content.ready {
		if err := context.Cause(ctx); err != nil {
			return "", err
		}
		at += int64(len(p.data))
		if errors.Is(p.err, io.EOF) {
			break
		}
		if p.err != nil {
			return "", fmt.Errorf("at byte %d: %w", at, p.err)
		}
		progress(at)
		content.release(p.data)
	}

	if w.off > w.tailAt {
		sum.Write(w.tail[:w.off-w.tailAt])
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// deviceReader reads the bytes from at to end. Its buffers start at a page boundary and contain
// whole pages: direct I/O then reads from the disk and not from the page cache.
type deviceReader struct {
	dev     Device
	at, end int64
}

// Read implements io.Reader. It reads the whole last page if the disk is large enough.
func (r *deviceReader) Read(p []byte) (int, error) {
	n := min(int64(len(p)), r.end-r.at)
	if n <= 0 {
		return 0, io.EOF
	}

	ask := min((n+pageSize-1)&^(pageSize-1), r.dev.Size()-r.at)
	if _, err := r.dev.ReadAt(p[:ask], r.at); err != nil {
		return 0, err
	}
	r.at += n
	return int(n), nil
}

// finish writes the two ends, the first MiB last, and reads them back.
func (w *imageWriter) finish() error {
	if w.off > w.tailAt {
		if err := writeVerified(w.dev, w.tail[:w.off-w.tailAt], w.tailAt); err != nil {
			return err
		}
	}
	return writeVerified(w.dev, w.head[:min(w.off, held)], 0)
}

// fill reads until buf is full or r ends. Unlike io.ReadFull, it returns r's own error:
// io.ErrUnexpectedEOF from a decompressor means an incomplete image, io.EOF does not.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var k int
		k, err = r.Read(buf[n:])
		n += k
	}
	return n, err
}

// filling is a reader that fills the buffer on each read except the last.
type filling struct{ r io.Reader }

func (f filling) Read(p []byte) (int, error) { return fill(f.r, p) }
