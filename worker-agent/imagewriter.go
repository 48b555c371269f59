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

// copy takes r to its end. Reading (and decompressing) and writing go on at
// the same time; stop ends the reading when writing fails. When copy returns,
// neither goes on.
func (w *imageWriter) copy(ctx context.Context, stop func(), r io.Reader) error {
	type piece struct {
		data []byte
		err  error
	}
	free, full := make(chan []byte, 3), make(chan piece, 3)
	for range cap(free) {
		free <- aligned(block)
	}
	go func() {
		defer close(full)
		defer func() {
			if p := recover(); p != nil {
				full <- piece{err: fmt.Errorf("decompressing: panic: %v", p)}
			}
		}()

		for buf := range free {
			n, err := fill(r, buf)
			full <- piece{buf[:n], err}
			if err != nil {
				return
			}
		}
	}()

	var failed error
	for p := range full {
		if failed != nil {
			continue
		}

		failed = w.take(ctx, p.data)
		switch {
		case failed != nil || p.err != nil:
			if failed == nil && !errors.Is(p.err, io.EOF) {
				failed = p.err
			}
			if failed != nil {
				stop()
			}
			close(free)
		default:
			free <- p.data[:block]
		}
	}

	return failed
}

// take writes p, which goes to w.off, except for what is held back.
func (w *imageWriter) take(ctx context.Context, p []byte) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if w.off+int64(len(p)) > w.dev.Size() {
		return fmt.Errorf("the image is larger than the disk of %d bytes: use a smaller image or a larger disk", w.dev.Size())
	}
	if w.sum != nil {
		w.sum.Write(p)
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
// the ends that are still held in their places.
func (w *imageWriter) readBack(ctx context.Context, progress func(int64)) (string, error) {
	sum := sha256.New()
	sum.Write(w.head[:min(w.off, held)])
	buf := aligned(block)

	for at := int64(held); at < min(w.off, w.tailAt); {
		if err := context.Cause(ctx); err != nil {
			return "", err
		}

		// Whole pages are read where the disk has them, so that direct I/O asks
		// the disk and not the page cache.
		n := min(int64(len(buf)), min(w.off, w.tailAt)-at)
		ask := min((n+pageSize-1)&^(pageSize-1), w.dev.Size()-at)
		if _, err := w.dev.ReadAt(buf[:ask], at); err != nil {
			return "", fmt.Errorf("at byte %d: %w", at, err)
		}
		sum.Write(buf[:n])
		at += n
		progress(at)
	}
	if w.off > w.tailAt {
		sum.Write(w.tail[:w.off-w.tailAt])
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
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
