package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/durable"
	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/internal/reserve"
	"github.com/ingotmetal/ingot/inventory"
)

// Image files go to the target before the site does, by digest. A transfer that
// broke off continues where it ended.

// imagePeer is where images are sent.
type imagePeer interface {
	Image(ctx context.Context, file, digest string) (ImageState, error)
	SendImage(ctx context.Context, f ImageFile, offset int64, r io.Reader) (ImageState, error)
}

// An ImageFile is the file of an image.
type ImageFile struct {
	Name   string
	Digest string // SHA-256, hex
	Size   int64
}

// An imageSender sends image files from dir to a peer.
type imageSender struct {
	peer     imagePeer
	dir      string
	progress func(text string)
}

// sendMissing sends the files that the peer lacks, and returns how many.
func (s imageSender) sendMissing(ctx context.Context, images []inventory.Image) (sent int, err error) {
	for i, img := range images {
		s.progress(fmt.Sprintf("image %d of %d, %s", i+1, len(images), img.Name))
		did, err := s.send(ctx, img)
		if err != nil {
			return sent, fmt.Errorf("image %q: %w", img.Name, err)
		}
		if did {
			sent++
		}
	}
	return sent, nil
}

// send sends the file of an image; false: the peer had all of it.
func (s imageSender) send(ctx context.Context, img inventory.Image) (bool, error) {
	st, err := s.peer.Image(ctx, img.File, img.SHA256)
	if err != nil || st.Done {
		return false, err
	}

	from := st.Size
	if from > img.Size {
		from = 0 // the peer has the start of another file
	}

	err = s.sendFrom(ctx, img, from)
	if from > 0 && errors.Is(err, inventory.ErrConflict) {
		// The peer had the start of another file. If the file fails from its first
		// byte on, too, then it is not what the inventory says.
		err = s.sendFrom(ctx, img, 0)
	}

	return true, err
}

func (s imageSender) sendFrom(ctx context.Context, img inventory.Image, from int64) error {
	f, err := os.Open(filepath.Join(s.dir, img.File))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	here, err := f.Stat()
	if err != nil {
		return err
	}
	if here.Size() != img.Size {
		return fmt.Errorf("its file has %d bytes and the inventory says %d (ingot image verify %s): %w",
			here.Size(), img.Size, img.Name, inventory.ErrInvalid)
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}

	r := &progressReader{r: f, done: from, last: time.Now(), report: func(done int64) {
		s.progress(fmt.Sprintf("image %s: %s of %s", img.Name, human.Size(done), human.Size(img.Size)))
	}}
	st, err := s.peer.SendImage(ctx, ImageFile{img.File, img.SHA256, img.Size}, from, r)
	if err == nil && !st.Done {
		err = fmt.Errorf("the peer has %d of %d bytes: %w", st.Size, img.Size, inventory.ErrUnreachable)
	}

	return err
}

// progressReader reports what was read, at most once a second.
type progressReader struct {
	r      io.Reader
	done   int64
	last   time.Time
	report func(done int64)
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if p.done += int64(n); time.Since(p.last) > time.Second {
		p.last = time.Now()
		p.report(p.done)
	}
	return n, err
}

// imagesToMove returns the images that have a file, and the files that open runs
// have planned and that no image has any more.
func (h *Host) imagesToMove(ctx context.Context, s Store) ([]inventory.Image, error) {
	all, err := s.Images(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(i inventory.Image) bool { return i.File == "" })
	planned, err := s.PlannedImages(ctx)
	if err != nil {
		return nil, err
	}

	for _, p := range planned {
		if slices.ContainsFunc(all, func(i inventory.Image) bool { return i.SHA256 == p.SHA256 }) {
			continue
		}
		st, err := os.Stat(filepath.Join(h.cfg.ImageDir(), p.SHA256))
		if errors.Is(err, fs.ErrNotExist) {
			continue // its run will fail and say so
		}
		if err != nil {
			return nil, err
		}
		all = append(all, inventory.Image{Name: p.Name, File: p.SHA256, SHA256: p.SHA256, Size: st.Size()})
	}

	return all, nil
}

