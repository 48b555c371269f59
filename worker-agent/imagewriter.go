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
	// block is how much is written at once.
	block = 4 * mib
	// held is how much of each end of the disk is zero until all else is right:
	// boot sectors, both partition tables.
	held = mib
)

// imageWriter writes a stream to a disk from its beginning, except for the
// two ends of the disk, which it holds back.
type imageWriter struct {
	dev        Device
	off        int64 // bytes taken
	tailAt     int64 // where the held end begins
	head, tail []byte
	sum        hash.Hash // of the content; nil = not needed
}

func newImageWriter(dev Device) *imageWriter {
	at := (dev.Size() - held) &^ (pageSize - 1)
	return &imageWriter{
		dev: dev, tailAt: at, head: aligned(held), tail: make([]byte, dev.Size()-at), sum: sha256.New(),
	}
}

// zeroEnds zeroes both ends of the disk, on stable storage.
func (w *imageWriter) zeroEnds() error {
	for _, span := range [][2]int64{{0, held}, {w.tailAt, w.dev.Size() - w.tailAt}} {
		if err := w.dev.Zero(span[0], span[1]); err != nil {
			return err
		}
	}
	return w.dev.Sync()
}

// copy takes r to its end. Reading (and decompressing), hashing and writing
// run at the same time; stop ends the reading when writing fails. When copy
// returns, none of them continues.
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

// take writes p, which goes to w.off, except for what is held back.
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

// readBack returns the SHA-256 of the content as the disk gives it back, with
// the ends that are still held in their places. Reading and hashing run at the same time.
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

// A deviceReader reads the bytes from at to end. Its buffers begin at a page and hold whole pages, so that direct I/O
// asks the disk and not the page cache.
type deviceReader struct {
	dev     Device
	at, end int64
}

// Read implements io.Reader. It reads the whole of the last page where the disk has it.
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

// finish writes the held ends, the first MiB last, and reads them back.
func (w *imageWriter) finish() error {
	if w.off > w.tailAt {
		if err := writeVerified(w.dev, w.tail[:w.off-w.tailAt], w.tailAt); err != nil {
			return err
		}
	}
	return writeVerified(w.dev, w.head[:min(w.off, held)], 0)
}

// fill reads until buf is full or r ends. Unlike io.ReadFull it keeps r's own
// error: io.ErrUnexpectedEOF of a decompressor is a cut image, io.EOF is not.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var k int
		k, err = r.Read(buf[n:])
		n += k
	}
	return n, err
}

// filling is a reader whose reads are short at its end alone.
type filling struct{ r io.Reader }

func (f filling) Read(p []byte) (int, error) { return fill(f.r, p) }
