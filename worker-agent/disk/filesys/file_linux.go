package filesys

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// File is a file or directory to write.
type File struct {
	Path          string
	Contents      string
	Append        *regexp.Regexp // Contents go to the end of the file, unless it matches; see Resolve
	Directory     bool
	Owner, Group  string // ids, or names in the installed system; if "", UID and GID are used as they are
	UID, GID      int
	Mode, DirMode uint32
}

// Resolve sets UID and GID from Owner and Group. It looks up names in the passwd and group files of root. If Append is set, it sets
// Contents to the whole that Write writes, and UID, GID and Mode to those of the file, if it exists.
func (s *File) Resolve(root Tree) error {
	if s.Append != nil {
		if err := s.appendTo(root); err != nil {
			return err
		}
	}
	for _, who := range []struct {
		name string
		file string
		id   *int
	}{{s.Owner, "/etc/passwd", &s.UID}, {s.Group, "/etc/group", &s.GID}} {
		if who.name == "" {
			continue
		}

		if n, err := strconv.ParseUint(who.name, 10, 31); err == nil {
			*who.id = int(n)
			continue
		}
		n, err := root.account(who.file, who.name)
		if err != nil {
			return fmt.Errorf("finding the numeric id of %q in the file system's %s: %w: set the numeric id instead", who.name,
				who.file, err)
		}
		*who.id = n
	}
	return nil
}

// appendTo does what Resolve says of Append.
func (s *File) appendTo(root Tree) error {
	f, err := root.OpenFile(s.Path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened only for reading
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	b, err := root.ReadFile(s.Path)
	if err != nil {
		return err
	}

	s.UID, s.GID, s.Mode = int(st.Uid), int(st.Gid), st.Mode&0o7777
	switch old := string(b); {
	case s.Append.MatchString(old):
		s.Contents = old
	case old != "":
		s.Contents = strings.TrimRight(old, "\r\n") + "\n\n" + s.Contents
	}
	return nil
}

// Write creates the file or directory s in root. If s is a file, it replaces an existing file atomically.
func (s File) Write(root Tree) (err error) {
	parent, err := s.parent(root, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }() // parent is synced below
	base := path.Base(s.Path)
	if s.Directory {
		return s.makeDirectory(parent, base)
	}

	var st unix.Stat_t
	if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil &&
		st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return errors.New("a directory with this name exists")
	}

	// The temporary name depends only on the path, so that the file of an interrupted attempt is replaced.
	temporary := temporaryName(s.Path)
	if err := unix.Unlinkat(parent, temporary, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}

	fd, err := unix.Openat(parent, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}

	f := os.NewFile(uintptr(fd), temporary)
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(parent, temporary, 0) // the earlier error is returned
		}
	}()

	_, err = f.WriteString(s.Contents)
	if err == nil {
		err = own(fd, s.UID, s.GID, s.Mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err := unix.Renameat(parent, temporary, parent, base); err != nil {
		return err
	}
	return unix.Fsync(parent)
}

// makeDirectory creates the directory base in parent, unless it exists, and sets its owner and mode. It refuses a symbolic link.
func (s File) makeDirectory(parent int, base string) error {
	if err := unix.Mkdirat(parent, base, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}

	fd, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the directory: %w", err)
	}

	err = own(fd, s.UID, s.GID, s.Mode)
	if err == nil {
		err = unix.Fsync(fd)
	}

	_ = unix.Close(fd) // Fsync was called
	if err == nil {
		err = unix.Fsync(parent)
	}
	return err
}

// Compare returns nil if root contains s with the same contents. If owners is true, owner and mode must be the same too; not every
// file system has them.
func (s File) Compare(root Tree, owners bool) error {
	parent, err := s.parent(root, false)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }() // opened only for reading
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	if s.Directory {
		flags |= unix.O_DIRECTORY
	}

	fd, err := unix.Openat(parent, path.Base(s.Path), flags, 0)
	if err != nil {
		return err
	}

	f := os.NewFile(uintptr(fd), s.Path)
	defer func() { _ = f.Close() }() // opened only for reading
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if owners && (st.Uid != uint32(s.UID) || st.Gid != uint32(s.GID) || st.Mode&0o7777 != s.Mode) {
		return fmt.Errorf("owner and mode are %d:%d %04o instead of %d:%d %04o", st.Uid, st.Gid, st.Mode&0o7777, s.UID, s.GID, s.Mode)
	}
	if s.Directory {
		return nil
	}

	b, err := io.ReadAll(io.LimitReader(f, int64(len(s.Contents))+1))
	if err != nil {
		return err
	}
	if string(b) != s.Contents {
		return errors.New("the file's contents differ from what was written")
	}
	return nil
}

// own sets the owner and the mode of an open file or directory. The umask does not apply.
func own(fd, uid, gid int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}

	// On FAT, which has no owners, even setting the current owner fails.
	if st.Uid != uint32(uid) || st.Gid != uint32(gid) {
		if err := unix.Fchown(fd, uid, gid); err != nil {
			return fmt.Errorf("changing the owner to %d:%d: %w", uid, gid, err)
		}
	}
	if err := unix.Fchmod(fd, mode); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("setting mode %04o: %w", mode, err)
	}
	return nil
}

// temporaryName returns the name under which the file or directory p is created before it is renamed to p.
func temporaryName(p string) string {
	sum := sha256.Sum256([]byte(p))
	return ".ingot-" + hex.EncodeToString(sum[:8])
}

// addDirectory creates the directory name in parent. It sets the owner and the mode before the directory appears under that name.
func (s File) addDirectory(parent int, name string) error {
	temporary := temporaryName(name)
	if err := unix.Unlinkat(parent, temporary, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := unix.Mkdirat(parent, temporary, 0o700); err != nil {
		return err
	}

	fd, err := unix.Openat(parent, temporary, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}

	err = own(fd, s.UID, s.GID, s.DirMode)
	_ = unix.Close(fd) // the parent directory is synced below
	if err == nil {
		// Do not replace an existing name, such as a dangling link.
		err = unix.Renameat2(parent, temporary, parent, name, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) {
			err = unix.Renameat(parent, temporary, parent, name)
		}
	}
	if err == nil {
		return unix.Fsync(parent)
	}

	_ = unix.Unlinkat(parent, temporary, unix.AT_REMOVEDIR) // the earlier error is returned
	return err
}

// parent opens the directory that contains s.Path. If create is true, it creates missing directories.
func (s File) parent(root Tree, create bool) (int, error) {
	const directory = unix.O_RDONLY | unix.O_DIRECTORY
	at, err := root.open(".", directory)
	if err != nil {
		return -1, err
	}

	done := "/"
	for _, name := range strings.Split(strings.Trim(path.Dir(s.Path), "/"), "/") {
		if name == "" {
			continue
		}

		done = path.Join(done, name)

		// Resolve the whole path from the root each time: only then do absolute links stay inside the file system.
		next, err := root.open(done, directory)
		if create && errors.Is(err, unix.ENOENT) {
			if err = s.addDirectory(at, name); err == nil {
				next, err = root.open(done, directory)
			}
		}

		_ = unix.Close(at) // addDirectory has synced the directory after each change
		if err != nil {
			return -1, fmt.Errorf("opening the directory %s: %w", done, err)
		}

		at = next
	}

	return at, nil
}
