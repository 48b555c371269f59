package actions

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

func TestGrowPart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env  map[string]string
		seed bool
		want int64 // expected end of the root partition
	}{
		"all":           {want: 127},
		"by name":       {env: map[string]string{"PARTITION": "PARTLABEL=root"}, want: 127},
		"by number":     {env: map[string]string{"PARTITION": "2"}, want: 127},
		"by path":       {env: map[string]string{"DEST_DISK": "/dev/alias2"}, want: 127},
		"with a rest":   {env: map[string]string{"RESERVE_MIB": "20"}, want: 107},
		"before a seed": {seed: true, want: 111},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = 128 * blockdev.MiB
			files, disk, file := disktest.GrownDisk(t, size)
			if c.seed {
				if _, log, err := try(t, Machine{Disks: files}, action.ConfigDrive, disk, nil); err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
			}
			before := disktest.ReadSpans(t, file)
			for range 2 { // the second time changes nothing
				out, log, err := try(t, Machine{Disks: files}, action.GrowPart, disk, c.env)
				if err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
				if out["partition"] != "2" || out["to"] != fmt.Sprint((c.want-4)*blockdev.MiB) || out["filesystem"] != "left" {
					t.Errorf("%v", out)
				}
			}
			parts := disktest.ReadSpans(t, file)
			if root := parts[1]; root.Start != 4*blockdev.MiB || root.Start+root.Size != c.want*blockdev.MiB || root.UUID != before[1].UUID ||
				root.Kind != before[1].Kind {
				t.Errorf("%+v, before %+v", root, before[1])
			}
			if parts[0] != before[0] || c.seed && parts[2] != before[2] {
				t.Errorf("another partition changed: %+v", parts)
			}
			disktest.Judge(t, "No problems found", "sgdisk", "-v", file)
			disktest.Judge(t, "No errors detected", "sfdisk", "-V", file)
		})
	}
}

// A configdrive fits into the space that growpart leaves free.
func TestGrowPartThenConfigDrive(t *testing.T) {
	t.Parallel()
	files, disk, file := disktest.GrownDisk(t, 128*blockdev.MiB)
	for _, c := range []struct{ native, key, value string }{
		{action.GrowPart, "RESERVE_MIB", "17"},
		{action.ConfigDrive, "USER_DATA", "x"},
		{action.GrowPart, "", ""},
	} {
		if _, log, err := try(t, Machine{Disks: files}, c.native, disk, map[string]string{c.key: c.value}); err != nil {
			t.Fatalf("%s: %v\n%s", c.native, err, log)
		}
	}
	if p := disktest.ReadSpans(t, file); len(p) != 3 || p[1].Start+p[1].Size != p[2].Start || p[2].Name != parttable.SeedLabel {
		t.Errorf("%+v", p)
	}
}

func TestGrowPartRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env  map[string]string
		disk func(t *testing.T, file string)
		text string
	}{
		"one behind it":       {env: map[string]string{"PARTITION": "1"}, text: `partition 2 "root" lies behind partition 1`},
		"none of that number": {env: map[string]string{"PARTITION": "7"}, text: "not found among: 1 ("},
		"none of that name":   {env: map[string]string{"PARTITION": "PARTLABEL=x"}, text: "not found among"},
		"two ways to say it":  {env: map[string]string{"PARTITION": "2", "DEST_DISK": "/dev/alias2"}, text: "names a partition already"},
		"no selector":         {env: map[string]string{"PARTITION": "root"}, text: "must be a number"},
		"no number":           {env: map[string]string{"RESERVE_MIB": "-1"}, text: "must be a whole number of MiB"},
		"no truth":            {env: map[string]string{"FILESYSTEM": "x"}, text: "must be true or false"},
		"another disk":        {env: map[string]string{"DEST_DISK": "/dev/sdb"}, text: "not the disk bound"},
		"no table":            {disk: func(t *testing.T, file string) { disktest.WriteAt(t, file, 0, make([]byte, blockdev.MiB)) }, text: "no partition table"},
		"a damaged table":     {disk: func(t *testing.T, file string) { disktest.WriteAt(t, file, 1024, []byte("x")) }, text: "checksum"},
		"an extended one": {disk: func(t *testing.T, file string) {
			disktest.WriteAt(t, file, 0, make([]byte, blockdev.MiB))
			disktest.WriteMBR(t, file, 0, 0x0f, 2048, 2048)
		}, text: "extended"},
	} {
		files, disk, file := disktest.GrownDisk(t, 64*blockdev.MiB)
		if c.disk != nil {
			c.disk(t, file)
		}
		content := disktest.MapFile(t, file)
		before := sha256.Sum256(content)
		_, _, err := try(t, Machine{Disks: files}, action.GrowPart, disk, c.env)
		if err == nil || !strings.Contains(err.Error(), c.text) || sha256.Sum256(content) != before {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}

// A foreign table at the end of the disk is not used as the backup of a damaged one.
func TestGrowPartIgnoresForeignBackup(t *testing.T) {
	t.Parallel()
	files, disk, file := disktest.GrownDisk(t, 64*blockdev.MiB)
	older := filepath.Join(t.TempDir(), "older")
	disktest.NewFile(t, older, 64*blockdev.MiB)
	disktest.Run(t, "sgdisk", "-o", "-n", "1:2048:4095", older)
	disktest.CopyData(t, older, 63*blockdev.MiB, blockdev.MiB, file, 63*blockdev.MiB)
	disktest.WriteAt(t, file, 1024, []byte("x"))
	if _, _, err := try(t, Machine{Disks: files}, action.GrowPart, disk, nil); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("%v", err)
	}
}

