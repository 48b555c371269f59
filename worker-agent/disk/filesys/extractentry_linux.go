package filesys

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"golang.org/x/sys/unix"
)

// xattrPrefix is the prefix of the PAX records in which GNU tar and other programs store extended attributes.
const xattrPrefix = "SCHILY.xattr."

// makeFolder creates the folder base in parent, unless the folder exists. A file of that name is replaced.
func makeFolder(parent int, base string) error {
	err := unix.Mkdirat(parent, base, 0o700)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}

	var st unix.Stat_t
	if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if err := unix.Unlinkat(parent, base, 0); err != nil {
		return fmt.Errorf("removing the existing file: %w", err)
	}
	return unix.Mkdirat(parent, base, 0o700)
}

// make creates an entry that is neither a folder nor a hard link. The contents of a file are read from x.in.
func (x *extraction) make(parent int, base string, h *tar.Header) error {
	device := int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return x.makeFile(parent, base, h)
	case tar.TypeSymlink:
		return unix.Symlinkat(h.Linkname, parent, base)
	case tar.TypeFifo:
		return unix.Mknodat(parent, base, unix.S_IFIFO|0o600, 0)
	case tar.TypeChar:
		return unix.Mknodat(parent, base, unix.S_IFCHR|0o600, device)
	case tar.TypeBlock:
		return unix.Mknodat(parent, base, unix.S_IFBLK|0o600, device)
	}
	return fmt.Errorf("unknown entry type %q", h.Typeflag)
}

func (x *extraction) makeFile(parent int, base string, h *tar.Header) (err error) {
	fd, err := unix.Openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}

	f := os.NewFile(uintptr(fd), base)
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()

	if isSparse(h) {
		// Truncate first: it fails at once if the file system cannot hold a file of this size.
		if err := f.Truncate(h.Size); err != nil {
			return fmt.Errorf("setting the file's size to %d bytes: %w", h.Size, err)
		}
	}
	return x.copyTo(f, isSparse(h))
}

// isSparse reports whether the archive stores the file h without its holes. Only such a file is written with holes: any other could
// be a swap file, which must not have holes.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// copyTo writes the contents of the entry to f. If sparse is true, it skips blocks of zeros.
func (x *extraction) copyTo(f *os.File, sparse bool) error {
	const block = 64 << 10
	buf, zeros := make([]byte, block), make([]byte, block)

	for off := int64(0); ; {
		if err := context.Cause(x.ctx); err != nil {
			return err
		}

		n, err := blockdev.Fill(x.in, buf)
		if n > 0 && (!sparse || !bytes.Equal(buf[:n], zeros[:n])) {
			if _, err := f.WriteAt(buf[:n], off); err != nil {
				return fmt.Errorf("writing at byte %d: %w", off, err)
			}
		}
		off += int64(n)
		x.Bytes += int64(n)

		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// setAttributes sets the owner, the extended attributes and the mode, in this order: the kernel removes setuid and capabilities when
// the owner changes.
func (x *extraction) setAttributes(parent int, base string, h *tar.Header) error {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}

	// On FAT, which has no owners, chown succeeds only for the current owner: call it only for a change.
	if st.Uid != uint32(h.Uid) || st.Gid != uint32(h.Gid) {
		if err := unix.Fchownat(parent, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("changing the owner to %d:%d: %w", h.Uid, h.Gid, err)
		}
	}

	for record, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(record, xattrPrefix)
		if !ok {
			continue
		}
		// Use the descriptor of the folder: a path could lead elsewhere.
		file := fmt.Sprintf("/proc/self/fd/%d/%s", parent, base)
		err := unix.Lsetxattr(file, name, []byte(value), 0)
		if x.layer != nil && errors.Is(err, unix.EOPNOTSUPP) {
			continue // before Linux 6.6, a file system in memory has no attributes of users
		}
		if err != nil {
			return fmt.Errorf("setting the extended attribute %s: %w", name, err)
		}
	}

	if h.Typeflag == tar.TypeSymlink {
		return nil // the mode of a symbolic link has no effect
	}
	mode := uint32(h.Mode) & 0o7777
	if err := unix.Fchmodat(parent, base, mode, 0); err != nil {
		return fmt.Errorf("setting mode %04o: %w", mode, err)
	}
	return nil
}

// setTime sets the modification time, and leaves the access time as it is.
func setTime(parent int, base string, h *tar.Header) error {
	changed, err := unix.TimeToTimespec(h.ModTime)
	if err != nil {
		return err
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, changed}
	return unix.UtimesNanoAt(parent, base, times, unix.AT_SYMLINK_NOFOLLOW)
}
