package container

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A deviceDir is the directory that a container sees, read-only, as /dev.
type deviceDir struct {
	dir  string
	made map[string]device // the nodes of the bound disk, by path in the container
}

// newDeviceDir makes the directory with what each container has.
func newDeviceDir(dir string) (*deviceDir, error) {
	d := &deviceDir{dir: dir, made: map[string]device{}}
	for name, x := range map[string]device{
		"null": {false, 1, 3}, "zero": {false, 1, 5}, "full": {false, 1, 7}, "random": {false, 1, 8}, "urandom": {false, 1, 9},
		"tty": {false, 5, 0}, "console": {false, 1, 3},
	} {
		if err := makeNode(filepath.Join(dir, name), x, 0o666); err != nil {
			return nil, err
		}
	}
	for name, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return d, errors.Join(os.Mkdir(filepath.Join(dir, "pts"), 0o755), os.Mkdir(filepath.Join(dir, "shm"), 0o755))
}

func makeNode(file string, x device, mode uint32) error {
	kind := uint32(unix.S_IFCHR)
	if x.block {
		kind = unix.S_IFBLK
	}
	err := unix.Mknod(file, kind|mode, int(unix.Mkdev(x.major, x.minor)))
	if err == nil {
		err = os.Chmod(file, os.FileMode(mode)) // whatever the umask is
	}
	if err != nil {
		return fmt.Errorf("making the device node %s: %w", file, err)
	}
	return nil
}

// update makes the nodes of the bound disk, and removes those that are gone. All names of a node are links to the same file.
func (d *deviceDir) update(nodes []node) error {
	want := map[string]device{}
	for _, n := range nodes {
		for _, p := range n.paths {
			want[p] = n.device
		}
	}
	for p, x := range maps.Clone(d.made) {
		if want[p] != x {
			if err := os.Remove(d.file(p)); err != nil {
				return err
			}
			delete(d.made, p)
		}
	}
	for _, n := range nodes {
		for _, p := range n.paths {
			if _, ok := d.made[p]; ok {
				continue
			}
			err := os.MkdirAll(filepath.Dir(d.file(p)), 0o755)
			if _, first := d.made[n.paths[0]]; err == nil && !first {
				err = makeNode(d.file(p), n.device, 0o660)
			} else if err == nil {
				err = os.Link(d.file(n.paths[0]), d.file(p))
			}
			if err != nil {
				return err
			}
			d.made[p] = n.device
		}
	}
	return nil
}

// file returns the file of a path in the container.
func (d *deviceDir) file(path string) string {
	return filepath.Join(d.dir, strings.TrimPrefix(path, "/dev"))
}

// access is what a container may use: the rules and the nodes, which follow the partitions of the bound disk.
type access struct {
	disk  *boundDisk // nil = none
	rules deviceProgram
	dir   *deviceDir
	log   func(format string, args ...any)
}

// update allows exactly what the kernel has now.
func (a *access) update() error {
	if a.disk == nil {
		return a.rules.allow(pseudoDevices)
	}
	nodes, err := a.disk.nodes()
	if err != nil {
		return errors.Join(err, a.rules.allow(pseudoDevices)) // the disk is gone
	}
	allowed := slices.Clone(pseudoDevices)
	for _, n := range nodes {
		allowed = append(allowed, n.device)
	}
	return errors.Join(a.rules.allow(allowed), a.dir.update(nodes))
}

// readTable makes the kernel read the disk's partition table again if the container has changed it. again reports whether a partition is in
// use, so that readTable has to be repeated.
//
// While the kernel removes and adds partitions, another disk's partition could get the number of a removed one. So only the whole disk is
// allowed until the new numbers are known.
func (a *access) readTable() (again bool) {
	err := a.disk.reread(func() error {
		nodes, err := a.disk.nodes()
		if err != nil {
			return err
		}
		return a.rules.allow(append(slices.Clone(pseudoDevices), nodes[0].device))
	})
	if err != nil && !errors.Is(err, unix.EBUSY) {
		a.log("warning: the kernel has not read the new partition table of %s: %v", a.disk.name, err)
	}
	if err := a.update(); err != nil {
		a.log("warning: %v", err)
	}
	return errors.Is(err, unix.EBUSY)
}

// watch keeps a up to date until stop is closed: after the container has closed the disk that it had open for writing, and after the kernel
// has announced a change of a block device.
func (a *access) watch(stop <-chan struct{}) (wait func(), err error) {
	written, err := watchWrites(a.dir.file("/dev/" + a.disk.name))
	if err != nil {
		return nil, err
	}
	changed, err := watchKernel()
	if err != nil {
		_ = written.Close() // nothing was read
		return nil, err
	}
	writes, changes := notify(written, nil), notify(changed, []byte("SUBSYSTEM=block\x00"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		var again <-chan time.Time
		read := func() {
			if again = nil; a.readTable() {
				again = time.After(time.Second)
			}
		}
		for {
			select {
			case <-writes:
				read()
			case <-again:
				read()
			case <-changes:
				if err := a.update(); err != nil {
					a.log("warning: %v", err)
				}
			case <-stop:
				_, _ = written.Close(), changed.Close() // no data is lost
				return
			}
		}
	}()
	return func() { <-done }, nil
}

// watchWrites returns a file with an event each time that file is closed after it was open for writing.
func watchWrites(file string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, file, unix.IN_CLOSE_WRITE); err != nil {
		_ = f.Close() // nothing was read
		return nil, fmt.Errorf("watching %s: %w", file, err)
	}
	return f, nil
}

// watchKernel returns a file with a message for each device that appears, changes or disappears.
func watchKernel() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("watching devices: %w", err)
	}
	f := os.NewFile(uintptr(fd), "uevent")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		_ = f.Close() // nothing was read
		return nil, fmt.Errorf("watching devices: %w", err)
	}
	return f, nil
}

// notify returns a channel that gets an element after f has returned data that contains word. Elements that are not taken yet are merged.
func notify(f *os.File, word []byte) <-chan struct{} {
	events := make(chan struct{}, 1)
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := f.Read(buf)
			if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: messages were lost
				return
			}
			if err != nil || strings.Contains(string(buf[:n]), string(word)) {
				select {
				case events <- struct{}{}:
				default:
				}
			}
		}
	}()
	return events
}
