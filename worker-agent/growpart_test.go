package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
)

// grownDisk returns a disk of size bytes with the table of an image of 24 MiB: an ESP at 1 MiB and
// a root at 4 MiB, as image2disk writes it.
func grownDisk(t *testing.T, size int64) (FileDisks, *action.Disk, string) {
	t.Helper()
	files, disk, file := sparse(t, 24*mib)
	newGPT(t, file, span{start: mib, size: 3 * mib, name: "esp"}, span{start: 4 * mib, size: 16 * mib, name: "root"})
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	disk.Size = size
	files[0].Size = size
	return files, disk, file
}

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
			const size = 128 * mib
			files, disk, file := grownDisk(t, size)
			if c.seed {
				if _, log, err := try(t, Config{Disks: files}, action.ConfigDrive, disk, nil); err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
			}
			before := readSpans(t, file)
			for range 2 { // the second time changes nothing
				out, log, err := try(t, Config{Disks: files}, action.GrowPart, disk, c.env)
				if err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
				if out["partition"] != "2" || out["to"] != fmt.Sprint((c.want-4)*mib) || out["filesystem"] != "left" {
					t.Errorf("%v", out)
				}
			}
			parts := readSpans(t, file)
			if root := parts[1]; root.start != 4*mib || root.start+root.size != c.want*mib || root.uuid != before[1].uuid ||
				root.kind != before[1].kind {
				t.Errorf("%+v, before %+v", root, before[1])
			}
			if parts[0] != before[0] || c.seed && parts[2] != before[2] {
				t.Errorf("another partition changed: %+v", parts)
			}
			judge(t, "No problems found", "sgdisk", "-v", file)
			judge(t, "No errors detected", "sfdisk", "-V", file)
		})
	}
}

