package actions

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

// marks returns the output of wipefs and blkid for file.
func marks(t *testing.T, file string) string {
	t.Helper()
	out := disktest.Run(t, "wipefs", "--no-act", "--noheadings", file)
	blkid, err := exec.Command(disktest.Need(t, "blkid"), "-p", file).CombinedOutput()
	if err == nil {
		out += string(blkid)
	}
	return strings.TrimSpace(out)
}

// After a wipe, wipefs and blkid recognize nothing on the disk or in the places of its partitions.
func TestWipeRemovesAllSignatures(t *testing.T) {
	t.Parallel()
	const start = 16 * blockdev.MiB // beyond the ends of the disk that are zeroed
	makers := map[string][]string{
		"ext4": {"mke2fs", "-q", "-t", "ext4"}, "vfat": {"mkfs.vfat"}, "swap": {"mkswap"},
		"xfs": {"mkfs.xfs", "-q"}, "btrfs": {"mkfs.btrfs", "-q"},
	}
	sizes := map[string]int64{"xfs": 320 * blockdev.MiB, "btrfs": 160 * blockdev.MiB}
	type disk struct {
		name string
		size int64
		make func(t *testing.T, file string)
	}
	var all []disk
	for name, cmd := range makers {
		all = append(all, disk{name, max(sizes[name], 48*blockdev.MiB), func(t *testing.T, file string) {
			if disktest.Program(cmd[0]) == "" {
				t.Skipf("%s is not installed: %s is not tried", cmd[0], name)
			}
			disktest.Run(t, cmd[0], append(cmd[1:], file)...)
		}})
	}
	for name, mark := range disktest.HandMade {
		all = append(all, disk{name, 80 * blockdev.MiB, func(t *testing.T, file string) {
			mark(disktest.MapFile(t, file))
		}})
	}
	for _, c := range all {
		for _, where := range []string{"disk", "gpt", "mbr", "logical"} {
			t.Run(c.name+" "+where, func(t *testing.T) {
				t.Parallel()
				part := filepath.Join(t.TempDir(), "part")
				disktest.NewFile(t, part, c.size)
				c.make(t, part)
				if marks(t, part) == "" {
					t.Fatal("wipefs and blkid do not recognize the original: the test is meaningless")
				}
				at, size := int64(start), c.size+start+32*blockdev.MiB
				if where == "disk" {
					at, size = 0, c.size
				}
				files, bound, file := disktest.Sparse(t, size)
				switch where {
				case "gpt":
					disktest.NewGPT(t, file, parttable.Span{Start: start, Size: c.size}, parttable.Span{Start: start + c.size, Size: 2 * blockdev.MiB})
				case "mbr":
					disktest.WriteMBR(t, file, 0, 0x83, start/512, c.size/512)
				case "logical":
					disktest.WriteMBR(t, file, 0, 0x0f, 8*blockdev.MiB/512, (size-10*blockdev.MiB)/512)
					disktest.WriteMBR(t, file, 8*blockdev.MiB, 0x83, 8*blockdev.MiB/512, c.size/512)
				}
				disktest.Put(t, part, file, at)
				res, log, err := try(t, Machine{Disks: files}, action.Wipe, bound, nil)
				if err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
				if res["verified"] != res["bytes"] || res["bytes"] == "0" {
					t.Errorf("%v", res)
				}
				for what, f := range map[string]string{"the disk": file, "the partition": disktest.Cut(t, file, at, c.size)} {
					if left := marks(t, f); left != "" {
						t.Errorf("%s still has: %s", what, left)
					}
				}
			})
		}
	}
}

// faultyDisks have one sector that cannot be written or read.
type faultyDisks struct {
	disk.FileDisks
	sector int64
	read   bool
}

func (d faultyDisks) Open(path string) (blockdev.Device, error) {
	dev, err := d.FileDisks.Open(path)
	return &faultyDevice{Device: dev, of: d}, err
}

type faultyDevice struct {
	blockdev.Device
	of    faultyDisks
	dirty bool // the page cache holds the sector
}

func (d *faultyDevice) hit(p []byte, off int64) bool {
	return off <= d.of.sector*512 && d.of.sector*512 < off+int64(len(p))
}

func (d *faultyDevice) WriteAt(p []byte, off int64) (int, error) {
	if !d.of.read && d.hit(p, off) {
		if len(p)%blockdev.PageSize == 0 { // direct I/O
			return 0, syscall.EIO
		}
		d.dirty = true
	}
	return d.Device.WriteAt(p, off)
}

// Sync fails if the page cache cannot be written, as in the kernel.
func (d *faultyDevice) Sync() error {
	if d.dirty {
		d.dirty = false
		return syscall.EIO
	}
	return d.Device.Sync()
}

func (d *faultyDevice) ReadAt(p []byte, off int64) (int, error) {
	if d.of.read && d.hit(p, off) {
		return 0, syscall.EIO
	}
	return d.Device.ReadAt(p, off)
}

func (d *faultyDevice) Zero(off, n int64) error { return blockdev.WriteZeros(d, off, n) }

