package filesys

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"golang.org/x/sys/unix"
)

// An extraction writes the entries of an archive below a folder. Links in that folder, extracted or older, are resolved as if the
// folder were /, so that no entry is written outside of the folder.
type extraction struct {
	ctx     context.Context
	in      *tar.Reader
	root    Tree
	folders []*tar.Header // names and times of the extracted folders, in order
	layer   *layer        // nil for an archive that is not a layer of a container image
	Entries int
	Bytes   int64 // total size of all files
}

// NewExtraction returns the extraction of a tar archive. The extraction fails once ctx has ended.
func NewExtraction(ctx context.Context, archive io.Reader) *extraction {
	return &extraction{ctx: ctx, in: tar.NewReader(archive)}
}

// ExtractInto extracts all entries into the folder dir of root.
func (x *extraction) ExtractInto(root Tree, dir string) error {
	inside := File{Path: path.Join("/", dir, "entry"), DirMode: 0o755}
	fd, err := inside.parent(root, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // the file system is synced when it is unmounted
	x.root = Tree{fd}

	for {
		if err := context.Cause(x.ctx); err != nil {
			return err
		}
		h, err := x.in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading the archive after %d entries: %w", x.Entries, err)
		}
		if err := x.extract(h); err != nil {
			return fmt.Errorf("entry %d (%q): %w", x.Entries+1, h.Name, err)
		}
		x.Entries++
	}
	if x.Entries == 0 && x.layer == nil {
		return errors.New("the archive is empty, or is not a tar archive")
	}

	// Set the times of folders last: each entry that was extracted into a folder has changed the folder's time.
	for _, h := range x.folders {
		if err := x.at(h, setTime); err != nil {
			return fmt.Errorf("setting the time of %q: %w", h.Name, err)
		}
	}
	return nil
}

// extract creates one entry with all properties in its header.
func (x *extraction) extract(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	return x.at(h, func(parent int, base string, h *tar.Header) error {
		if done, err := x.layer.apply(parent, base, h); done || err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			x.folders = append(x.folders, &tar.Header{Typeflag: tar.TypeDir, Name: h.Name, ModTime: h.ModTime})
			if err := makeFolder(parent, base); err != nil {
				return err
			}
			return x.setAttributes(parent, base, h)
		}

		if base == "." {
			return errors.New("the archive's root entry must be a folder")
		}
		if err := unix.Unlinkat(parent, base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("removing the existing file: %w", err)
		}
		if h.Typeflag == tar.TypeLink {
			return x.link(parent, base, h.Linkname)
		}
		if err := x.make(parent, base, h); err != nil {
			return err
		}
		if err := x.setAttributes(parent, base, h); err != nil {
			return err
		}
		return setTime(parent, base, h)
	})
}

// at opens the parent folder of the entry h, and creates it if it is missing. It then calls do with this folder and the name of the
// entry in it; for the root itself, the name is ".".
func (x *extraction) at(h *tar.Header, do func(parent int, base string, h *tar.Header) error) error {
	name, err := diskimage.EntryPath(h.Name)
	if err != nil {
		return err
	}
	parent, err := File{Path: name, DirMode: 0o755}.parent(x.root, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }() // the file system is synced when it is unmounted

	base := path.Base(name)
	if name == "/" {
		base = "."
	}
	return do(parent, base, h)
}

// link creates a hard link to an entry that was extracted earlier.
func (x *extraction) link(parent int, base, target string) error {
	name, err := diskimage.EntryPath(target)
	if err != nil {
		return fmt.Errorf("link target: %w", err)
	}
	from, err := File{Path: name}.parent(x.root, false)
	if err != nil {
		return fmt.Errorf("link target %q: %w", target, err)
	}
	defer func() { _ = unix.Close(from) }() // no data is written through from
	if err := unix.Linkat(from, path.Base(name), parent, base, 0); err != nil {
		return fmt.Errorf("making a hard link to %q: %w", target, err)
	}
	return nil
}
