package agent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ingotmetal/ingot/action"
)

// handMade writes signatures that could otherwise be made only with a kernel or special programs,
// in the form that blkid(8) recognizes.
var handMade = map[string]func(b []byte){
	"md 0.90": func(b []byte) {
		s := b[len(b)&^0xffff-0x10000:]
		for i, v := range []uint32{0xa92b4efc, 0, 90, 0, 0, 0x11111111, 1700000000, 1, uint32(len(b)/1024 - 128), 2, 2} {
			binary.LittleEndian.PutUint32(s[4*i:], v)
		}
		copy(s[52:], "0123456789ab") // the rest of the UUID
	},
	"md 1.0": func(b []byte) { mdSuperblock(b, len(b)&^0xfff-0x2000) },
	"md 1.1": func(b []byte) { mdSuperblock(b, 0) },
	"md 1.2": func(b []byte) { mdSuperblock(b, 4096) },
	"LVM": func(b []byte) {
		s := b[512:1024]
		copy(s, "LABELONE\x01")
		binary.LittleEndian.PutUint32(s[20:], 32)
		copy(s[24:], "LVM2 001"+"0123456789abcdefghijklmnopqrstuv")
		binary.LittleEndian.PutUint32(s[16:], ^crc32.Update(^uint32(0xf597a6cf), crc32.IEEETable, s[20:]))
	},
	"Ceph": func(b []byte) { copy(b, "bluestore block device\n01234567-89ab-cdef-0123-456789abcdef\n\x02\x01") },
	"zfs": func(b []byte) {
		end := len(b) &^ (256<<10 - 1)
		for _, label := range []int{0, 256 << 10, end - 512<<10, end - 256<<10} {
			for at := label + 128<<10; at < label+256<<10; at += 1024 {
				binary.LittleEndian.PutUint64(b[at:], 0x00bab10c)
			}
		}
	},
}

func mdSuperblock(b []byte, at int) {
	s := b[at:]
	binary.LittleEndian.PutUint32(s, 0xa92b4efc)
	binary.LittleEndian.PutUint32(s[4:], 1)
	copy(s[16:], "0123456789abcdefname")
	binary.LittleEndian.PutUint64(s[144:], uint64(at/512))
}

// marks returns the output of wipefs and blkid for file.
func marks(t *testing.T, file string) string {
	t.Helper()
	out := sh(t, "wipefs", "--no-act", "--noheadings", file)
	blkid, err := exec.Command(need(t, "blkid"), "-p", file).CombinedOutput()
	if err == nil {
		out += string(blkid)
	}
	return strings.TrimSpace(out)
}

// After a wipe, wipefs and blkid recognize nothing on the disk or in the places of its partitions.
func TestWipeRemovesAllSignatures(t *testing.T) {
	t.Parallel()
	const start = 16 * mib // beyond the ends of the disk that are zeroed
	makers := map[string][]string{
		"ext4": {"mke2fs", "-q", "-t", "ext4"}, "vfat": {"mkfs.vfat"}, "swap": {"mkswap"},
		"xfs": {"mkfs.xfs", "-q"}, "btrfs": {"mkfs.btrfs", "-q"},
	}
	sizes := map[string]int64{"xfs": 320 * mib, "btrfs": 160 * mib}
	type disk struct {
		name string
		size int64
		make func(t *testing.T, file string)
	}
	var all []disk
	for name, cmd := range makers {
		all = append(all, disk{name, max(sizes[name], 48*mib), func(t *testing.T, file string) {
			if program(cmd[0]) == "" {
				t.Skipf("%s is not installed: %s is not tried", cmd[0], name)
			}
			sh(t, cmd[0], append(cmd[1:], file)...)
		}})
	}
	for name, mark := range handMade {
		all = append(all, disk{name, 80 * mib, func(t *testing.T, file string) {
			mark(mapFile(t, file))
		}})
	}
	for _, c := range all {
		for _, where := range []string{"disk", "gpt", "mbr", "logical"} {
			t.Run(c.name+" "+where, func(t *testing.T) {
				t.Parallel()
				part := filepath.Join(t.TempDir(), "part")
				newFile(t, part, c.size)
				c.make(t, part)
				if marks(t, part) == "" {
					t.Fatal("wipefs and blkid do not recognize the original: the test is meaningless")
				}
				at, size := int64(start), c.size+start+32*mib
				if where == "disk" {
					at, size = 0, c.size
				}
				files, bound, file := sparse(t, size)
				switch where {
				case "gpt":
					newGPT(t, file, span{start: start, size: c.size}, span{start: start + c.size, size: 2 * mib})
				case "mbr":
					writeMBR(t, file, 0, 0x83, start/512, c.size/512)
				case "logical":
					writeMBR(t, file, 0, 0x0f, 8*mib/512, (size-10*mib)/512)
					writeMBR(t, file, 8*mib, 0x83, 8*mib/512, c.size/512)
				}
				put(t, part, file, at)
				res, log, err := try(t, Config{Disks: files}, action.Wipe, bound, nil)
				if err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
				if res["verified"] != res["bytes"] || res["bytes"] == "0" {
					t.Errorf("%v", res)
				}
				for what, f := range map[string]string{"the disk": file, "the partition": cut(t, file, at, c.size)} {
					if left := marks(t, f); left != "" {
						t.Errorf("%s still has: %s", what, left)
					}
				}
			})
		}
	}
}

