package siterole

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

	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// Image files are sent to the target before the databases. An interrupted transfer is resumed.

// imagePeer is the peer that images are sent to.
type imagePeer interface {
	Image(ctx context.Context, img inventory.Image) (ImageState, error)
	SendImage(ctx context.Context, img inventory.Image, offset int64, r io.Reader) (ImageState, error)
}

// imageSender sends image files from dir to a peer.
type imageSender struct {
	peer     imagePeer
	dir      string
	progress func(text string)
}

// sendMissing sends the files that the peer does not have, and returns how many it has sent.
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

// send sends the file of an image. It returns false if the peer already has the whole file.
func (s imageSender) send(ctx context.Context, img inventory.Image) (bool, error) {
	st, err := s.peer.Image(ctx, img)
	if err != nil || st.Done {
		return false, err
	}
	if img.InPlace != nil {
		return false, fmt.Errorf("the image is served in place, but the target has another file at %s: %w", img.InPlace.Path,
			inventory.ErrConflict)
	}

	from := st.Size
	if from > img.Size {
		from = 0 // the peer's partial file belongs to another image
	}

	err = s.sendFrom(ctx, img, from)
	if from > 0 && errors.Is(err, inventory.ErrConflict) {
		// The partial file of the peer may belong to another image: send the whole file. If that fails as well, the file on this host
		// differs from the inventory.
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
		return fmt.Errorf("the file has %d bytes, but the inventory lists %d (check it with ingot image verify %s): %w",
			here.Size(), img.Size, img.Name, inventory.ErrInvalid)
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}

	r := &progressReader{r: f, done: from, last: time.Now(), report: func(done int64) {
		s.progress(fmt.Sprintf("image %s: %s of %s", img.Name, human.Size(done), human.Size(img.Size)))
	}}
	st, err := s.peer.SendImage(ctx, img, from, r)
	if err == nil && !st.Done {
		err = fmt.Errorf("the peer received only %d of %d bytes: %w", st.Size, img.Size, inventory.ErrUnreachable)
	}

	return err
}

// progressReader reports the number of bytes read, at most once a second.
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

// imagesToMove returns the images that have a file, and the files of deleted images that open runs still need.
func (m *Mover) imagesToMove(ctx context.Context, s Store) ([]inventory.Image, error) {
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
		st, err := os.Stat(filepath.Join(m.cfg.ImageDir(), p.SHA256))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the run needs this file, so it will fail and report that
		}
		if err != nil {
			return nil, err
		}
		all = append(all, inventory.Image{Name: p.Name, File: p.SHA256, SHA256: p.SHA256, Size: st.Size()})
	}

	return all, nil
}

// partialImage returns the path of an image's file until all of the file is received. The path contains the digest: if the image changes,
// the transfer starts over.
func (r receiver) partialImage(img inventory.Image) string {
	return filepath.Join(r.cfg.ImageDir(), partialName(img.File, img.SHA256[:16]))
}

func partialName(file, digest string) string { return ".upload-peer-" + digest + "-" + file }

// removePartialImages removes all partial transfers of file, except the one at the path keep.
func (r receiver) removePartialImages(file, keep string) error {
	all, err := os.ReadDir(r.cfg.ImageDir())
	if err != nil {
		return err
	}

	for _, e := range all {
		path := filepath.Join(r.cfg.ImageDir(), e.Name())
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

// Image returns how many bytes of an image's file this host has. Done means that the file is complete and has the image's digest. A
// complete file of that name with another digest does not count; it is kept until the new file is verified.
func (r receiver) Image(ctx context.Context, img inventory.Image) (st ImageState, err error) {
	if img.InPlace != nil {
		return r.imageInPlace(img)
	}
	whole := filepath.Join(r.cfg.ImageDir(), img.File)
	sum, err := durablefile.Digest(ctx, whole)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return st, err
	}

	at := r.partialImage(img)
	if st.Done = sum == img.SHA256; st.Done {
		at = whole
	}
	st.Size, err = durablefile.Size(at)
	return st, err
}

// imageInPlace reports whether the file of an image, on a share of this host, has the image's digest. Such a file is never sent.
func (r receiver) imageInPlace(img inventory.Image) (st ImageState, err error) {
	f, err := imagefile.New("", r.cfg.Images.Shares).OpenShared(img.InPlace.Path)
	if err != nil {
		return st, fmt.Errorf("the file of an image that is served in place cannot be opened here: mount the share at the same path, "+
			"and list it in images.shares of this host: %w: %w", err, inventory.ErrConflict)
	}
	defer f.Close()
	sum, err := f.SHA256()
	return ImageState{Done: sum == img.SHA256}, err
}

// SendImage appends content to the partial file, whose size must be offset; with offset 0 it starts a new partial file. When the file is
// complete, it verifies the file and renames it to its final name.
func (r receiver) SendImage(ctx context.Context, img inventory.Image, offset int64, content io.Reader) (ImageState, error) {
	dir := r.cfg.ImageDir()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return ImageState{}, err
	}

	free, err := diskreserve.Free(dir)
	if err != nil {
		return ImageState{}, err
	}
	if need := img.Size - offset + r.cfg.MinFree<<20; free < need {
		return ImageState{}, fmt.Errorf("image file %q needs %s of free space, but only %s are free: %w",
			img.File, human.Size(need), human.Size(free), inventory.ErrConflict)
	}

	partial := r.partialImage(img)
	if err := r.removePartialImages(img.File, partial); err != nil {
		return ImageState{}, err
	}

	n, err := appendImage(partial, img, offset, content)
	if err != nil || offset+n < img.Size {
		return ImageState{Size: offset + n}, err
	}

	sum, err := durablefile.Digest(ctx, partial)
	if err != nil {
		return ImageState{}, err
	}
	if sum != img.SHA256 {
		err := fmt.Errorf("image file %q has the SHA-256 %.12s instead of %.12s: %w", img.File, sum, img.SHA256, inventory.ErrConflict)
		return ImageState{}, errors.Join(err, os.Remove(partial))
	}
	err = errors.Join(os.Chmod(partial, 0o644), os.Rename(partial, filepath.Join(dir, img.File)), durablefile.SyncDir(dir))
	if err != nil {
		return ImageState{}, err
	}

	return ImageState{Size: img.Size, Done: true}, nil
}

// appendImage appends r to the file at path and returns how many bytes it wrote. offset must be the size of the file, or 0, with which
// the file is emptied first.
func appendImage(path string, img inventory.Image, offset int64, r io.Reader) (n int64, err error) {
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
		return 0, fmt.Errorf("image file %q has %d bytes on this server, but the request's offset is %d: %w",
			img.File, st.Size(), offset, inventory.ErrConflict)
	}
	if _, err := out.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	if n, err = io.Copy(out, io.LimitReader(r, img.Size-offset)); err != nil {
		return n, err
	}

	return n, out.Sync()
}
