package actions

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/filesystest"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// fakePrograms record what would be run. Partitions are files with what the programs leave there.
type fakePrograms struct {
	filesystest.FakeFiles
	disks   disk.FileDisks
	dir     string
	missing []string
	fails   string // the command that fails with exit code 5
	ran     []string
	volumes map[string]filesys.Volume
}

// Partitions returns the partitions of the table on the disk: each is an empty file of its size.
func (f *fakePrograms) Partitions(_ context.Context, path string) ([]filesys.Partition, error) {
	all, err := f.disks.Partitions(path)
	if err != nil {
		return nil, err
	}
	var parts []filesys.Partition
	for _, p := range all {
		file := filepath.Join(f.dir, fmt.Sprintf("%s%d", filepath.Base(path), p.Number))
		if _, err := os.Stat(file); err != nil {
			if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, p.Size)); err != nil {
				return nil, err
			}
		}
		parts = append(parts, filesys.Partition{Number: p.Number, Path: file, Size: p.Size})
	}
	return parts, nil
}

func (f *fakePrograms) Has(program string) error {
	if slices.Contains(f.missing, program) {
		return fmt.Errorf("finding the program %s: it is missing", program)
	}
	return nil
}

func (f *fakePrograms) Volume(name string) (filesys.Volume, bool) {
	v, ok := f.volumes[name]
	return v, ok
}

func (f *fakePrograms) Run(_ context.Context, program string, args []string, log func(string)) (int, error) {
	line := program + " " + strings.Join(args, " ")
	line = strings.ReplaceAll(strings.ReplaceAll(line, " --config "+lvmConfig, ""), f.dir+"/", "")
	f.ran = append(f.ran, line)
	if f.fails != "" && strings.HasPrefix(line, f.fails) {
		log("it does not work")
		return 5, errors.New("exit status 5")
	}

	file := func(name string) string {
		p := filepath.Join(f.dir, name)
		if err := errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, 8*blockdev.MiB)); err != nil {
			panic(err)
		}
		return p
	}
	switch {
	case program == "mdadm" && args[0] == "--stop":
		delete(f.volumes, "md0")
	case program == "mdadm":
		f.volumes["md0"] = filesys.Volume{Partition: filesys.Partition{Path: file("md0"), Size: 8 * blockdev.MiB}, Level: "raid1", Members: 2}
	case args[0] == "lvcreate" || args[0] == "vgchange" && slices.Contains(args, "y"):
		f.volumes["vg-root"] = filesys.Volume{Partition: filesys.Partition{Path: file("root"), Size: 4 * blockdev.MiB}}
	case args[0] == "vgchange":
		delete(f.volumes, "vg-root")
	case program == "mke2fs":
		return 0, f.mark(args[len(args)-1], 0x438, "\x53\xef")
	case program == "mkswap":
		return 0, f.mark(args[len(args)-1], 4086, "SWAPSPACE2")
	}
	return 0, nil
}

func (f *fakePrograms) mark(file string, off int64, text string) error {
	w, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = w.WriteAt([]byte(text), off)
	return errors.Join(err, w.Close())
}

// storageSite is a machine with two disks of 64 MiB; the first is bound to the run.
type storageSite struct {
	*fakePrograms
	bound   action.Disk
	storage action.Storage
}

func newStorageSite(t *testing.T) *storageSite {
	t.Helper()
	parts := []action.StoragePartition{{Label: "SWAP", Size: 16384}, {Label: "ROOT", Size: 32768}}
	s := &storageSite{
		fakePrograms: &fakePrograms{dir: t.TempDir(), volumes: map[string]filesys.Volume{}},
		storage: action.Storage{
			Disks: []action.StorageDisk{
				{Device: "/dev/alias", WipeTable: true, Partitions: parts},
				{Device: "/dev/second", DiskID: action.DiskID{Serial: "S2"}, WipeTable: true, Partitions: parts},
			},
			RAID: []action.StorageRAID{{Name: "md0", Level: "1", Devices: []string{"/dev/alias2", "/dev/second2"}}},
			VolumeGroups: []action.StorageVolumes{
				{
					Name:            "vg",
					PhysicalVolumes: []string{"/dev/md0"},
					Tags:            []string{"x"},
					LogicalVolumes:  []action.StorageVolume{{Name: "root", Size: 4 * blockdev.MiB}},
				},
			},
			Filesystems: []action.StorageFilesystem{
				{
					Mount: action.StorageMount{
						Device: "/dev/vg/root",
						Format: "ext4",
						Point:  "/",
						Create: action.StorageCreate{Options: []string{"-L ROOT"}},
					},
				},
				{Mount: action.StorageMount{Device: "/dev/second1", Format: "swap"}},
			},
		},
	}
	for i, path := range []string{"/dev/sdb", "/dev/sda"} {
		d := action.Disk{Path: path, Serial: fmt.Sprintf("S%d", i+1), Size: 64 * blockdev.MiB}
		file := filepath.Join(t.TempDir(), "disk")
		disktest.NewFile(t, file, d.Size)
		s.disks = append(s.disks, disk.FileDisk{Disk: d, File: file})
	}
	s.bound = s.disks[0].Disk
	return s
}

