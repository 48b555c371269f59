package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Undo removes a fault. Only the first call has an effect; later calls return the same error.
// Closing the lab calls it for every remaining fault, the latest one first.
type Undo func() error

// undoable makes an Undo of f. A fault that is made while the lab is being closed is undone at
// once.
func (l *Lab) undoable(what string, f func() error) (Undo, error) {
	undo := Undo(sync.OnceValue(func() error {
		if err := f(); err != nil {
			return fmt.Errorf("undoing %s: %w", what, err)
		}
		l.log.Info("fault over", "what", what)
		return nil
	}))
	if !l.onClose(undo) {
		return nil, errors.Join(ErrClosed, undo())
	}
	l.log.Info("fault", "what", what)
	return undo, nil
}

// outside runs a program in the network namespace ns only. Unlike Command, it works while the lab
// is being closed. Unlike `ip netns exec`, it does not change /sys, which contains the control
// groups.
func (l *Lab) outside(ns Namespace, stdin string, args ...string) (string, error) {
	c := exec.Command("nsenter", append([]string{"--net=" + filepath.Join(netnsDir, l.NamespaceName(ns)), "--"}, args...)...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running %q: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// SmallDisk mounts an empty file system of the given size in bytes and returns its folder, for a
// data directory that can become full. Closing the lab removes it.
func (l *Lab) SmallDisk(size int64) (string, error) {
	parent := filepath.Join(l.run, "disks")
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, "")
	if err != nil {
		return "", err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0750", size)); err != nil {
		return "", fmt.Errorf("mounting a small disk: %w", err)
	}
	// Detach it: processes in other namespaces may still use it until they end.
	_, err = l.undoable("a small disk", func() error { return unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, err
}

// unmountBelow unmounts everything that is mounted inside dir.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		// Field 5 is the mount point. The paths of the lab's own folders need no escapes there.
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(points))) // the inner ones first
	var errs []error
	for _, p := range points {
		errs = append(errs, unix.Unmount(p, unix.MNT_DETACH))
	}
	return errors.Join(errs...)
}

// filler is the file that Fill uses to occupy the space.
const filler = "lab-filler"

// Fill occupies all space on the file system of dir except about leave bytes: further writes fail
// with ENOSPC. It refuses a file system with more than 1 GiB of free space, because SmallDisk does
// not create such large ones. Undo frees the space.
func (l *Lab) Fill(dir string, leave int64) (Undo, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("filling the disk of %q: %w", dir, err)
	}
	free := int64(st.Bavail)*st.Bsize - leave
	if free > 1<<30 {
		return nil, fmt.Errorf("filling the disk of %q: it has %d MiB free: use a SmallDisk", dir, free>>20)
	}
	name := filepath.Join(dir, filler)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("filling the disk of %q: %w", dir, err)
	}
	// Others write at the same time, so the space that was free a moment ago may be too much now:
	// at the end, add one page at a time.
	for step := max(free, 0); step >= st.Bsize; {
		at, err := f.Seek(0, 1)
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, at, step)
		}
		if err == nil {
			_, err = f.Seek(step, 1)
		}
		switch {
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		case err != nil:
			return nil, errors.Join(fmt.Errorf("filling the disk of %q: %w", dir, err), f.Close(), os.Remove(name))
		case leave > 0:
			step = 0 // as much as was requested
		}
	}
	if err := f.Close(); err != nil {
		return nil, errors.Join(err, os.Remove(name))
	}
	return l.undoable("a full disk", func() error {
		if err := os.Remove(name); !errors.Is(err, os.ErrNotExist) { // its file system may be unmounted
			return err
		}
		return nil
	})
}

// KeepFull is Fill that also occupies, within moments, the space that others free: releasing a
// reserve then does not help.
func (l *Lab) KeepFull(dir string) (Undo, error) {
	empty, err := l.Fill(dir, 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(l.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(20 * time.Millisecond)
		defer t.Stop()
		for n := 0; ; {
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			more := filepath.Join(dir, fmt.Sprintf("%s-%d", filler, n+1))
			if err := takeAll(more); err != nil {
				l.log.Warn("keeping a disk full", "error", err)
			} else {
				n++
			}
		}
	}()
	return l.undoable("a disk kept full", func() error {
		cancel()
		<-done
		names, err := filepath.Glob(filepath.Join(dir, filler+"-*"))
		errs := []error{err}
		for _, n := range names {
			errs = append(errs, os.Remove(n))
		}
		return errors.Join(append(errs, empty())...)
	})
}

// takeAll occupies the free space of a disk with a file of that name, if it is more than a few
// pages.
func takeAll(name string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(name), &st); err != nil || st.Bavail < 4 {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize)
	if errors.Is(err, unix.ENOSPC) {
		err = nil // another writer was faster; the next attempt takes the rest
	}
	return errors.Join(err, f.Close())
}

// writeLock is the byte of SQLite's shared-memory file that a writer of a database in WAL mode holds (WAL_WRITE_LOCK of
// the file format, "WAL-Index Locks").
const writeLock = 120

// LockDatabase holds the write lock of a SQLite database in WAL mode, like another program in BEGIN
// IMMEDIATE: a client that writes waits and fails after its busy timeout; readers continue. The
// database must be open in another process. LockDatabase waits for a running transaction.
func (l *Lab) LockDatabase(path string) (Undo, error) {
	f, err := os.OpenFile(path+"-shm", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("locking database %q: %w", path, err)
	}
	// Lock the open file and not the process: the lock ends only with this descriptor.
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: writeLock, Len: 1}
	for {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &lock)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking database %q: %w", path, err), f.Close())
	}
	return l.undoable("a locked database", f.Close)
}
