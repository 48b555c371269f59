package actions

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
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// image2disk writes an image to the bound disk.
//
//	IMG_URL     where the image is; raw, gzip, zstd, xz or bzip2, recognized by its content
//	IMG_SHA256  digest of the file as served, with or without "sha256:"
//	DEST_DISK   the bound disk, or a partition of it
//	PARTITION   which partition of the disk (see action.ParsePartition); default: the whole disk
//
// COMPRESSED, RETRY_ENABLED and similar variables of Tinkerbell's action are ignored.
//
// A partition must be there already. Nothing outside of it is written, so its type and its UUID stay.
//
// The first MiB and the last MiB of the disk or partition stay zero until two digests are correct: the digest of the received file, and
// the digest of the data that was read back. The first MiB is written last. Therefore neither a disk nor a partition with an incomplete
// image boots.
//
// Output: sha256 (as served), contentSHA256 (as written), bytes, readback, and firstSeen=true if IMG_SHA256 is not given.
func image2disk(ctx context.Context, t *Task) error {
	want, err := action.SHA256(t.env, "IMG_SHA256")
	if err != nil {
		return err
	}
	if want == "" {
		t.logf("warning: IMG_SHA256 is not set: the agent writes any image that the server sends, " +
			"and records the image's digest as first seen")
	}

	return writeFrom(ctx, t, want, func(ctx context.Context) (*fetch.Source, error) {
		return t.opener().OpenAddress(ctx, t.env["IMG_URL"], want != "")
	})
}

// writeFrom writes the image that open returns. If the image changes on its server during the download, it starts again from the beginning.
// want is the digest that the file must have, as the server sends it; "" accepts any.
func writeFrom(ctx context.Context, t *Task, want string, open openSource) error {
	for try := (clock.Backoff{Max: t.machine.Backoff}); ; {
		err := writeImage(ctx, t, want, open)
		if !errors.Is(err, fetch.ErrChanged) || ctx.Err() != nil {
			return err
		}
		t.logf("%v: starting over", err)
		if err := try.Pause(ctx); err != nil {
			return err
		}
	}
}

// An openSource opens a file on a server for reading.
type openSource func(ctx context.Context) (*fetch.Source, error)