func (s *storageSite) run(t *testing.T, command string) (map[string]string, string, error) {
	t.Helper()
	text, err := json.Marshal(s.storage)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, Machine{Disks: s.disks, Files: s.fakePrograms}, action.Assignment{
		Run: "run", DiskAlias: "/dev/alias", Disk: &s.bound, Action: action.Action{
			Image: "rootio", Command: []string{command}, Environment: map[string]string{action.StorageVariable: string(text)},
		},
	})
}

// A machine with both disks gets partitions, an array, LVM and file systems, in this order, and
// nothing stays active. Each command may be repeated.
func TestRootIO(t *testing.T) {
	t.Parallel()
	s := newStorageSite(t)
	make := []string{
		"mdadm --create /dev/md0 --run --force --metadata=1.2 --homehost=any --level=1 --raid-devices=2 sdb2 sda2",
		"lvm pvcreate --devices md0 --yes -ff --zero y md0",
		"lvm vgcreate --devices md0 --yes --addtag x vg md0",
		"lvm lvcreate --devices md0 --yes --wipesignatures y --zero y --name root --size 4194304b vg",
	}
	open := []string{"mdadm --assemble /dev/md0 sdb2 sda2", "lvm vgchange --devices md0 --activate y vg"}
	shut := []string{"lvm vgchange --devices md0 --activate n vg", "mdadm --stop /dev/md0"}
	for _, c := range []struct {
		command string
		ran     []string
	}{
		{"partition", slices.Concat(make, shut)},
		{"partition", slices.Concat(make, shut)},
		{"format", slices.Concat(open, []string{"mke2fs -q -F -t ext4 -L ROOT root", "mkswap sda1"}, shut)},
	} {
		s.ran = nil
		out, log, err := s.run(t, c.command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.command, err, log)
		}
		if !slices.Equal(s.ran, c.ran) {
			t.Errorf("%s ran\n%s", c.command, strings.Join(s.ran, "\n"))
		}
		if out["command"] != c.command || out["disks"] != "2" {
			t.Errorf("%v", out)
		}
	}
	for _, d := range s.disks {
		disktest.Judge(t, "No problems found", "sgdisk", "-v", d.File)
		spans := disktest.ReadSpans(t, d.File)
		if len(spans) != 2 || spans[0].Name != "SWAP" || spans[0].Start != blockdev.MiB || spans[0].Size != 8*blockdev.MiB ||
			spans[1].Start != 9*blockdev.MiB ||
			spans[0].Kind != "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f" {
			t.Errorf("%+v", spans)
		}
	}

	// What an aborted attempt left active is deactivated before a disk is opened.
	s.volumes["md0"], s.ran = filesys.Volume{}, nil
	if _, log, err := s.run(t, "wipe"); err != nil || !slices.Equal(s.ran, []string{"mdadm --stop /dev/md0"}) {
		t.Errorf("%v: %q\n%s", err, s.ran, log)
	}
	if b := disktest.MapFile(t, s.disks[1].File); !blockdev.AllZero(b[:2*blockdev.MiB]) || !blockdev.AllZero(b[63*blockdev.MiB:]) {
		t.Error("the wipe leaves a partition table")
	}
}

