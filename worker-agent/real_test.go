package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ingotmetal/ingot/action"
)

// program returns the path of a system program, or "" if it is not installed.
func program(name string) string {
	for _, p := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if found, err := exec.LookPath(p); err == nil {
			return found
		}
	}
	return ""
}

// need returns the path of a program that deploy/deps.sh installs.
func need(t *testing.T, name string) string {
	t.Helper()
	p := program(name)
	if p == "" {
		t.Fatalf("%s is not installed: run make deps", name)
	}
	return p
}

// sh runs a program and returns its output.
func sh(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(need(t, name), args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// sparse creates a disk of size bytes that reads as zero.
func sparse(t *testing.T, size int64) (FileDisks, *action.Disk, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	newFile(t, file, size)
	d := action.Disk{Path: "/dev/sda", Serial: "S1", Size: size}
	return FileDisks{{Disk: d, File: file}}, &d, file
}

// put copies a file into another one at off, without its holes.
func put(t *testing.T, from, to string, off int64) {
	t.Helper()
	st, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	copyData(t, from, 0, st.Size(), to, off)
}

// cut copies n bytes at off of a file into a new file.
func cut(t *testing.T, from string, off, n int64) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "part")
	newFile(t, to, n)
	copyData(t, from, off, n, to, 0)
	return to
}

// try carries out one action without a server. It returns the action's output and log.
func try(t *testing.T, cfg Config, native string, disk *action.Disk, env map[string]string) (map[string]string, string, error) {
	t.Helper()
	cfg.Server, cfg.Pin, cfg.Machine, cfg.Claim = "https://192.0.2.1:7443", "sha256:"+strings.Repeat("0", 64), "m1", "c0ffee"
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	x := &attempt{agent: a, run: "run", env: env, alias: "/dev/alias", bound: disk, output: map[string]string{}}
	return do(t, x, native)
}

// do carries out an action as attempt x.
func do(t *testing.T, x *attempt, native string) (map[string]string, string, error) {
	t.Helper()
	env := x.env
	err := x.perform(t.Context(), action.Assignment{Action: action.Action{Name: native, Image: native, Environment: env}})
	return x.output, string(x.tail), err
}

// dyingDisks fail after a number of writes, like a power cut: half of the next write still arrives
// and nothing after it.
type dyingDisks struct {
	FileDisks
	left *int
}

func (d dyingDisks) Open(path string) (Device, error) {
	dev, err := d.FileDisks.Open(path)
	return &dyingDevice{dev, d.left}, err
}

type dyingDevice struct {
	Device
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

func (d *dyingDevice) Zero(off, n int64) error { return zeroByWriting(d, off, n) }
func (d *dyingDevice) Sync() error {
	if *d.left < 0 {
		return errPlug
	}
	return nil
}

// untilItLives calls f with disks that fail after 0, 1, 2 … writes, until f succeeds.
func untilItLives(t *testing.T, f func(die func(FileDisks) Disks) error) {
	t.Helper()
	for n := range 500 {
		left := n
		err := f(func(d FileDisks) Disks { return dyingDisks{d, &left} })
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
	out, err := exec.Command(need(l.t, "losetup"), "--find", "--show", "--offset", fmt.Sprint(off), "--sizelimit", fmt.Sprint(n),
		l.file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	l.inUse = append(l.inUse, strings.TrimSpace(string(out)))
	return nil
}

func (l *loopFiles) detach() {
	for _, dev := range l.inUse {
		if out, err := exec.Command(need(l.t, "losetup"), "-d", dev).CombinedOutput(); err != nil {
			l.t.Errorf("detaching %s: %v: %s", dev, err, out)
		}
	}
	l.inUse = nil
}

func (l *loopFiles) Partitions(context.Context, string) ([]Partition, error) {
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
	table, err := readTable(f, st.Size(), 512)
	if err != nil {
		return nil, err
	}
	var parts []Partition
	for _, p := range table.parts {
		if err := l.attach(p.start, p.size); err != nil {
			return nil, err
		}
		parts = append(parts, Partition{Number: p.number, Path: l.inUse[len(l.inUse)-1], Size: p.size})
	}
	return parts, nil
}

func (l *loopFiles) Mount(ctx context.Context, device, fstype string, readOnly bool) (string, func() error, error) {
	return HostFilesystems{}.Mount(ctx, device, fstype, readOnly)
}

func (l *loopFiles) Grow(ctx context.Context, device, fstype string, size int64) error {
	return HostFilesystems{}.Grow(ctx, device, fstype, size)
}

// newGPT writes a table to a disk in a file. It uses start, size and name of parts; their position
// is their number.
func newGPT(t *testing.T, file string, parts ...span) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	g := &gpt{sector: 512, header: make([]byte, 92), entries: make([]byte, 128*128)}
	copy(g.header, "EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")
	copy(g.header[gptDiskGUID:], "0123456789abcdef")
	g.put64(gptMyLBA, 1)
	g.put64(gptEntriesLBA, 2)
	g.put64(gptFirstUsable, 34)
	binary.LittleEndian.PutUint32(g.header[gptCount:], 128)
	binary.LittleEndian.PutUint32(g.header[gptEntrySize:], 128)
	for i, p := range parts {
		g.entry(i).set(basicData, uint64(p.start/512), uint64((p.start+p.size)/512-1), p.name)
	}
	g.resize(st.Size())
	mbr := make([]byte, 512)
	mbr[446+4], mbr[446+8], mbr[510], mbr[511] = 0xee, 1, 0x55, 0xaa
	if _, err := f.WriteAt(mbr, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.write(&fileDevice{f, st.Size()}), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// readSpans returns the partitions of a disk in a file.
func readSpans(t *testing.T, file string) []span {
	t.Helper()
	b := mapFile(t, file)
	table, err := readTable(bytes.NewReader(b), int64(len(b)), 512)
	if err != nil {
		t.Fatal(err)
	}
	return table.parts
}

// size returns the size that the mounted file system reports.
func size(t *testing.T, files Filesystems, device, fstype string) int64 {
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