func TestWipeNamesBadSector(t *testing.T) {
	t.Parallel()
	for _, sector := range []int64{0, 1, 5000, 20480 + 7, 64*2048 - 1} {
		for _, read := range []bool{false, true} {
			files, bound, file := disktest.Sparse(t, 64*blockdev.MiB)
			disktest.NewGPT(t, file, parttable.Span{Start: 10 * blockdev.MiB, Size: 10 * blockdev.MiB})
			_, log, err := try(t, Machine{Disks: faultyDisks{files, sector, read}}, action.Wipe, bound, nil)
			want := "sector " + fmt.Sprint(sector) + " cannot be " + map[bool]string{false: "written", true: "read"}[read]
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("sector %d, read %v: %v\n%s", sector, read, err, log)
			}
		}
	}
}

// After an interruption at any write, the next wipe still finds the partitions.
func TestWipeAfterInterruption(t *testing.T) {
	t.Parallel()
	fs := filepath.Join(t.TempDir(), "fs")
	disktest.Run(t, "mke2fs", "-q", "-t", "ext4", fs, "12M")
	untilItLives(t, func(die func(disk.FileDisks) disk.Disks) error {
		files, bound, file := disktest.Sparse(t, 64*blockdev.MiB)
		disktest.NewGPT(
			t,
			file,
			parttable.Span{Start: 16 * blockdev.MiB, Size: 12 * blockdev.MiB},
			parttable.Span{Start: 28 * blockdev.MiB, Size: 2 * blockdev.MiB},
		)
		disktest.Put(t, fs, file, 16*blockdev.MiB)
		_, _, first := try(t, Machine{Disks: die(files)}, action.Wipe, bound, nil)
		if _, log, err := try(t, Machine{Disks: files}, action.Wipe, bound, nil); err != nil {
			t.Fatalf("after %v: %v\n%s", first, err, log)
		}
		b := disktest.MapFile(t, file)
		if what := probe.FileSystem(bytes.NewReader(b[16*blockdev.MiB:28*blockdev.MiB]), 12*blockdev.MiB); what != "" {
			t.Errorf("after %v a %s is left", first, what)
		}
		return first
	})
}

func TestWipeAllDisks(t *testing.T) {
	t.Parallel()
	files, bound, _ := disktest.OldDisk(t, 32*blockdev.MiB)
	for _, d := range []action.Disk{
		{Path: "/dev/sdb", WWN: "W2", Size: 24 * blockdev.MiB},
		{Path: "/dev/sdc", Serial: "S3", Size: 24 * blockdev.MiB, Removable: true},
	} {
		file := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(file, disktest.OldData(24*blockdev.MiB), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, disk.FileDisk{Disk: d, File: file})
	}
	blank := func(n int) bool {
		t.Helper()
		b := disktest.MapFile(t, files[n].File)
		_, blank := probe.Signatures(bytes.NewReader(b), int64(len(b)), 512)
		return blank
	}
	if _, _, err := try(t, Machine{Disks: files}, action.Wipe, bound, map[string]string{"ALL_DISKS": "false"}); err != nil || !blank(0) ||
		blank(1) || blank(2) {
		t.Fatalf("the bound disk alone: %v %v %v %v", err, blank(0), blank(1), blank(2))
	}
	out, _, err := try(t, Machine{Disks: files}, action.Wipe, nil, map[string]string{"ALL_DISKS": "true"})
	if err != nil || !blank(1) || blank(2) {
		t.Fatalf("all disks: %v %v %v", err, blank(1), blank(2))
	}
	if d := out["disks"]; !strings.Contains(d, `"serial":"S1"`) || !strings.Contains(d, `"wwn":"W2"`) || strings.Contains(d, "S3") {
		t.Errorf("%s", d)
	}
	if _, _, err := try(t, Machine{Disks: files}, action.Wipe, bound, map[string]string{"ALL_DISKS": "maybe"}); err == nil {
		t.Error("ALL_DISKS=maybe was accepted")
	}
	if _, _, err := try(t, Machine{Disks: files}, action.Wipe, nil, nil); err == nil {
		t.Error("a disk was wiped, but none is bound")
	}
	// A protected disk is not wiped, neither with all disks nor by name.
	spare := func(env map[string]string) (string, error) {
		out, _, err := do(t, Machine{Disks: files}, action.Assignment{
			Disk: bound, Protected: []action.DiskID{{Serial: "S1"}, {WWN: "w2"}},
			Action: action.Action{Name: action.Wipe, Image: action.Wipe, Environment: env},
		})
		return out["disks"], err
	}
	for n, size := range []int{32 * blockdev.MiB, 24 * blockdev.MiB} {
		if err := os.WriteFile(files[n].File, disktest.OldData(size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := spare(map[string]string{"ALL_DISKS": "true"}); err != nil || out != "null" || blank(0) || blank(1) {
		t.Errorf("all but the protected: %v %s", err, out)
	}
	if _, err := spare(nil); err == nil || !strings.Contains(err.Error(), "protects this disk") || blank(0) {
		t.Errorf("the bound disk is protected: %v", err)
	}
	// A read-only disk cannot be wiped; the other one is.
	files[0].ReadOnly = true
	if err := os.WriteFile(files[1].File, disktest.OldData(24*blockdev.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := try(t, Machine{Disks: files}, action.Wipe, nil, map[string]string{"ALL_DISKS": "true"}); err == nil ||
		!strings.Contains(err.Error(), "read-only") || !blank(1) {
		t.Errorf("%v", err)
	}
}