// Each refusal comes before the first write: both disks stay as they were, and no program runs.
func TestRootIORefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command string
		change  func(s *storageSite)
		want    string
	}{
		"missing disk":    {"partition", func(s *storageSite) { s.disks = s.disks[:1] }, "finding the disk serial S2"},
		"missing run's":   {"partition", func(s *storageSite) { s.disks = s.disks[1:] }, "finding the disk serial S1"},
		"two match":       {"partition", func(s *storageSite) { s.disks = append(s.disks, s.disks[1]); s.disks[2].Path = "/dev/sdc" }, "both match"},
		"another serial":  {"partition", func(s *storageSite) { s.storage.Disks[0].Serial = "S3" }, "serial or wwn differ from the disk bound to this run"},
		"one disk twice":  {"partition", func(s *storageSite) { s.storage.Disks[1].Serial = "S1" }, "two disks of the storage are"},
		"the same serial": {"partition", func(s *storageSite) { s.storage.Disks[0].Serial = "S2" }, "it is the same disk as disks[0]"},
		"no identity":     {"partition", func(s *storageSite) { s.storage.Disks[1].Serial = "" }, "must declare its serial or wwn"},
		"no room":         {"partition", func(s *storageSite) { s.storage.Disks[1].Partitions[1].Size = 131072 - 18432 - 32 }, "disks[1].partitions[1]: the partition ends at byte "},
		"no mdadm":        {"partition", func(s *storageSite) { s.missing = []string{"mdadm"} }, "program mdadm"},
		"no lvm":          {"partition", func(s *storageSite) { s.missing = []string{"lvm"} }, "program lvm"},
		"no mke2fs":       {"format", func(s *storageSite) { s.missing = []string{"mke2fs"} }, "program mke2fs"},
		"not partitioned": {"format", func(*storageSite) {}, "run rootio with command partition first"},
		"not blank": {"partition", func(s *storageSite) {
			s.storage.RAID, s.storage.VolumeGroups, s.storage.Filesystems = nil, nil, nil
			s.storage.Disks[1].WipeTable = false
			if err := s.mark(s.disks[1].File, 0x438, "\x53\xef"); err != nil {
				panic(err)
			}
		}, "the disk is not empty (ext4): set wipe_table"},
		"invalid storage": {"partition", func(s *storageSite) { s.storage.Filesystems[0].Mount.Format = "zfs" }, "unsupported format"},
		"level":           {"partition", func(s *storageSite) { s.storage.RAID[0].Level = "6" }, "unsupported level"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStorageSite(t)
			files := []string{s.disks[0].File, s.disks[1].File}
			c.change(s)
			var before [2][32]byte
			for i, f := range files {
				before[i] = sha256.Sum256(disktest.MapFile(t, f))
			}
			_, log, err := s.run(t, c.command)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\n%s", err, log)
			}
			for i, f := range files {
				if sha256.Sum256(disktest.MapFile(t, f)) != before[i] {
					t.Errorf("disk %d was written to", i)
				}
			}
			if len(s.ran) > 0 {
				t.Errorf("ran %q", s.ran)
			}
		})
	}
}

// A protected disk is never written, even if the storage names it.
func TestRootIOSparesProtectedDisks(t *testing.T) {
	t.Parallel()
	s := newStorageSite(t)
	text, err := json.Marshal(s.storage)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = do(t, Machine{Disks: s.disks, Files: s.fakePrograms}, action.Assignment{
		DiskAlias: "/dev/alias", Disk: &s.bound, Protected: []action.DiskID{{Serial: "S2"}}, Action: action.Action{
			Image: "rootio", Command: []string{"partition"}, Environment: map[string]string{action.StorageVariable: string(text)},
		},
	})
	if err == nil || !strings.Contains(err.Error(), "the inventory protects this disk") ||
		!blockdev.AllZero(disktest.MapFile(t, s.disks[0].File)) {
		t.Error(err)
	}
}

// A program that fails fails the action with its exit code, and what was made is deactivated.
func TestRootIOReportsExitCodes(t *testing.T) {
	t.Parallel()
	s := newStorageSite(t)
	s.fails = "lvm vgcreate"
	_, log, err := s.run(t, "partition")
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != 5 || !strings.Contains(log, "lvm: it does not work") {
		t.Errorf("%v\n%s", err, log)
	}
	if len(s.volumes) > 0 {
		t.Errorf("active: %v", s.volumes)
	}

	// A program that succeeds without an effect is found out.
	s = newStorageSite(t)
	s.storage.RAID[0].Level = "0"
	if _, _, err := s.run(t, "partition"); err == nil || !strings.Contains(err.Error(), "it is a raid1 of 2 devices instead of a raid0 of 2") {
		t.Error(err)
	}
}
