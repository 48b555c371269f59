package agent

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/diskimage"
)

// archive2disk extracts an archive into a file system of the bound disk.
//
//	ARCHIVE_URL                    a tar archive; as it is or packed by gzip, zstd, xz or bzip2, told by its content
//	TARFILE_CHECKSUM               SHA-256 of the file as it is served
//	DEST_DISK, PARTITION, FS_TYPE  as inject
//	DEST_PATH                      the folder, which is made if it is missing; default /
//
// The digest is known at the end, so that an archive with another digest fails
// the action when it has been extracted. Doing it again gives the same.
// Output: device, sha256, entries, bytes.
func (t *attempt) archive2disk(ctx context.Context) (err error) {
	want, err := action.SHA256(t.env, action.ArchiveDigestVariable)
	if err == nil && want == "" {
		err = fmt.Errorf("extracting an archive: give its digest, %s", action.ArchiveDigestVariable)
	}
	if err != nil {
		return err
	}
	part, err := t.place(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	defer part.release(ctx, &err)

	archive, err := t.openArchive(ctx)
	if err != nil {
		return err
	}
	defer archive.close()

	x := extraction{ctx: ctx, in: tar.NewReader(archive)}
	t.agent.markWrote()
	t.track(max(archive.src.total, 0), "extracting", archive.src.read.Load)
	err = t.mounted(ctx, part.Partition, part.fstype, false, func(root tree) error {
		return x.extractInto(root, cmp.Or(t.env[action.ArchivePathVariable], "/"))
	})
	if err == nil {
		_, err = io.Copy(io.Discard, archive) // padding counts for the digest
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // a decompressor may report an end by order as a damaged archive
	}
	if err != nil {
		return fmt.Errorf("extracting %s to %s: %w", archive.src.shown, part.Path, err)
	}

	served, err := archive.checkServed(want)
	if err != nil {
		return err
	}

	t.output["device"], t.output["sha256"] = part.Path, served
	t.output["entries"], t.output["bytes"] = fmt.Sprint(x.entries), fmt.Sprint(x.bytes)
	t.logf("%d entries, %d bytes of contents, on %s (%s)", x.entries, x.bytes, part.Path, part.fstype)
	return nil
}

// openArchive begins to read the archive. The caller closes it.
func (t *attempt) openArchive(ctx context.Context) (*imageStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	src, err := t.newSource(ctx, t.env[action.ArchiveURLVariable], true)
	if err != nil {
		cancel()
		return nil, err
	}

	i := &imageStream{src: src, sum: sha256.New(), cancel: cancel}
	i.served = startReadAhead(src, i.sum, 3, mib)
	if i.content, err = diskimage.Open(i.served); err != nil {
		i.close()
		return nil, fmt.Errorf("reading archive %s: %w", src.shown, err)
	}
	i.Reader = i.content
	return i, nil
}

// An extraction puts the entries of an archive below a folder. Links, whether the
// archive brought them or not, are resolved as if the folder were /, so that no entry
// is written outside of it.
type extraction struct {
	ctx     context.Context
	in      *tar.Reader
	root    tree
	folders []*tar.Header // names and times, in their order
	entries int
	bytes   int64 // of contents
}

// extractInto extracts everything into the folder at dir in root.
func (x *extraction) extractInto(root tree, dir string) error {
	inside := fileSpec{path: path.Join("/", dir, "entry"), dirMode: 0o755}
	fd, err := inside.parent(root, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // synced with the file system
	x.root = tree{fd}

	for {
		if err := context.Cause(x.ctx); err != nil {
			return err
		}
		h, err := x.in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading the archive behind %d entries: %w", x.entries, err)
		}
		if err := x.extract(h); err != nil {
			return fmt.Errorf("entry %d, %q: %w", x.entries+1, h.Name, err)
		}
		x.entries++
	}
	if x.entries == 0 {
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
	parent, err := fileSpec{path: name, dirMode: 0o755}.parent(x.root, true)
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
	from, err := fileSpec{path: name}.parent(x.root, false)
	if err != nil {
		return fmt.Errorf("its target %q: %w", target, err)
	}
	defer func() { _ = unix.Close(from) }() // nothing is written through it
	if err := unix.Linkat(from, path.Base(name), parent, base, 0); err != nil {
		return fmt.Errorf("linking it to %q: %w", target, err)
	}
	return nil
}
