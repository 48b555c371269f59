// Package imagefile opens the files of images. The server keeps most of these files in its image directory, under their
// digests. It serves the other files in place, from a share: a directory that is mounted on this host and belongs to
// another program.
package imagefile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Files opens the files of images. New returns one.
type Files struct {
	dir    string
	shares []string

	mu    sync.Mutex
	known map[string]*digested // keys: the paths of files that are served in place
}

// New returns a Files for an image directory and shares, which are absolute paths. Either may be empty.
func New(dir string, shares []string) *Files {
	return &Files{dir: dir, shares: shares, known: map[string]*digested{}}
}

// digested is what is known about the content of a file that is served in place.
type digested struct {
	mu    sync.Mutex // held while the file is read
	state state
	sum   string // digest of the content; "" while it is not known
}

// state is the part of a file's status that changes whenever the file is written. ctime also reveals a writer that
// sets mtime back.
type state struct {
	size         int64
	mtime, ctime time.Time
}

func stateOf(f *os.File) (state, error) {
	info, err := f.Stat()
	if err != nil {
		return state{}, err
	}
	s := state{size: info.Size(), mtime: info.ModTime()}
	if x, ok := info.Sys().(*syscall.Stat_t); ok {
		s.ctime = time.Unix(x.Ctim.Unix())
	}
	return s, nil
}

// A Shared is an open file in a share.
type Shared struct {
	*os.File
	state state
}

// Place returns the record of the file that the inventory stores; path is the path of the file.
func (s Shared) Place(path string) *inventory.InPlace {
	return &inventory.InPlace{Path: path, ModTime: s.state.mtime}
}

// SHA256 returns the digest of the file, or inventory.ErrConflict if the file has been written since it was
// opened. It does not move the file's offset.
func (s Shared) SHA256() (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(s.File, 0, s.state.size)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), s.Unchanged()
}

// Unchanged returns inventory.ErrConflict if the file was written since it was opened.
func (s Shared) Unchanged() error {
	now, err := stateOf(s.File)
	if err == nil && now != s.state {
		err = fmt.Errorf("%s is being written: try again when it is complete: %w", s.Name(), inventory.ErrConflict)
	}
	return err
}

// OpenShared opens a file by its absolute path. The error is inventory.ErrInvalid if the path is not below one of the
// shares, if a link leads out of the share, or if the file is not a regular file. The error is inventory.ErrNotFound if
// the file is missing.
func (f *Files) OpenShared(path string) (Shared, error) {
	share, name, err := f.locate(path)
	if err != nil {
		return Shared{}, err
	}
	root, err := os.OpenRoot(share)
	if err != nil {
		return Shared{}, missing(path, err)
	}
	defer root.Close()
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // without O_NONBLOCK, opening a FIFO would block
	if err != nil {
		return Shared{}, missing(path, err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: %w", path, inventory.ErrInvalid)
	}
	out := Shared{File: file}
	if err == nil {
		out.state, err = stateOf(file)
	}
	if err != nil {
		return Shared{}, errors.Join(err, file.Close())
	}
	return out, nil
}

// locate returns the share that contains path, and the name of the file relative to the share.
func (f *Files) locate(path string) (share, name string, err error) {
	if len(f.shares) == 0 {
		return "", "", fmt.Errorf("%s: images.shares is not configured: list the file's directory there: %w", path, inventory.ErrInvalid)
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", "", fmt.Errorf("invalid path %q; must be absolute, without . and ..: %w", path, inventory.ErrInvalid)
	}
	for _, share := range f.shares {
		if name, err := filepath.Rel(share, path); err == nil && filepath.IsLocal(name) && name != "." {
			return share, name, nil
		}
	}
	return "", "", fmt.Errorf("%s is not in a directory of images.shares (%s): %w", path, strings.Join(f.shares, ", "), inventory.ErrInvalid)
}

func missing(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist; is the share mounted? %w", path, inventory.ErrNotFound)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", err, inventory.ErrInvalid)
	}
	// os.Root has no distinct error for a link that leaves the share.
	return fmt.Errorf("opening %s in its share: %w: %w", path, err, inventory.ErrInvalid)
}

// Open opens the file of an image. If the file is missing, the error is inventory.ErrNotFound. If the file is served in
// place and is missing or has other content than when it was added, the error is inventory.ErrConflict. If the size or
// the times of a file in place have changed, Open first reads the whole file.
func (f *Files) Open(i inventory.Image) (*os.File, error) {
	if i.InPlace != nil {
		return f.openInPlace(i)
	}
	if f.dir == "" {
		return nil, fmt.Errorf("this server has no image directory: %w", inventory.ErrUnavailable)
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := root.Open(i.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %q: the file is missing: %w", i.Name, inventory.ErrNotFound)
	}
	return file, err
}

// OpenDigest opens the file whose digest is sum. If the file is not in the image directory, OpenDigest looks for an
// image with that digest that is served in place, among the images that the function all returns.
func (f *Files) OpenDigest(
	ctx context.Context, name, sum string, all func(context.Context) ([]inventory.Image, error),
) (*os.File, error) {
	file, err := f.Open(inventory.Image{Name: name, File: sum, SHA256: sum})
	if !errors.Is(err, inventory.ErrNotFound) {
		return file, err
	}
	images, listErr := all(ctx)
	if listErr != nil {
		return nil, listErr
	}
	for _, i := range images {
		if i.InPlace != nil && i.SHA256 == sum {
			return f.openInPlace(i)
		}
	}
	return nil, err
}

func (f *Files) openInPlace(i inventory.Image) (*os.File, error) {
	file, err := f.OpenShared(i.InPlace.Path)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil, fmt.Errorf("image %q: %s does not exist: mount the share, or restore the file: %w",
			i.Name, i.InPlace.Path, inventory.ErrConflict)
	}
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", i.Name, err)
	}
	sum, err := f.digest(file, i)
	if err == nil && sum != i.SHA256 {
		err = fmt.Errorf("image %q: %s has changed since it was added (sha256 %.12s, now %.12s): restore the file, or add the "+
			"image again and start the run again: %w", i.Name, i.InPlace.Path, i.SHA256, sum, inventory.ErrConflict)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file.File, nil
}

// digest returns the SHA-256 of a file that is served in place. It reads the file only if the file has changed since
// its digest was determined.
func (f *Files) digest(file Shared, i inventory.Image) (string, error) {
	f.mu.Lock()
	d := f.known[i.InPlace.Path]
	if d == nil {
		d = &digested{}
		f.known[i.InPlace.Path] = d
	}
	f.mu.Unlock()

	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sum == "" && file.state.size == i.Size && file.state.mtime.Equal(i.InPlace.ModTime) {
		d.state, d.sum = file.state, i.SHA256 // unchanged since it was added
	}
	if d.sum != "" && d.state == file.state {
		return d.sum, nil
	}
	// Read on even if the client has disconnected: the next client waits for this result and would otherwise have to
	// start again.
	sum, err := file.SHA256()
	if err != nil {
		return "", fmt.Errorf("image %q: %w", i.Name, err)
	}
	d.state, d.sum = file.state, sum
	return sum, nil
}
