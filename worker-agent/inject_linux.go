package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"golang.org/x/sys/unix"
)

// nodeWait is how long a partition's device node may take to appear after the
// table was written.
const nodeWait = 15 * time.Second

// inject writes files into a file system of the bound disk.
//
//	DEST_DISK  a partition of the bound disk, or the disk
//	PARTITION  which partition of the disk (see action.ParsePartition); with none, the root file system: the largest that has
//	           /etc/os-release
//	FS_TYPE    ext4, xfs, btrfs, vfat; told by its content when empty
//	FILES      JSON array of action.File
//
// Symbolic links lead nowhere but inside of that file system, and a link at
// a file's own path is replaced. Each file appears whole or not at all; doing
// it again gives the same. At the end the file system is mounted anew, and what
// it holds is compared. Output: device, files, bytes.
func (t *attempt) inject(ctx context.Context) error {
	listed, err := action.Files(t.env)
	if err != nil {
		return err
	}
	files := make([]fileSpec, 0, len(listed))
	for _, f := range listed {
		otherwise := uint32(0o644)
		if f.Directory {
			otherwise = 0o755
		}
		mode, err := action.Octal(f.Mode, otherwise)
		dirMode, e := action.Octal(f.DirMode, 0o755)
		if err := errors.Join(err, e); err != nil {
			return err
		}
		files = append(files, fileSpec{
			path: f.Path, contents: f.Contents, directory: f.Directory, owner: f.Owner, group: f.Group, mode: mode, dirMode: dirMode,
		})
	}
	return t.writeFiles(ctx, files)
}

// writeFile is inject of one file, by the environment of Tinkerbell's action:
//
//	DEST_DISK, PARTITION, FS_TYPE  as inject
//	DEST_PATH                      absolute
//	CONTENTS                       what the file holds
//	UID, GID                       owner, of new directories, too; default 0
//	MODE                           octal, default 0644
//	DIRMODE                        octal, of directories that have to be made; default 0755
func (t *attempt) writeFile(ctx context.Context) error {
	f, err := readFileSpec(t.env)
	if err != nil {
		return err
	}
	return t.writeFiles(ctx, []fileSpec{f})
}