// partialImage is where the file of an image is until it is whole. The digest is in
// its name, so that a file starts again when its image changes.
func (h receiver) partialImage(file, digest string) string {
	return filepath.Join(h.cfg.ImageDir(), partialName(file, digest[:16]))
}

func partialName(file, digest string) string { return ".upload-peer-" + digest + "-" + file }

// removePartialImages removes what was received of a file with other digests than
// that in the path keep.
func (h receiver) removePartialImages(file, keep string) error {
	all, err := os.ReadDir(h.cfg.ImageDir())
	if err != nil {
		return err
	}

	for _, e := range all {
		path := filepath.Join(h.cfg.ImageDir(), e.Name())
		ours, err := filepath.Match(partialName(file, strings.Repeat("?", 16)), e.Name())
		if err != nil {
			return err
		}
		if ours && path != keep {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}

	return nil
}

// Image reports how much of a file this host has; done only if its digest is right.
func (h receiver) Image(ctx context.Context, file, digest string) (ImageState, error) {
	whole := filepath.Join(h.cfg.ImageDir(), file)
	st, err := os.Stat(whole)
	switch {
	case err == nil:
		if sum, err := durable.Digest(ctx, whole); err != nil || sum == digest {
			return ImageState{Size: st.Size(), Done: err == nil}, err
		}
		// An earlier image of that name. It is replaced when the new one is proven.
	case !errors.Is(err, fs.ErrNotExist):
		return ImageState{}, err
	}

	st, err = os.Stat(h.partialImage(file, digest))
	if errors.Is(err, fs.ErrNotExist) {
		return ImageState{}, nil
	}
	if err != nil {
		return ImageState{}, err
	}

	return ImageState{Size: st.Size()}, nil
}

// SendImage appends to a file; offset 0 starts it again. With its last byte the
// file is proven and gets its name.
func (h receiver) SendImage(ctx context.Context, f ImageFile, offset int64, r io.Reader) (ImageState, error) {
	dir := h.cfg.ImageDir()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return ImageState{}, err
	}

	free, err := reserve.Free(dir)
	if err != nil {
		return ImageState{}, err
	}
	if need := f.Size - offset + h.cfg.MinFree<<20; free < need {
		return ImageState{}, fmt.Errorf("image file %q needs %s and %s are free: %w",
			f.Name, human.Size(need), human.Size(free), inventory.ErrConflict)
	}

	partial := h.partialImage(f.Name, f.Digest)
	if err := h.removePartialImages(f.Name, partial); err != nil {
		return ImageState{}, err
	}

	n, err := appendImage(partial, f, offset, r)
	if err != nil || offset+n < f.Size {
		return ImageState{Size: offset + n}, err
	}

	sum, err := durable.Digest(ctx, partial)
	if err != nil {
		return ImageState{}, err
	}
	if sum != f.Digest {
		err := fmt.Errorf("image file %q has the digest %.12s and not %.12s: %w", f.Name, sum, f.Digest, inventory.ErrConflict)
		return ImageState{}, errors.Join(err, os.Remove(partial))
	}
	err = errors.Join(os.Chmod(partial, 0o644), os.Rename(partial, filepath.Join(dir, f.Name)), durable.SyncDir(dir))
	if err != nil {
		return ImageState{}, err
	}

	return ImageState{Size: f.Size, Done: true}, nil
}

// appendImage writes from offset on, which must be the end of the file, and returns
// how many bytes it wrote.
func appendImage(path string, f ImageFile, offset int64, r io.Reader) (n int64, err error) {
	flags := os.O_WRONLY | os.O_CREATE
	if offset == 0 {
		flags |= os.O_TRUNC
	}

	out, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()

	st, err := out.Stat()
	if err != nil {
		return 0, err
	}
	if st.Size() != offset {
		return 0, fmt.Errorf("image file %q has %d bytes here, and offset %d was sent: %w",
			f.Name, st.Size(), offset, inventory.ErrConflict)
	}
	if _, err := out.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	if n, err = io.Copy(out, io.LimitReader(r, f.Size-offset)); err != nil {
		return n, err
	}

	return n, out.Sync()
}
