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

// An extraction puts the entries of an archive below a folder. Links, whether the
// archive brought them or not, are resolved as if the folder were /, so that no entry
// is written outside of it.
type extraction struct {
	ctx     context.Context
	in      *tar.Reader
	root    Tree
	folders []*tar.Header // names and times, in their order
	Entries int
	Bytes   int64 // of contents
}

// NewExtraction returns the extraction of a tar archive. It ends with ctx.
func NewExtraction(ctx context.Context, archive io.Reader) *extraction {
	return &extraction{ctx: ctx, in: tar.NewReader(archive)}
}

// ExtractInto extracts everything into the folder at dir in root.
func (x *extraction) ExtractInto(root Tree, dir string) error {
	inside := File{Path: path.Join("/", dir, "entry"), DirMode: 0o755}
	fd, err := inside.parent(root, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // synced with the file system
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
			return fmt.Errorf("reading the archive behind %d entries: %w", x.Entries, err)
		}
		if err := x.extract(h); err != nil {
			return fmt.Errorf("entry %d, %q: %w", x.Entries+1, h.Name, err)
		}
		x.Entries++
	}
	if x.Entries == 0 {
		return errors.New("the archive is empty, or not a tar archive")
	}

	// What came into a folder later has changed its time.
	for _, h := range x.folders {
		if err := x.at(h, setTime); err != nil {
			return fmt.Errorf("setting the time of %q: %w", h.Name, err)
		}
	}
	return nil
}

// extract makes one entry with all that its header says.
func (x *extraction) extract(h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	return x.at(h, func(parent int, base string, h *tar.Header) error {
		if h.Typeflag == tar.TypeDir {
			x.folders = append(x.folders, &tar.Header{Name: h.Name, ModTime: h.ModTime})
			if err := makeFolder(parent, base); err != nil {
				return err
			}
			return setAttributes(parent, base, h)
		}

		if base == "." {
			return errors.New("the folder itself is an entry that is not a folder")
		}
		if err := unix.Unlinkat(parent, base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("removing what is there: %w", err)
		}
		if h.Typeflag == tar.TypeLink {
			return x.link(parent, base, h.Linkname)
		}
		if err := x.make(parent, base, h); err != nil {
			return err
		}
		if err := setAttributes(parent, base, h); err != nil {
			return err
		}
		return setTime(parent, base, h)
	})
}

// at calls do with the folder that h goes into and its name there; "." for the
// root itself. Folders that are missing are made.
func (x *extraction) at(h *tar.Header, do func(parent int, base string, h *tar.Header) error) error {
	name, err := diskimage.EntryPath(h.Name)
	if err != nil {
		return err
	}
	parent, err := File{Path: name, DirMode: 0o755}.parent(x.root, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }() // synced with the file system

	base := path.Base(name)
	if name == "/" {
		base = "."
	}
	return do(parent, base, h)
}

// link makes a hard link to an entry that was extracted before.
func (x *extraction) link(parent int, base, target string) error {
	name, err := diskimage.EntryPath(target)
	if err != nil {
		return fmt.Errorf("its target: %w", err)
	}
	from, err := File{Path: name}.parent(x.root, false)
	if err != nil {
		return fmt.Errorf("its target %q: %w", target, err)
	}
	defer func() { _ = unix.Close(from) }() // nothing is written through it
	if err := unix.Linkat(from, path.Base(name), parent, base, 0); err != nil {
		return fmt.Errorf("linking it to %q: %w", target, err)
	}
	return nil
}