// writeFiles writes files into the file system that the environment names, and
// reads them back.
func (t *attempt) writeFiles(ctx context.Context, files []fileSpec) error {
	disk, number, err := t.partition(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	part, fstype, err := t.locate(ctx, disk, number)
	if err != nil {
		return err
	}
	var total, done int64
	for _, f := range files {
		total += int64(len(f.contents))
	}
	t.agent.markWrote()
	err = t.mounted(ctx, part, fstype, false, func(root tree) error {
		for i := range files {
			f := &files[i]
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := f.resolve(root); err != nil {
				return fmt.Errorf("writing %s on %s: %w", f.path, part.Path, err)
			}
			if err := f.write(root); err != nil {
				return fmt.Errorf("writing %s on %s: %w", f.path, part.Path, err)
			}
			done += int64(len(f.contents))
			t.progress(done, total, "writing "+f.path)
			t.logf("%s: %d bytes, %d:%d %04o, on %s (%s)", f.path, len(f.contents), f.uid, f.gid, f.mode, part.Path, fstype)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// What is read now comes from the disk: nothing has it open any more.
	if part, fstype, err = t.locate(ctx, disk, part.Number); err != nil {
		return err
	}
	err = t.mounted(ctx, part, fstype, true, func(root tree) error {
		for _, f := range files {
			if err := f.compare(root, fstype != "vfat"); err != nil {
				return fmt.Errorf("reading %s on %s back: %w", f.path, part.Path, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.output["device"], t.output["files"], t.output["bytes"] = part.Path, fmt.Sprint(len(files)), fmt.Sprint(total)
	t.logf("%d files read back", len(files))
	return nil
}

// locate waits until the partition of disk is there and returns it with its
// file system; number 0 means the root file system's.
func (t *attempt) locate(ctx context.Context, disk action.Disk, number int) (part Partition, fstype string, err error) {
	files := t.agent.cfg.Files
	if files == nil {
		return part, "", errors.New("mounting: this agent mounts nothing")
	}
	for end := time.Now().Add(nodeWait); ; {
		parts, e := files.Partitions(ctx, disk.Path)
		if e != nil {
			return part, "", fmt.Errorf("listing the partitions of %s: %w", disk.Path, e)
		}
		if number > 0 {
			part, fstype, err = t.pick(parts, number)
		} else {
			part, fstype, err = t.findRoot(ctx, disk.Path, parts)
		}
		if !errors.Is(err, errNotYet) || time.Now().After(end) {
			return part, fstype, err
		}
		if e := sleep(ctx, 200*time.Millisecond); e != nil {
			return part, fstype, fmt.Errorf("%w (%w)", err, e)
		}
	}
}

// mounted calls do with the file system on part. When it returns, nothing is
// mounted, and all that do wrote is on the disk.
func (t *attempt) mounted(ctx context.Context, part Partition, fstype string, readOnly bool, do func(root tree) error) error {
	dir, unmount, err := t.agent.cfg.Files.Mount(ctx, part.Path, fstype, readOnly)
	if err != nil {
		return err
	}
	root, err := openTree(dir)
	if err == nil {
		err = do(root)
		root.close()
	}
	if e := unmount(); e != nil {
		err = errors.Join(err, fmt.Errorf("unmounting %s: %w", part.Path, e))
	}
	return err
}

// pick returns partition number n with the file system that it holds.
func (t *attempt) pick(parts []Partition, n int) (Partition, string, error) {
	for _, p := range parts {
		if p.Number != n {
			continue
		}
		fstype := t.env["FS_TYPE"]
		if fstype == "" {
			fstype = deviceFS(p)
		}
		if fstype == "" && t.env["FS_TYPE"] == "" {
			return p, "", fmt.Errorf("finding a file system on %s: %w", p.Path, errNotYet)
		}
		if !slices.Contains(action.FileSystems, fstype) {
			return p, fstype, fmt.Errorf("mounting %s: it holds %q, not one of %s", p.Path, fstype, strings.Join(action.FileSystems, ", "))
		}
		return p, fstype, nil
	}
	return Partition{}, "", fmt.Errorf("finding partition %d among %d: %w", n, len(parts), errNotYet)
}

// deviceFS names what is on p.
func deviceFS(p Partition) string {
	f, err := os.Open(p.Path)
	if err != nil {
		return ""
	}
	// Only read from.
	defer func() { _ = f.Close() }()
	return probeFS(f, p.Size)
}

// findRoot returns the largest partition whose file system has an
// os-release.
func (t *attempt) findRoot(ctx context.Context, disk string, parts []Partition) (Partition, string, error) {
	slices.SortFunc(parts, func(a, b Partition) int { return int(min(1, max(-1, b.Size-a.Size))) })
	var seen []string
	for _, p := range parts {
		fstype := deviceFS(p)
		seen = append(seen, p.Path+" "+fstype)
		if fstype != "ext4" && fstype != "xfs" && fstype != "btrfs" {
			continue
		}
		dir, unmount, err := t.agent.cfg.Files.Mount(ctx, p.Path, fstype, true)
		if err != nil {
			seen = append(seen, err.Error())
			continue
		}
		_, err = os.Lstat(dir + "/etc/os-release")
		if e := unmount(); e != nil {
			return p, fstype, fmt.Errorf("unmounting %s: %w", p.Path, e)
		}
		if err == nil {
			return p, fstype, nil
		}
	}
	return Partition{}, "", fmt.Errorf("finding the root file system of %s, one with /etc/os-release, on [%s]: %w", disk, strings.Join(seen, ", "), errNotYet)
}

// fileSpec is a file or directory to be written.
type fileSpec struct {
	path          string
	contents      string
	directory     bool
	owner, group  string // numbers, or names of the installed system; "" = uid, gid
	uid, gid      int
	mode, dirMode uint32
}

// readFileSpec reads writefile's environment, which action.Check has passed.
func readFileSpec(env map[string]string) (fileSpec, error) {
	s := fileSpec{path: path.Clean(env["DEST_PATH"]), contents: env["CONTENTS"]}
	var errs [4]error
	s.uid, errs[0] = action.Number(env, "UID")
	s.gid, errs[1] = action.Number(env, "GID")
	s.mode, errs[2] = action.Octal(env["MODE"], 0o644)
	s.dirMode, errs[3] = action.Octal(env["DIRMODE"], 0o755)
	return s, errors.Join(errs[:]...)
}

// resolve makes numbers of the names of s's owner and group.
func (s *fileSpec) resolve(root tree) error {
	for _, who := range []struct {
		name string
		file string
		id   *int
	}{{s.owner, "/etc/passwd", &s.uid}, {s.group, "/etc/group", &s.gid}} {
		if who.name == "" {
			continue
		}
		if n, err := strconv.ParseUint(who.name, 10, 31); err == nil {
			*who.id = int(n)
			continue
		}
		n, err := root.account(who.file, who.name)
		if err != nil {
			return fmt.Errorf("finding the number of %q in the file system's %s: %w: give the number itself", who.name, who.file, err)
		}
		*who.id = n
	}
	return nil
}

// tree is a mounted file system, as if its root were /.
type tree struct{ fd int }

func openTree(dir string) (tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return tree{fd}, err
}

func (r tree) close() { _ = unix.Close(r.fd) } // a path, nothing is written through it

// open opens what is at name, an absolute path. Links in it mean what they
// mean when the file system is /; none leads out of it, or to another one.
func (r tree) open(name string, flags int) (int, error) {
	return unix.Openat2(r.fd, name, &unix.OpenHow{
		Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// maxSmall is how long a text file of the installed system may be that the
// agent reads.
const maxSmall = 4 * mib

// read returns the file at name, which is a regular one of up to maxSmall
// bytes.
func (r tree) read(name string) ([]byte, error) {
	f, err := r.file(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	b, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err == nil && len(b) > maxSmall {
		err = fmt.Errorf("%s is longer than %d bytes", name, maxSmall)
	}
	return b, err
}

// file opens the regular file at name for reading.
func (r tree) file(name string) (*os.File, error) {
	// Not O_PATH: and a fifo must not make the agent wait.
	fd, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		_ = f.Close() // only read from
		return nil, err
	}
	return f, nil
}

// account returns the number of name in a file of the form of /etc/passwd or
// /etc/group.
func (r tree) account(file, name string) (int, error) {
	b, err := r.read(file)
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Split(line, ":")
		if len(f) < 3 || f[0] != name {
			continue
		}
		n, err := strconv.ParseUint(f[2], 10, 31)
		if err != nil {
			return 0, fmt.Errorf("its number is %q", f[2])
		}
		return int(n), nil
	}
	return 0, errors.New("it is not there")
}

// write writes s into root.
func (s fileSpec) write(root tree) (err error) {
	parent, err := s.parent(root, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }() // synced below
	base := path.Base(s.path)
	if s.directory {
		return s.makeDirectory(parent, base)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return errors.New("there is a directory of that name")
	}
	// Always the same name: what an interrupted attempt left there goes.
	temporary := temporaryName(s.path)
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
			_ = unix.Unlinkat(parent, temporary, 0) // the first error counts
		}
	}()
	_, err = f.WriteString(s.contents)
	if err == nil {
		err = own(fd, s.uid, s.gid, s.mode)
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

// makeDirectory makes base in parent, or takes the one that is there. A link is
// none.
func (s fileSpec) makeDirectory(parent int, base string) error {
	if err := unix.Mkdirat(parent, base, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the directory: %w", err)
	}
	err = own(fd, s.uid, s.gid, s.mode)
	if err == nil {
		err = unix.Fsync(fd)
	}
	_ = unix.Close(fd) // synced
	if err == nil {
		err = unix.Fsync(parent)
	}
	return err
}

// compare tells whether root holds s. owners: the file system keeps owners and
// modes.
func (s fileSpec) compare(root tree, owners bool) error {
	parent, err := s.parent(root, false)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }() // only read from
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	if s.directory {
		flags |= unix.O_DIRECTORY
	}
	fd, err := unix.Openat(parent, path.Base(s.path), flags, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), s.path)
	defer func() { _ = f.Close() }() // only read from
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if owners && (st.Uid != uint32(s.uid) || st.Gid != uint32(s.gid) || st.Mode&0o7777 != s.mode) {
		return fmt.Errorf("it is %d:%d %04o, not %d:%d %04o", st.Uid, st.Gid, st.Mode&0o7777, s.uid, s.gid, s.mode)
	}
	if s.directory {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(len(s.contents))+1))
	if err != nil {
		return err
	}
	if string(b) != s.contents {
		return errors.New("it has other contents than were written")
	}
	return nil
}

// own sets owner and mode by descriptor: no umask takes part.
func own(fd, uid, gid int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	// FAT has no owners: asking for the one that is there is no error.
	if st.Uid != uint32(uid) || st.Gid != uint32(gid) {
		if err := unix.Fchown(fd, uid, gid); err != nil {
			return fmt.Errorf("giving it to %d:%d: %w", uid, gid, err)
		}
	}
	if err := unix.Fchmod(fd, mode); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("setting mode %04o: %w", mode, err)
	}
	return nil
}

// temporaryName is what a file or directory at p is called while it is made.
func temporaryName(p string) string {
	sum := sha256.Sum256([]byte(p))
	return ".ingot-" + hex.EncodeToString(sum[:8])
}

// addDirectory makes name in parent, with its owner and mode from the first
// moment on.
func (s fileSpec) addDirectory(parent int, name string) error {
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
	err = own(fd, s.uid, s.gid, s.dirMode)
	_ = unix.Close(fd) // the directory above is synced
	if err == nil {
		// Not over something that is there: a link that leads nowhere.
		err = unix.Renameat2(parent, temporary, parent, name, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) {
			err = unix.Renameat(parent, temporary, parent, name)
		}
	}
	if err == nil {
		return unix.Fsync(parent)
	}
	_ = unix.Unlinkat(parent, temporary, unix.AT_REMOVEDIR) // the first error counts
	return err
}

// parent opens the directory that s goes into and, with create, makes what of
// it is missing.
func (s fileSpec) parent(root tree, create bool) (int, error) {
	const directory = unix.O_RDONLY | unix.O_DIRECTORY
	at, err := root.open(".", directory)
	if err != nil {
		return -1, err
	}
	done := "/"
	for _, name := range strings.Split(strings.Trim(path.Dir(s.path), "/"), "/") {
		if name == "" {
			continue
		}
		done = path.Join(done, name)
		// From the root each time: only so do absolute links stay inside.
		next, err := root.open(done, directory)
		if create && errors.Is(err, unix.ENOENT) {
			if err = s.addDirectory(at, name); err == nil {
				next, err = root.open(done, directory)
			}
		}
		_ = unix.Close(at) // synced where it was changed
		if err != nil {
			return -1, fmt.Errorf("opening the directory %s: %w", done, err)
		}
		at = next
	}
	return at, nil
}