// The power may fail at any write: there is always a complete table, and the next run gives the
// same result as without the failure.
func TestGrowPartAfterInterruption(t *testing.T) {
	t.Parallel()
	untilItLives(t, func(die func(disk.FileDisks) disk.Disks) error {
		files, disk, file := disktest.GrownDisk(t, 64*blockdev.MiB)
		_, _, first := try(t, Machine{Disks: die(files)}, action.GrowPart, disk, nil)
		if _, log, err := try(t, Machine{Disks: files}, action.GrowPart, disk, nil); err != nil {
			t.Fatalf("after %v: %v\n%s", first, err, log)
		}
		if p := disktest.ReadSpans(t, file); len(p) != 2 || p[0].Name != "esp" || p[1].Start+p[1].Size != 63*blockdev.MiB {
			t.Errorf("after %v: %+v", first, p)
		}
		if first == nil {
			disktest.Judge(t, "No problems found", "sgdisk", "-v", file)
		}
		return first
	})
}

func TestGrowPartMBR(t *testing.T) {
	t.Parallel()
	files, disk, file := disktest.Sparse(t, 64*blockdev.MiB)
	disktest.WriteMBR(t, file, 0, 0x83, 2048, 8192)
	disktest.WriteAt(t, file, 440, []byte("\x78\x56\x34\x12"))
	if _, _, err := try(t, Machine{Disks: faultyDisks{files, 0, false}}, action.GrowPart, disk, nil); err == nil {
		t.Error("a disk that refuses the write was a success")
	}
	for range 2 {
		out, log, err := try(t, Machine{Disks: files}, action.GrowPart, disk, map[string]string{"PARTITION": "PARTUUID=12345678-01"})
		if err != nil || out["to"] != fmt.Sprint(63*blockdev.MiB) {
			t.Fatalf("%v %v\n%s", out, err, log)
		}
	}
	if p := disktest.ReadSpans(
		t,
		file,
	); len(p) != 1 || p[0].Start != blockdev.MiB || p[0].Size != 63*blockdev.MiB ||
		p[0].UUID != "12345678-01" {
		t.Errorf("%+v", p)
	}
	disktest.Judge(t, "No errors detected", "sfdisk", "-V", file)
}

// The kernel grows the file system in the partition.
func TestGrowPartGrowsTheFileSystem(t *testing.T) {
	for fstype, mkfs := range map[string][]string{
		"ext4": {"mke2fs", "-q", "-t", "ext4", "-L", "labroot"}, "xfs": {"mkfs.xfs", "-q", "-L", "labroot"},
		"btrfs": {"mkfs.btrfs", "-q", "-L", "labroot"},
	} {
		t.Run(fstype, func(t *testing.T) {
			if disktest.Program(mkfs[0]) == "" {
				t.Skipf("%s is not installed", mkfs[0])
			}
			from, to := int64(64*blockdev.MiB), int64(600*blockdev.MiB)
			if fstype != "ext4" {
				from = 320 * blockdev.MiB
			}
			files, disk, file := disktest.Sparse(t, to)
			disktest.NewGPT(t, file, parttable.Span{Start: blockdev.MiB, Size: from, Name: "root"})
			part := filepath.Join(t.TempDir(), "fs")
			disktest.NewFile(t, part, from)
			disktest.Run(t, mkfs[0], append(mkfs[1:], part)...)
			disktest.Put(t, part, file, blockdev.MiB)
			loops := newLoopFiles(t, file, fstype)
			for range 2 {
				out, log, err := try(t, Machine{Disks: files, Files: loops}, action.GrowPart, disk, map[string]string{"PARTITION": "LABEL=labroot"})
				if fstype == "ext4" && !mayResize(t) {
					if err != nil || out["filesystem"] != "left" || !strings.Contains(log, "the installed system must grow") {
						t.Errorf("%v %v\n%s", out, err, log)
					}
					t.Skip("growing an ext4 needs CAP_SYS_RESOURCE")
				}
				if err != nil || out["filesystem"] != "grown" {
					t.Fatalf("%v %v\n%s", out, err, log)
				}
			}
			parts, err := loops.Partitions(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			if n := size(t, loops, parts[0].Path, fstype); n < to*8/10 {
				t.Errorf("it has %d bytes, the disk %d", n, to)
			}
			if fstype == "ext4" {
				disktest.Judge(t, "labroot", "e2fsck", "-fn", disktest.Cut(t, file, blockdev.MiB, parts[0].Size))
			}
			out, _, err := try(t, Machine{Disks: files, Files: loops}, action.GrowPart, disk, map[string]string{"FILESYSTEM": "false"})
			if err != nil || out["filesystem"] != "left" {
				t.Errorf("%v %v", out, err)
			}
		})
	}
}

// mayResize reports whether this process has CAP_SYS_RESOURCE.
func mayResize(t *testing.T) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err == nil && n>>24&1 == 1
}
