package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// nodeWait is how long a partition's device node may take to appear after the
// table was written.
const nodeWait = 15 * time.Second

// writeFile writes one file into a file system of the bound disk.
//
//	DEST_DISK   a partition of the bound disk, or the disk: then its root file system, the largest that has /etc/os-release
//	FS_TYPE     ext4, xfs, btrfs, vfat; told by its content when empty
//	DEST_PATH   absolute
//	CONTENTS    what the file holds
//	UID, GID    owner, of new directories, too; default 0
//	MODE        octal, default 0644
//	DIRMODE     octal, of directories that have to be made; default 0755
//
// Symbolic links lead nowhere but inside of that file system, and a link at
// DEST_PATH itself is replaced. The file appears whole or not at all. Output:
// device, bytes.
func (t *attempt) writeFile(ctx context.Context) error {
	spec, err := readFileSpec(t.env)
	if err != nil {
		return err
	}
	files := t.agent.cfg.Files
	if files == nil {
		return errors.New("mounting: this agent mounts nothing")
	}
	disk, partition, err := t.target(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	var part Partition
	var fstype string
	for end := time.Now().Add(nodeWait); ; {
		parts, e := files.Partitions(ctx, disk.Path)
		if e != nil {
			return fmt.Errorf("listing the partitions of %s: %w", disk.Path, e)
		}
		if partition > 0 {
			part, fstype, err = t.pick(parts, partition)
		} else {
			part, fstype, err = t.findRoot(ctx, disk.Path, parts)
		}
		if !errors.Is(err, errNotYet) || time.Now().After(end) {
			break
		}
		if e := sleep(ctx, 200*time.Millisecond); e != nil {
			return fmt.Errorf("%w (%w)", err, e)
		}
	}
	if err != nil {
		return err
	}
	t.agent.markWrote()
	dir, unmount, err := files.Mount(ctx, part.Path, fstype, false)
	if err != nil {
		return err
	}
	err = spec.write(dir)
	if e := unmount(); e != nil {
		err = errors.Join(err, fmt.Errorf("unmounting %s: %w", part.Path, e))
	}
	if err != nil {
		return fmt.Errorf("writing %s on %s: %w", spec.path, part.Path, err)
	}
	t.output["device"], t.output["bytes"] = part.Path, fmt.Sprint(len(spec.contents))
	t.logf("%s: %d bytes, on %s (%s)", spec.path, len(spec.contents), part.Path, fstype)
	return nil
}

// errNotYet says that what was looked for may still appear: after a new
// partition table, devices come one by one.
var errNotYet = errors.New("it is not there")

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
		if !slices.Contains(mountable, fstype) {
			return p, fstype, fmt.Errorf("mounting %s: it holds %q, not one of %s", p.Path, fstype, strings.Join(mountable, ", "))
		}
		return p, fstype, nil
	}
	return Partition{}, "", fmt.Errorf("finding partition %d among %d: %w", n, len(parts), errNotYet)
}

// mountable are the file systems that the agent's kernel has drivers for.
var mountable = []string{"ext4", "xfs", "btrfs", "vfat"}

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

// fileSpec is a file to be written.
type fileSpec struct {
	path          string
	contents      string
	uid, gid      int
	mode, dirMode uint32
}

func readFileSpec(env map[string]string) (fileSpec, error) {
	s := fileSpec{path: path.Clean(env["DEST_PATH"]), contents: env["CONTENTS"]}
	if !path.IsAbs(s.path) || s.path == "/" || strings.HasSuffix(env["DEST_PATH"], "/") {
		return s, fmt.Errorf("reading DEST_PATH=%q: want the absolute path of a file", env["DEST_PATH"])
	}
	if _, ok := env["CONTENTS"]; !ok {
		for _, other := range []string{"BOOTCONFIG_CONTENTS", "HEGEL_URLS", "STATIC_NETPLAN", "STATIC_BOTTLEROCKET"} {
			if env[other] != "" {
				return s, fmt.Errorf("reading the environment: %s is not supported: give CONTENTS", other)
			}
		}
		return s, errors.New("reading the environment: CONTENTS is missing")
	}
	var errs []error
	number := func(name string, base, otherwise int) int {
		v := env[name]
		if v == "" {
			return otherwise
		}
		n, err := strconv.ParseUint(strings.TrimPrefix(v, "0o"), base, 31)
		if err != nil || base == 8 && n > 0o7777 {
			errs = append(errs, fmt.Errorf("reading %s=%q: want a number to base %d", name, v, base))
		}
		return int(n)
	}
	s.uid, s.gid = number("UID", 10, 0), number("GID", 10, 0)
	s.mode, s.dirMode = uint32(number("MODE", 8, 0o644)), uint32(number("DIRMODE", 8, 0o755))
	return s, errors.Join(errs...)
}

// write writes the file under root as if root were /.
func (s fileSpec) write(root string) (err error) {
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(rootFD) }() // a path, nothing is written through it
	parent, err := s.parent(rootFD)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(parent) }() // synced below
	base := path.Base(s.path)
	var st unix.Stat_t
	if err := unix.Fstatat(parent, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return errors.New("there is a directory of that name")
	}
	temporary := ".ingot-" + newID()[:16]
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

// parent opens the directory that the file goes into, and makes what of it
// is missing.
func (s fileSpec) parent(root int) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	at, err := unix.Openat2(root, ".", how)
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
		next, err := unix.Openat2(root, done, how)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(at, name, 0o700); err == nil {
				if next, err = unix.Openat2(root, done, how); err == nil {
					err = own(next, s.uid, s.gid, s.dirMode)
				}
			}
			if err == nil {
				err = unix.Fsync(at)
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