// A configdrive fits into the space that growpart leaves free.
func TestGrowPartThenConfigDrive(t *testing.T) {
	t.Parallel()
	files, disk, file := grownDisk(t, 128*mib)
	for _, c := range []struct{ native, key, value string }{
		{action.GrowPart, "RESERVE_MIB", "17"},
		{action.ConfigDrive, "USER_DATA", "x"},
		{action.GrowPart, "", ""},
	} {
		if _, log, err := try(t, Config{Disks: files}, c.native, disk, map[string]string{c.key: c.value}); err != nil {
			t.Fatalf("%s: %v\n%s", c.native, err, log)
		}
	}
	if p := readSpans(t, file); len(p) != 3 || p[1].start+p[1].size != p[2].start || p[2].name != seedLabel {
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
		"none of that number": {env: map[string]string{"PARTITION": "7"}, text: "there is none; there are: 1 ("},
		"none of that name":   {env: map[string]string{"PARTITION": "PARTLABEL=x"}, text: "there is none"},
		"two ways to say it":  {env: map[string]string{"PARTITION": "2", "DEST_DISK": "/dev/alias2"}, text: "names a partition already"},
		"no selector":         {env: map[string]string{"PARTITION": "root"}, text: "want a number"},
		"no number":           {env: map[string]string{"RESERVE_MIB": "-1"}, text: "want a number of MiB"},
		"no truth":            {env: map[string]string{"FILESYSTEM": "x"}, text: "want true or false"},
		"another disk":        {env: map[string]string{"DEST_DISK": "/dev/sdb"}, text: "not the disk bound"},
		"no table":            {disk: func(t *testing.T, file string) { write(t, file, 0, make([]byte, mib)) }, text: "no partition table"},
		"a damaged table":     {disk: func(t *testing.T, file string) { write(t, file, 1024, []byte("x")) }, text: "checksum"},
		"an extended one": {disk: func(t *testing.T, file string) {
			write(t, file, 0, make([]byte, mib))
			writeMBR(t, file, 0, 0x0f, 2048, 2048)
		}, text: "extended"},
	} {
		files, disk, file := grownDisk(t, 64*mib)
		if c.disk != nil {
			c.disk(t, file)
		}
		content := mapFile(t, file)
		before := sha256.Sum256(content)
		_, _, err := try(t, Config{Disks: files}, action.GrowPart, disk, c.env)
		if err == nil || !strings.Contains(err.Error(), c.text) || sha256.Sum256(content) != before {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}

// write writes b to a file at off.
func write(t *testing.T, file string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(b, off)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A foreign table at the end of the disk is not used as the backup of a damaged one.
func TestGrowPartIgnoresForeignBackup(t *testing.T) {
	t.Parallel()
	files, disk, file := grownDisk(t, 64*mib)
	older := filepath.Join(t.TempDir(), "older")
	newFile(t, older, 64*mib)
	sh(t, "sgdisk", "-o", "-n", "1:2048:4095", older)
	copyData(t, older, 63*mib, mib, file, 63*mib)
	write(t, file, 1024, []byte("x"))
	if _, _, err := try(t, Config{Disks: files}, action.GrowPart, disk, nil); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("%v", err)
	}
}

// The power may fail at any write: there is always a complete table, and the next run gives the
// same result as without the failure.
func TestGrowPartAfterInterruption(t *testing.T) {
	t.Parallel()
	untilItLives(t, func(die func(FileDisks) Disks) error {
		files, disk, file := grownDisk(t, 64*mib)
		_, _, first := try(t, Config{Disks: die(files)}, action.GrowPart, disk, nil)
		if _, log, err := try(t, Config{Disks: files}, action.GrowPart, disk, nil); err != nil {
			t.Fatalf("after %v: %v\n%s", first, err, log)
		}
		if p := readSpans(t, file); len(p) != 2 || p[0].name != "esp" || p[1].start+p[1].size != 63*mib {
			t.Errorf("after %v: %+v", first, p)
		}
		if first == nil {
			judge(t, "No problems found", "sgdisk", "-v", file)
		}
		return first
	})
}

func TestGrowPartMBR(t *testing.T) {
	t.Parallel()
	files, disk, file := sparse(t, 64*mib)
	writeMBR(t, file, 0, 0x83, 2048, 8192)
	write(t, file, 440, []byte("\x78\x56\x34\x12"))
	if _, _, err := try(t, Config{Disks: faultyDisks{files, 0, false}}, action.GrowPart, disk, nil); err == nil {
		t.Error("a disk that refuses the write was a success")
	}
	for range 2 {
		out, log, err := try(t, Config{Disks: files}, action.GrowPart, disk, map[string]string{"PARTITION": "PARTUUID=12345678-01"})
		if err != nil || out["to"] != fmt.Sprint(63*mib) {
			t.Fatalf("%v %v\n%s", out, err, log)
		}
	}
	if p := readSpans(t, file); len(p) != 1 || p[0].start != mib || p[0].size != 63*mib || p[0].uuid != "12345678-01" {
		t.Errorf("%+v", p)
	}
	judge(t, "No errors detected", "sfdisk", "-V", file)
}

// The kernel grows the file system in the partition.
func TestGrowPartGrowsTheFileSystem(t *testing.T) {
	for fstype, mkfs := range map[string][]string{
		"ext4": {"mke2fs", "-q", "-t", "ext4", "-L", "labroot"}, "xfs": {"mkfs.xfs", "-q", "-L", "labroot"},
		"btrfs": {"mkfs.btrfs", "-q", "-L", "labroot"},
	} {
		t.Run(fstype, func(t *testing.T) {
			if program(mkfs[0]) == "" {
				t.Skipf("%s is not installed", mkfs[0])
			}
			from, to := int64(64*mib), int64(600*mib)
			if fstype != "ext4" {
				from = 320 * mib
			}
			files, disk, file := sparse(t, to)
			newGPT(t, file, span{start: mib, size: from, name: "root"})
			part := filepath.Join(t.TempDir(), "fs")
			newFile(t, part, from)
			sh(t, mkfs[0], append(mkfs[1:], part)...)
			put(t, part, file, mib)
			loops := newLoopFiles(t, file, fstype)
			for range 2 {
				out, log, err := try(t, Config{Disks: files, Files: loops}, action.GrowPart, disk, map[string]string{"PARTITION": "LABEL=labroot"})
				if fstype == "ext4" && !mayResize(t) {
					if err != nil || out["filesystem"] != "left" || !strings.Contains(log, "the installed system has to grow") {
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
				judge(t, "labroot", "e2fsck", "-fn", cut(t, file, mib, parts[0].Size))
			}
			out, _, err := try(t, Config{Disks: files, Files: loops}, action.GrowPart, disk, map[string]string{"FILESYSTEM": "false"})
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
