package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/diskimage"
)

const (
	// block is how much is written at once.
	block = 4 * mib
	// held is how much of each end of the disk is zero until all else is right:
	// boot sectors, both partition tables.
	held = mib
)

// image2disk writes an image to the bound disk.
//
//	IMG_URL     where the image is; raw, gzip, zstd, xz or bzip2, told by its content
//	IMG_SHA256  digest of the file as served, with or without "sha256:"
//	DEST_DISK   the bound disk
//
// COMPRESSED, RETRY_ENABLED and the like of Tinkerbell's action are not needed
// and not read.
//
// Both ends of the disk are zero from the first write on until the digests of
// what was received and of what the disk gives back are right; the first MiB
// comes last. A disk that was left half-written does not boot.
//
// Output: sha256 (as served), contentSHA256 (as written), bytes, readback,
// and firstSeen=true when no digest was declared.
func (t *attempt) image2disk(ctx context.Context) error {
	want, err := action.ImageDigest(t.env)
	if err != nil {
		return err
	}
	if want == "" {
		t.logf("warning: no IMG_SHA256 is given: whatever the server sends is written, and its digest is recorded as first seen")
	}
	for try := (backoff{max: t.agent.cfg.Backoff}); ; {
		err := t.writeImage(ctx, want)
		if !errors.Is(err, errChanged) || ctx.Err() != nil {
			return err
		}
		t.logf("%v: beginning again", err)
		if err := try.pause(ctx); err != nil {
			return err
		}
	}
}

