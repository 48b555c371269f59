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
	// block is the number of bytes that are written at once.
	block = 4 * blockdev.MiB
	// held is the size of each of the two ends of the disk or partition, in bytes. The ends contain the boot sectors, both copies of the
	// partition table, and the superblock of a file system. They stay zero until all other data was verified.
	held = blockdev.MiB
)

// imageWriter writes a stream to a disk or partition, starting at its beginning. The data for the two ends stays in memory until finish
// writes it.
type imageWriter struct {
	dev        target
	off        int64 // number of bytes of the stream that were taken so far
	tailAt     int64 // position on the disk at which tail begins
	head, tail []byte
	sum        hash.Hash // hash of the whole stream; nil if not needed
}

func newImageWriter(dev target) *imageWriter {
	at := (dev.Size() - held) &^ (blockdev.PageSize - 1)
	return &imageWriter{
		dev: dev, tailAt: at, head: blockdev.Aligned(held), tail: make([]byte, dev.Size()-at), sum: sha256.New(),
	}
}

// zeroEnds writes zeros to both ends of the disk, and syncs the disk.
func (w *imageWriter) zeroEnds() error {
	for _, span := range [][2]int64{{0, held}, {w.tailAt, w.dev.Size() - w.tailAt}} {
		if err := w.dev.Zero(span[0], span[1]); err != nil {
			return err
		}
	}
	return w.dev.Sync()
}

// copy reads r to its end and writes the data to the disk. Reading (with decompressing), hashing and writing run in parallel. If writing
// fails, copy calls stop, which ends the reading. When copy returns, all its goroutines have ended.
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

// take writes p, the next bytes of the stream, to the disk at the position w.off. Bytes for the two ends of the disk are kept in memory
// instead.
func (w *imageWriter) take(ctx context.Context, p []byte) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if w.off+int64(len(p)) > w.dev.Size() {
		return fmt.Errorf("the image is larger than the %s of %d bytes: use a smaller image or a larger %s", w.dev.kind, w.dev.Size(), w.dev.kind)
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

// readBack returns the SHA-256 of the whole stream as the disk will contain it. For the two ends of the disk, it uses the bytes in memory;
// it reads all other bytes from the disk. Reading and hashing run in parallel.
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

// finish writes the two ends of the disk and verifies them. The first MiB of the disk is written last.
func (w *imageWriter) finish() error {
	if w.off > w.tailAt {
		if err := blockdev.WriteVerified(w.dev, w.tail[:w.off-w.tailAt], w.tailAt); err != nil {
			return err
		}
	}
	return blockdev.WriteVerified(w.dev, w.head[:min(w.off, held)], 0)
}
