package actions

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// dyingDisks fail after a number of writes, like a power cut: half of the next write still arrives
// and nothing after it.
type dyingDisks struct {
	disk.FileDisks
	left *int
}

func (d dyingDisks) Open(path string) (blockdev.Device, error) {
	dev, err := d.FileDisks.Open(path)
	return &dyingDevice{dev, d.left}, err
}

type dyingDevice struct {
	blockdev.Device
	left *int
}

var errPlug = fmt.Errorf("the plug is pulled: %w", syscall.EIO)

func (d *dyingDevice) WriteAt(p []byte, off int64) (int, error) {
	*d.left--
	if *d.left < 0 {
		if *d.left == -1 {
			if n, err := d.Device.WriteAt(p[:len(p)/1024*512], off); err != nil {
				return n, err
			}
		}
		return 0, errPlug
	}
	return d.Device.WriteAt(p, off)
}

func (d *dyingDevice) Zero(off, n int64) error { return blockdev.WriteZeros(d, off, n) }
func (d *dyingDevice) Sync() error {
	if *d.left < 0 {
		return errPlug
	}
	return nil
}

// untilItLives calls f with disks that fail after 0, 1, 2 … writes, until f succeeds.
func untilItLives(t *testing.T, f func(die func(disk.FileDisks) disk.Disks) error) {
	t.Helper()
	for n := range 500 {
		left := n
		err := f(func(d disk.FileDisks) disk.Disks { return dyingDisks{d, &left} })
		if err == nil {
			if n < 3 {
				t.Fatalf("only %d writes: nothing was interrupted", n)
			}
			return
		}
		if !errors.Is(err, syscall.EIO) && !strings.Contains(err.Error(), "plug") {
			t.Fatalf("after %d writes: %v", n, err)
		}
	}
	t.Fatal("the action never succeeds")
}

// loopFiles mounts real file systems with the kernel, by loop devices on a disk in a file.
type loopFiles struct {
	t     *testing.T
	file  string
	inUse []string
}

// newLoopFiles skips the test if it lacks the permission or the kernel lacks the file system.
func newLoopFiles(t *testing.T, file, fstype string) *loopFiles {
	t.Helper()
	known, err := os.ReadFile("/proc/filesystems")
	if os.Getuid() != 0 || err != nil || !strings.Contains(string(known), "\t"+fstype+"\n") {
		t.Skipf("mounting %s needs root and a kernel that has it", fstype)
	}
	l := &loopFiles{t: t, file: file}
	t.Cleanup(l.detach)
	if err := l.attach(0, 512); err != nil {
		t.Skipf("loop devices cannot be made here: %v", err)
	}
	return l
}

func (l *loopFiles) attach(off, n int64) error {
	out, err := exec.Command(disktest.Need(l.t, "losetup"), "--find", "--show", "--offset", fmt.Sprint(off), "--sizelimit", fmt.Sprint(n),
		l.file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	l.inUse = append(l.inUse, strings.TrimSpace(string(out)))
	return nil
}

func (l *loopFiles) detach() {
	for _, dev := range l.inUse {
		if out, err := exec.Command(disktest.Need(l.t, "losetup"), "-d", dev).CombinedOutput(); err != nil {
			l.t.Errorf("detaching %s: %v: %s", dev, err, out)
		}
	}
	l.inUse = nil
}

func (l *loopFiles) Partitions(context.Context, string) ([]filesys.Partition, error) {
	l.detach()
	f, err := os.Open(l.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	table, err := parttable.Read(f, st.Size(), 512)
	if err != nil {
		return nil, err
	}
	var parts []filesys.Partition
	for _, p := range table.Parts {
		if err := l.attach(p.Start, p.Size); err != nil {
			return nil, err
		}
		parts = append(parts, filesys.Partition{Number: p.Number, Path: l.inUse[len(l.inUse)-1], Size: p.Size})
	}
	return parts, nil
}

func (l *loopFiles) Mount(ctx context.Context, device, fstype string, readOnly bool) (string, func() error, error) {
	return filesys.HostFilesystems{}.Mount(ctx, device, fstype, readOnly)
}

func (l *loopFiles) Grow(ctx context.Context, device, fstype string, size int64) error {
	return filesys.HostFilesystems{}.Grow(ctx, device, fstype, size)
}

// size returns the size that the mounted file system reports.
func size(t *testing.T, files filesys.Filesystems, device, fstype string) int64 {
	t.Helper()
	dir, unmount, err := files.Mount(t.Context(), device, fstype, true)
	if err != nil {
		t.Fatal(err)
	}
	var st syscall.Statfs_t
	err = syscall.Statfs(dir, &st)
	if err := errors.Join(err, unmount()); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize
}