// writeImage is one go at the whole image.
func (t *attempt) writeImage(ctx context.Context, want string) (err error) {
	began := time.Now()
	asked := ctx // ended by order or deadline alone
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	src, err := t.newSource(ctx, t.env["IMG_URL"], want != "")
	if err != nil {
		return err
	}
	defer src.Close()
	content, head, err := openImage(src)
	if err != nil {
		return fmt.Errorf("reading image %s: %w", src.shown, err)
	}
	defer content.Close()
	format := content.Format

	disk, dev, err := t.open(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	defer func() {
		if e := dev.Close(); e != nil && err == nil {
			err = fmt.Errorf("closing %s: %w", disk.Path, e)
		}
	}()
	if dev.Size() < 4*held {
		return fmt.Errorf("writing %s: a disk of %d bytes is too small", disk.Path, dev.Size())
	}
	if format == diskimage.Raw && src.total > dev.Size() {
		return fmt.Errorf("writing image %s to %s: the image has %d bytes, the disk %d: use a smaller image or a larger disk", src.shown, disk.Path, src.total, dev.Size())
	}
	t.logf("%s: %s, %d bytes", src.shown, format, src.total)

	w := newImageWriter(dev)
	t.agent.markWrote()
	if err := w.zeroEnds(); err != nil {
		return fmt.Errorf("zeroing both ends of %s: %w", disk.Path, err)
	}
	if format == diskimage.Raw {
		w.sum = nil // what is written is what is served: one digest does
	}
	t.track(max(src.total, 0), "writing", src.read.Load)
	if err := w.copy(ctx, cancel, io.MultiReader(bytes.NewReader(head), content)); err != nil {
		// A decompressor may call an end by order a damaged image.
		if asked.Err() != nil {
			err = context.Cause(asked)
		}
		return fmt.Errorf("writing image %s to %s, at byte %d: %w", src.shown, disk.Path, w.off, err)
	}
	served := hex.EncodeToString(src.sum.Sum(nil))
	written := served
	if w.sum != nil {
		written = hex.EncodeToString(w.sum.Sum(nil))
	}
	switch {
	case src.total >= 0 && src.read.Load() != src.total:
		return fmt.Errorf("reading image %s: %d bytes came, %d were announced", src.shown, src.read.Load(), src.total)
	case want != "" && served != want:
		return fmt.Errorf("verifying image %s: its SHA-256 is %s, not %s as planned: if it is on the Ingot server, compare it there (ingot image verify); "+
			"otherwise the file was replaced, or the declared digest is wrong", src.shown, served, want)
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", disk.Path, err)
	}
	wrote := time.Since(began).Seconds()
	t.logf("%d bytes written in %.1f s (%.1f MB/s), reading them back", w.off, wrote, float64(w.off)/1e6/wrote)
	back, err := w.readBack(ctx, func(done int64) { t.progress(done, w.off, "reading back") })
	if err != nil {
		return fmt.Errorf("reading %s back: %w", disk.Path, err)
	}
	if back != written {
		return fmt.Errorf("reading %s back: its SHA-256 is %s, %s was written", disk.Path, back, written)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := w.finish(); err != nil {
		// Better no boot sector than one nobody can vouch for; the disk may
		// refuse this, too.
		_ = w.zeroEnds()
		return fmt.Errorf("finishing %s: %w", disk.Path, err)
	}
	if err := dev.Reread(); err != nil {
		t.logf("warning: the kernel does not read the new partition table: %v", err)
	}
	t.output["sha256"], t.output["contentSHA256"] = served, written
	t.output["bytes"], t.output["readback"] = fmt.Sprint(w.off), "ok"
	t.output["disk"] = disk.Path
	if want == "" {
		t.output["firstSeen"] = "true"
		t.logf("warning: first seen: sha256 %s", served)
	}
	t.progress(w.off, w.off, "written and read back")
	return nil
}

// openImage begins to decompress an image, and refuses what is none before
// the disk is touched. head is what was read of the content for that.
func openImage(src io.Reader) (content *diskimage.Content, head []byte, err error) {
	if content, err = diskimage.Open(src); err != nil {
		return nil, nil, err
	}
	head = make([]byte, diskimage.HeadSize)
	n, err := fill(content, head)
	if errors.Is(err, io.EOF) {
		err = nil // a short image; the next read says so again
	}
	if head = head[:n]; err == nil && n == 0 {
		err = errors.New("the image is empty")
	}
	if err == nil {
		err = diskimage.Identify(head).Refusal()
	}
	if err != nil {
		return nil, nil, errors.Join(err, content.Close())
	}
	return content, head, nil
}

// imageWriter writes a stream to a disk from its beginning, except for the
// two ends of the disk, which it holds back.
type imageWriter struct {
	dev        Device
	off        int64 // bytes taken
	tailAt     int64 // where the held end begins
	head, tail []byte
	sum        hash.Hash // of the content; nil = nobody asks
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
			if err := w.put(p[:n], at); err != nil {
				return err
			}
		}
		p = p[n:]
		w.off += int64(n)
	}
	return nil
}

// put writes p at off; a long run of zeros by the device's own means.
func (w *imageWriter) put(p []byte, off int64) error {
	if len(p) >= mib && allZero(p) {
		return w.dev.Zero(off, int64(len(p)))
	}
	// Direct I/O takes whole pages; a shorter end goes through the page cache.
	whole := len(p) &^ (pageSize - 1)
	if whole > 0 {
		if _, err := w.dev.WriteAt(p[:whole], off); err != nil {
			return err
		}
	}
	if whole < len(p) {
		if _, err := w.dev.WriteAt(p[whole:], off+int64(whole)); err != nil {
			return err
		}
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
	n := min(w.off, held)
	ends := []struct {
		data []byte
		at   int64
	}{{w.tail[:max(w.off-w.tailAt, 0)], w.tailAt}, {w.head[:n], 0}}
	for _, end := range ends {
		if len(end.data) == 0 {
			continue
		}
		if err := w.put(end.data, end.at); err != nil {
			return err
		}
		if err := w.dev.Sync(); err != nil {
			return err
		}
		back := aligned(len(end.data))
		if _, err := w.dev.ReadAt(back, end.at); err != nil {
			return err
		}
		if !bytes.Equal(back, end.data) {
			return fmt.Errorf("the disk gives back other bytes than were written at %d", end.at)
		}
	}
	return nil
}
