package container

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// fakeSys is a directory that looks like sysfs.
type fakeSys struct {
	t   *testing.T
	dir string
}

// put writes the attributes of a block device, NAME=VALUE each, and the links that lead to it.
func (s fakeSys) put(path, number string, attributes ...string) {
	dir := filepath.Join(s.dir, "block", path)
	require.NoError(s.t, os.MkdirAll(dir, 0o700))
	for _, a := range append(attributes, "dev="+number) {
		name, value, _ := strings.Cut(a, "=")
		require.NoError(s.t, os.WriteFile(filepath.Join(dir, name), []byte(value+"\n"), 0o600))
	}
	link := filepath.Join(s.dir, "dev/block", number)
	require.NoError(s.t, errors.Join(os.MkdirAll(filepath.Dir(link), 0o700), os.RemoveAll(link), os.Symlink(dir, link)))
}

// S66: the devices of a container are those of the bound disk now; what has passed to another disk is none of them.
func TestS66DevicesFollowTheBoundDisk(t *testing.T) {
	t.Parallel()
	s := fakeSys{t, t.TempDir()}
	s.put("nvme1n1", "259:0", "diskseq=9", "size=2048")
	s.put("nvme1n1/nvme1n1p1", "259:3", "partition=1", "start=8", "size=8")
	find := func() (string, error) { return "nvme1n1", nil }
	d, err := findDisk(s.dir, find, []string{"/dev/sda", "/dev/disk/by-id/x", "/dev/../etc/x", "/dev/nvme1n1"})
	require.NoError(t, err)
	nodes, err := d.nodes()
	require.NoError(t, err)
	require.Equal(t, []node{
		{device: device{true, 259, 0}, paths: []string{"/dev/nvme1n1", "/dev/sda", "/dev/disk/by-id/x"}, size: 1 << 20},
		{device{true, 259, 3}, []string{"/dev/nvme1n1p1", "/dev/sda1", "/dev/disk/by-id/x-part1"}, 1, 4096, 4096},
	}, nodes)

	// Another disk has got the number of the partition, which is still in sysfs.
	s.put("nvme0n1/nvme0n1p1", "259:3", "partition=1")
	nodes, err = d.nodes()
	require.NoError(t, err)
	require.Len(t, nodes, 1)

	// The disk was removed, and another one has got its name.
	s.put("nvme1n1", "259:0", "diskseq=10")
	_, err = d.nodes()
	require.ErrorContains(t, err, "belongs to another disk")
	_, err = findDisk(s.dir, func() (string, error) { return "none", nil }, nil)
	require.ErrorContains(t, err, "does not number its disks")
	names := []string{"nvme1n1", "nvme0n1"}
	_, err = findDisk(s.dir, func() (name string, err error) {
		name, names = names[0], names[1:]
		return name, nil
	}, nil)
	require.ErrorContains(t, err, "it has the name nvme0n1 now")
}

func TestTableIsReadAgainOnlyIfItHasChanged(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "disk")
	disktest.NewFile(t, file, 16*blockdev.MiB)
	nodes := []node{{size: 16 * blockdev.MiB}}
	changed := func() bool { return isTableChanged(bytes.NewReader(disktest.MapFile(t, file)), nodes) }
	require.False(t, changed(), "an empty disk")
	disktest.NewGPT(t, file, parttable.Span{Start: blockdev.MiB, Size: blockdev.MiB})
	require.True(t, changed(), "a new table")
	nodes = append(nodes, node{number: 1, start: blockdev.MiB, size: blockdev.MiB})
	require.False(t, changed())
	nodes[1].size++
	require.True(t, changed(), "a partition of another size")
	require.NoError(t, os.WriteFile(file, make([]byte, 16*blockdev.MiB), 0o600))
	require.True(t, changed(), "a table that is gone")
}

// The nodes in /dev follow the partitions, and all names of one are the same file.
func TestDeviceDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("device nodes need root")
	}
	d, err := newDeviceDir(t.TempDir())
	if errors.Is(err, unix.EPERM) {
		t.Skip("this container of the tests cannot make device nodes")
	}
	require.NoError(t, err)
	whole := node{device: device{true, 8, 16}, paths: []string{"/dev/sdb", "/dev/sda", "/dev/disk/by-id/x"}}
	number := func(path string) (st unix.Stat_t) {
		require.NoError(t, unix.Stat(d.file(path), &st))
		return st
	}
	for _, minor := range []uint32{17, 18} { // the partition is made again, and gets another number
		part := node{device: device{true, 8, minor}, paths: []string{"/dev/sdb1", "/dev/sda1"}}
		require.NoError(t, d.update([]node{whole, part}))
		require.Equal(t, unix.Mkdev(8, minor), number("/dev/sda1").Rdev)
		require.Equal(t, number("/dev/sdb1").Ino, number("/dev/sda1").Ino)
		require.Equal(t, unix.Mkdev(8, 16), number("/dev/disk/by-id/x").Rdev)
	}
	require.NoError(t, d.update([]node{whole}))
	require.NoFileExists(t, d.file("/dev/sda1"))
	require.NoError(t, d.update(nil))
	require.NoFileExists(t, d.file("/dev/sda"))
	require.Equal(t, unix.Mkdev(1, 3), number("/dev/null").Rdev)
}

// S66: the kernel refuses every device that the rules do not name, also while they are replaced.
func TestS66RulesOfDevices(t *testing.T) {
	const refused = 33 // exit code
	if os.Getenv("OPEN_IN_CGROUP") != "" {
		_, err := os.Open(os.Getenv("OPEN_IN_CGROUP"))
		if errors.Is(err, unix.EPERM) {
			os.Exit(refused)
		}
		require.NoError(t, err)
		os.Exit(0)
	}
	dir := fmt.Sprint("/sys/fs/cgroup/unified/ingot-test-", os.Getpid())
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Skip("there is no cgroup2 to write to:", err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	p := &deviceProgram{cgroup: fd}
	t.Cleanup(func() {
		require.NoError(t, errors.Join(p.close(), os.Remove(dir)))
	})
	if err := p.allow(nil); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		t.Skip("this kernel has no rules for devices:", err)
	} else {
		require.NoError(t, err)
	}
	open := func(path string) int {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestS66RulesOfDevices$")
		cmd.Env = append(os.Environ(), "OPEN_IN_CGROUP="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		_ = cmd.Run() // the exit code tells
		return cmd.ProcessState.ExitCode()
	}
	require.NoError(t, p.allow(pseudoDevices))
	require.Equal(t, 0, open("/dev/zero"))
	require.NoError(t, p.allow([]device{{false, 1, 3}}))
	require.Equal(t, refused, open("/dev/zero"))
	require.Equal(t, 0, open("/dev/null"))
}