// writeImage tries once to write the whole image, and verifies it.
func writeImage(ctx context.Context, t *Task, want string, open openSource) (err error) {
	asked := ctx // unlike ctx, it does not end when writing fails
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	img, err := openImage(ctx, open)
	if err != nil {
		return err
	}
	defer img.close()
	src := img.src

	dev, err := t.openTarget(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	defer closeDisk(dev, dev.path, &err)
	if err := img.fits(dev); err != nil {
		return err
	}

	t.logf("%s: %s, %d bytes", src.Shown, img.content.Format, src.Total)

	w := newImageWriter(dev)
	if img.content.Format == diskimage.Raw {
		w.sum = nil // the content is the file itself, so the digest of the file suffices
	}

	began := time.Now()
	t.machine.Wrote()
	if err := w.zeroEnds(); err != nil {
		return fmt.Errorf("zeroing both ends of %s: %w", dev.path, err)
	}

	t.track(max(src.Total, 0), "writing", src.Received.Load)
	if err := w.copy(ctx, cancel, img); err != nil {
		// If the download was stopped, the decompressor may report a damaged image: return the cause instead.
		if asked.Err() != nil {
			err = context.Cause(asked)
		}
		return fmt.Errorf("writing image %s to %s, at byte %d: %w", src.Shown, dev.path, w.off, err)
	}

	served, err := img.checkServed(want)
	if err != nil {
		return err
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", dev.path, err)
	}

	took := time.Since(began).Seconds()
	t.logf("wrote %d bytes in %.1f s (%.1f MB/s); reading them back", w.off, took, float64(w.off)/1e6/took)

	written := served
	if w.sum != nil {
		written = hex.EncodeToString(w.sum.Sum(nil))
	}
	if err := proveImage(ctx, t, w, dev.path, written); err != nil {
		return err
	}

	reportImage(t, w, dev.path, served, written, want == "")
	return nil
}

// fits returns an error if the disk or partition is too small for this image or for any image. It also returns one if the size of the
// disk's sectors is not the size for which the image's partition table was made, or if an image with a partition table is for a partition.
func (i *imageStream) fits(dev target) error {
	size := dev.Size()
	if size < 4*held {
		return fmt.Errorf("writing %s: the %s has only %d bytes, which is too small for any image", dev.path, dev.kind, size)
	}
	if i.content.Format == diskimage.Raw && i.src.Total > size {
		return fmt.Errorf("writing image %s to %s: the image has %d bytes, but the %s has only %d: use a smaller image or a larger %s",
			i.src.Shown, dev.path, i.src.Total, dev.kind, size, dev.kind)
	}

	err := action.ImageFits(i.layout.SectorSize, i.layout.End, action.Disk{Size: size, SectorSize: dev.SectorSize()})
	if dev.kind == partitionTarget {
		err = nil
		if i.layout != (diskimage.Layout{}) && !i.fileSystem {
			err = errors.New("the image has a partition table, so firmware and kernel would not find what is in it on a partition: " +
				"name the disk, or use an image of one file system")
		}
	}
	if err != nil {
		return fmt.Errorf("writing image %s to %s: %w", i.src.Shown, dev.path, err)
	}
	return nil
}

// checkServed returns the digest of the file as the server has sent it. It returns an error if the file is incomplete, or if its digest is
// not want; want "" accepts any digest.
func (i *imageStream) checkServed(want string) (string, error) {
	src, served := i.src, hex.EncodeToString(i.sum.Sum(nil))
	switch {
	case src.Total >= 0 && src.Received.Load() != src.Total:
		return "", fmt.Errorf("reading %s: received %d bytes of %d", src.Shown, src.Received.Load(), src.Total)
	case want != "" && served != want:
		return "", fmt.Errorf("verifying %s: the image's SHA-256 is %s, but the plan has %s: "+
			"if the image is on the Ingot server, verify it there (ingot image verify); "+
			"otherwise the file was replaced, or IMG_SHA256 is wrong", src.Shown, served, want)
	}
	return served, nil
}

// proveImage reads back the data that w has written, and compares its digest with the given one. If they are equal, it writes the two ends
// of the disk or partition; otherwise it returns an error.
func proveImage(ctx context.Context, t *Task, w *imageWriter, path, written string) error {
	back, err := w.readBack(ctx, func(done int64) { t.progress(done, w.off, "reading back") })
	if err != nil {
		return fmt.Errorf("reading %s back: %w", path, err)
	}
	if back != written {
		return fmt.Errorf("reading %s back: the SHA-256 of the data is %s, but %s was written", path, back, written)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}

	if err := w.finish(); err != nil {
		// Make sure that the disk or partition does not boot. Ignore an error, because the disk may refuse these writes, too.
		_ = w.zeroEnds()
		return fmt.Errorf("finishing %s: %w", path, err)
	}
	t.reread(w.dev)
	return nil
}

// reportImage sets the output of the action image2disk.
func reportImage(t *Task, w *imageWriter, path, served, written string, first bool) {
	t.output["sha256"], t.output["contentSHA256"] = served, written
	t.output["bytes"], t.output["readback"] = fmt.Sprint(w.off), "ok"
	t.output["disk"] = path
	if first {
		t.output["firstSeen"] = "true"
		t.logf("warning: the image's digest was not given; first seen: sha256 %s", served)
	}
	t.progress(w.off, w.off, "written and read back")
}

// imageStream reads the content of an image. Separate goroutines fetch, hash and decompress the image.
type imageStream struct {
	io.Reader // reads the content

	src     *fetch.Source
	sum     hash.Hash // hash of the file as the server sends it; complete when all content was read
	served  *blockdev.ReadAhead
	content *diskimage.Content
	layout  diskimage.Layout
	// fileSystem: the content is a file system, although its boot sector may look like a partition table
	fileSystem bool
	cancel     func()
}

// openImage starts to read an image. If the file is not a disk image, it returns an error. At this time, nothing has been written to the
// disk yet. The caller must close the stream.
func openImage(ctx context.Context, open openSource) (*imageStream, error) {
	return openStream(ctx, "image", open, (*imageStream).open)
}

// openStream opens a file with open and starts to read it. begin must set the field content of the stream. For errors, what is the kind of
// the file: "image" or "archive".
func openStream(ctx context.Context, what string, open openSource, begin func(*imageStream) error) (*imageStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	src, err := open(ctx)
	if err != nil {
		cancel()
		return nil, err
	}

	i := &imageStream{src: src, sum: sha256.New(), cancel: cancel}
	i.served = blockdev.StartReadAhead(src, i.sum, 3, blockdev.MiB)
	if err := begin(i); err != nil {
		i.close()
		return nil, fmt.Errorf("reading %s %s: %w", what, src.Shown, err)
	}
	return i, nil
}

// open reads the beginning of the image's content, and returns an error if it is not a disk image.
func (i *imageStream) open() (err error) {
	if i.content, err = diskimage.Open(i.served); err != nil {
		return err
	}

	head := make([]byte, diskimage.HeadSize)
	n, err := blockdev.Fill(i.content, head)
	if errors.Is(err, io.EOF) {
		err = nil // the image is shorter than head; the next read returns io.EOF again
	}
	if head = head[:n]; err == nil && n == 0 {
		err = errors.New("the image is empty")
	}
	kind := diskimage.Identify(head)
	if err == nil {
		err = kind.Refusal()
	}
	i.fileSystem = kind.FileSystem
	i.layout = diskimage.ReadLayout(head)
	i.Reader = io.MultiReader(bytes.NewReader(head), i.content)
	return err
}

// close ends the download and waits until the goroutines of the stream have ended.
func (i *imageStream) close() {
	i.cancel()
	if i.content != nil {
		_ = i.content.Close() // all needed data was read
	}
	i.served.Close()
	i.src.Close()
}
