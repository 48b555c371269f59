package actions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

const (
	// block is the size of one write.
	block = 4 * blockdev.MiB
	// held is the size of each end of the disk that stays zero until all other data is verified. The two ends contain the boot
	// sectors and both partition tables.
	held = blockdev.MiB
)

// imageWriter writes a stream to a disk, from the beginning of the disk. It keeps the two ends of the disk in memory until finish.
type imageWriter struct {
	dev        blockdev.Device
	off        int64 // bytes of the stream so far
	tailAt     int64 // offset of tail on the disk
	head, tail []byte
	sum        hash.Hash // hash of the content; nil if not needed
}

func newImageWriter(dev blockdev.Device) *imageWriter {
	at := (dev.Size() - held) &^ (blockdev.PageSize - 1)
	return &imageWriter{
		dev: dev, tailAt: at, head: blockdev.Aligned(held), tail: make([]byte, dev.Size()-at), sum: sha256.New(),
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

// copy reads r to its end. Reading (and decompressing), hashing and writing run in parallel; copy calls stop if writing fails, to
// end the reading. When it returns, all its goroutines have ended.
func (w *imageWriter) copy(ctx context.Context, stop func(), r io.Reader) error {
	content := blockdev.StartReadAhead(blockdev.Filling{R: r}, w.sum, 4, block)
	defer content.Close()

	for p := range content.Ready {
		err := w.take(ctx, p.Data)
		if err == nil && !errors.Is(p.Err, io.EOF) {
			err = p.Err
		}
		if err != nil {
			stop()
			return err
		}
		if p.Err != nil {
			break
		}
		content.Release(p.Data)
	}
	return nil
}

// take writes p at w.off. It stores the bytes of the two ends of the disk in memory instead.
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
			if err := blockdev.WriteBlocks(w.dev, p[:n], at); err != nil {
				return err
			}
		}

		p = p[n:]
		w.off += int64(n)
	}

	return nil
}

// readBack returns the SHA-256 of the content as it will be on the disk: the two ends from memory, all other data read from the
// disk. Reading and hashing run in parallel.
func (w *imageWriter) readBack(ctx context.Context, progress func(int64)) (string, error) {
	sum := sha256.New()
	sum.Write(w.head[:min(w.off, held)])

	at := int64(held)
	content := blockdev.StartReadAhead(blockdev.NewReader(w.dev, at, min(w.off, w.tailAt)), sum, 3, block)
	defer content.Close()

	for p := range content.Ready {
		if err := context.Cause(ctx); err != nil {
			return "", err
		}
		at += int64(len(p.Data))
		if errors.Is(p.Err, io.EOF) {
			break
		}
		if p.Err != nil {
			return "", fmt.Errorf("at byte %d: %w", at, p.Err)
		}
		progress(at)
		content.Release(p.Data)
	}

	if w.off > w.tailAt {
		sum.Write(w.tail[:w.off-w.tailAt])
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// finish writes the two ends, the first MiB last, and verifies both.
func (w *imageWriter) finish() error {
	if w.off > w.tailAt {
		if err := blockdev.WriteVerified(w.dev, w.tail[:w.off-w.tailAt], w.tailAt); err != nil {
			return err
		}
	}
	return blockdev.WriteVerified(w.dev, w.head[:min(w.off, held)], 0)
}