// writeMBR writes a table with one entry at off.
func writeMBR(t *testing.T, file string, off int64, kind byte, start, n int64) {
	t.Helper()
	b := make([]byte, 512)
	b[510], b[511] = 0x55, 0xaa
	b[446+4] = kind
	binary.LittleEndian.PutUint32(b[446+8:], uint32(start))
	binary.LittleEndian.PutUint32(b[446+12:], uint32(n))
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// faultyDisks have one sector that cannot be written or read.
type faultyDisks struct {
	FileDisks
	sector int64
	read   bool
}

func (d faultyDisks) Open(path string) (Device, error) {
	dev, err := d.FileDisks.Open(path)
	return &faultyDevice{Device: dev, of: d}, err
}

type faultyDevice struct {
	Device
	of    faultyDisks
	dirty bool // the page cache holds the sector
}

func (d *faultyDevice) hit(p []byte, off int64) bool {
	return off <= d.of.sector*512 && d.of.sector*512 < off+int64(len(p))
}

func (d *faultyDevice) WriteAt(p []byte, off int64) (int, error) {
	if !d.of.read && d.hit(p, off) {
		if len(p)%pageSize == 0 { // direct I/O
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

func (d *faultyDevice) Zero(off, n int64) error { return zeroByWriting(d, off, n) }

func TestWipeNamesBadSector(t *testing.T) {
	t.Parallel()
	for _, sector := range []int64{0, 1, 5000, 20480 + 7, 64*2048 - 1} {
		for _, read := range []bool{false, true} {
			files, bound, file := sparse(t, 64*mib)
			newGPT(t, file, span{start: 10 * mib, size: 10 * mib})
			_, log, err := try(t, Config{Disks: faultyDisks{files, sector, read}}, action.Wipe, bound, nil)
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
	sh(t, "mke2fs", "-q", "-t", "ext4", fs, "12M")
	untilItLives(t, func(die func(FileDisks) Disks) error {
		files, bound, file := sparse(t, 64*mib)
		newGPT(t, file, span{start: 16 * mib, size: 12 * mib}, span{start: 28 * mib, size: 2 * mib})
		put(t, fs, file, 16*mib)
		_, _, first := try(t, Config{Disks: die(files)}, action.Wipe, bound, nil)
		if _, log, err := try(t, Config{Disks: files}, action.Wipe, bound, nil); err != nil {
			t.Fatalf("after %v: %v\n%s", first, err, log)
		}
		b := mapFile(t, file)
		if what := probeFS(bytes.NewReader(b[16*mib:28*mib]), 12*mib); what != "" {
			t.Errorf("after %v a %s is left", first, what)
		}
		return first
	})
}

func TestWipeAllDisks(t *testing.T) {
	t.Parallel()
	files, bound, _ := testDisk(t, 32*mib)
	for _, d := range []action.Disk{
		{Path: "/dev/sdb", WWN: "W2", Size: 24 * mib},
		{Path: "/dev/sdc", Serial: "S3", Size: 24 * mib, Removable: true},
	} {
		file := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(file, oldData(24*mib), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, FileDisk{Disk: d, File: file})
	}
	blank := func(n int) bool {
		t.Helper()
		b := mapFile(t, files[n].File)
		_, blank := Signatures(bytes.NewReader(b), int64(len(b)), 512)
		return blank
	}
	if _, _, err := try(t, Config{Disks: files}, action.Wipe, bound, map[string]string{"ALL_DISKS": "false"}); err != nil || !blank(0) ||
		blank(1) || blank(2) {
		t.Fatalf("the bound disk alone: %v %v %v %v", err, blank(0), blank(1), blank(2))
	}
	out, _, err := try(t, Config{Disks: files}, action.Wipe, nil, map[string]string{"ALL_DISKS": "true"})
	if err != nil || !blank(1) || blank(2) {
		t.Fatalf("all disks: %v %v %v", err, blank(1), blank(2))
	}
	if d := out["disks"]; !strings.Contains(d, `"serial":"S1"`) || !strings.Contains(d, `"wwn":"W2"`) || strings.Contains(d, "S3") {
		t.Errorf("%s", d)
	}
	if _, _, err := try(t, Config{Disks: files}, action.Wipe, bound, map[string]string{"ALL_DISKS": "maybe"}); err == nil {
		t.Error("ALL_DISKS=maybe was accepted")
	}
	if _, _, err := try(t, Config{Disks: files}, action.Wipe, nil, nil); err == nil {
		t.Error("a disk was wiped, but none is bound")
	}
	// A protected disk is not wiped, neither with all disks nor by name.
	a, err := New(Config{
		Disks: files, Server: "https://192.0.2.1:7443", Pin: "sha256:" + strings.Repeat("0", 64), Machine: "m1",
		Claim: "c0ffee",
	})
	if err != nil {
		t.Fatal(err)
	}
	spare := func(env map[string]string) (string, error) {
		out, _, err := do(t, &attempt{
			agent: a, env: env, bound: bound, output: map[string]string{},
			spared: []action.DiskID{{Serial: "S1"}, {WWN: "w2"}},
		}, action.Wipe)
		return out["disks"], err
	}
	for n, size := range []int{32 * mib, 24 * mib} {
		if err := os.WriteFile(files[n].File, oldData(size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := spare(map[string]string{"ALL_DISKS": "true"}); err != nil || out != "null" || blank(0) || blank(1) {
		t.Errorf("all but the protected: %v %s", err, out)
	}
	if _, err := spare(nil); err == nil || !strings.Contains(err.Error(), "protects it") || blank(0) {
		t.Errorf("the bound disk is protected: %v", err)
	}
	// A read-only disk cannot be wiped; the other one is.
	files[0].ReadOnly = true
	if err := os.WriteFile(files[1].File, oldData(24*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := try(t, Config{Disks: files}, action.Wipe, nil, map[string]string{"ALL_DISKS": "true"}); err == nil ||
		!strings.Contains(err.Error(), "read-only") || !blank(1) {
		t.Errorf("%v", err)
	}
}
