package agent

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

	"github.com/ingotmetal/ingot/action"
)

// fakePrograms record what would be run. Partitions are files with what the programs leave there.
type fakePrograms struct {
	fakeFiles
	disks   FileDisks
	dir     string
	missing []string
	fails   string // the command that fails with exit code 5
	ran     []string
	volumes map[string]Volume
}

// Partitions returns the partitions of the table on the disk: each is an empty file of its size.
func (f *fakePrograms) Partitions(_ context.Context, path string) ([]Partition, error) {
	all, err := f.disks.Partitions(path)
	if err != nil {
		return nil, err
	}
	var parts []Partition
	for _, p := range all {
		file := filepath.Join(f.dir, fmt.Sprintf("%s%d", filepath.Base(path), p.Number))
		if _, err := os.Stat(file); err != nil {
			if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, p.Size)); err != nil {
				return nil, err
			}
		}
		parts = append(parts, Partition{Number: p.Number, Path: file, Size: p.Size})
	}
	return parts, nil
}

func (f *fakePrograms) Has(program string) error {
	if slices.Contains(f.missing, program) {
		return fmt.Errorf("finding the program %s: it is missing", program)
	}
	return nil
}

func (f *fakePrograms) Volume(name string) (Volume, bool) {
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
		if err := errors.Join(os.WriteFile(p, nil, 0o600), os.Truncate(p, 8*mib)); err != nil {
			panic(err)
		}
		return p
	}
	switch {
	case program == "mdadm" && args[0] == "--stop":
		delete(f.volumes, "md0")
	case program == "mdadm":
		f.volumes["md0"] = Volume{Partition: Partition{Path: file("md0"), Size: 8 * mib}, Level: "raid1", Members: 2}
	case args[0] == "lvcreate" || args[0] == "vgchange" && slices.Contains(args, "y"):
		f.volumes["vg-root"] = Volume{Partition: Partition{Path: file("root"), Size: 4 * mib}}
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

// storageSite is a machine with two disks of 64 MiB, the first of which is bound to the run.
type storageSite struct {
	*fakePrograms
	bound   action.Disk
	storage action.Storage
}

func newStorageSite(t *testing.T) *storageSite {
	t.Helper()
	parts := []action.StoragePartition{{Label: "SWAP", Size: 16384}, {Label: "ROOT", Size: 32768}}
	s := &storageSite{
		fakePrograms: &fakePrograms{dir: t.TempDir(), volumes: map[string]Volume{}},
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
					LogicalVolumes:  []action.StorageVolume{{Name: "root", Size: 4 * mib}},
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
		d := action.Disk{Path: path, Serial: fmt.Sprintf("S%d", i+1), Size: 64 * mib}
		file := filepath.Join(t.TempDir(), "disk")
		newFile(t, file, d.Size)
		s.disks = append(s.disks, FileDisk{Disk: d, File: file})
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
	a, err := New(Config{
		Server: "https://192.0.2.1:7443", Pin: "sha256:" + strings.Repeat("0", 64), Machine: "m1", Claim: "c0ffee",
		Disks: s.disks, Files: s.fakePrograms,
	})
	if err != nil {
		t.Fatal(err)
	}
	x := &attempt{
		agent: a, run: "run", env: map[string]string{action.StorageVariable: string(text)}, alias: "/dev/alias", bound: &s.bound,
		output: map[string]string{},
	}
	err = x.perform(t.Context(), action.Assignment{Action: action.Action{Image: "rootio", Command: []string{command}, Environment: x.env}})
	return x.output, string(x.tail), err
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
		judge(t, "No problems found", "sgdisk", "-v", d.File)
		spans := readSpans(t, d.File)
		if len(spans) != 2 || spans[0].name != "SWAP" || spans[0].start != mib || spans[0].size != 8*mib || spans[1].start != 9*mib ||
			spans[0].kind != "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f" {
			t.Errorf("%+v", spans)
		}
	}

	// What an aborted attempt left active is deactivated before a disk is opened.
	s.volumes["md0"], s.ran = Volume{}, nil
	if _, log, err := s.run(t, "wipe"); err != nil || !slices.Equal(s.ran, []string{"mdadm --stop /dev/md0"}) {
		t.Errorf("%v: %q\n%s", err, s.ran, log)
	}
	if b := mapFile(t, s.disks[1].File); !allZero(b[:2*mib]) || !allZero(b[63*mib:]) {
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
		"another serial":  {"partition", func(s *storageSite) { s.storage.Disks[0].Serial = "S3" }, "the disk bound to this run is another one"},
		"one disk twice":  {"partition", func(s *storageSite) { s.storage.Disks[1].Serial = "S1" }, "like another disk"},
		"the same serial": {"partition", func(s *storageSite) { s.storage.Disks[0].Serial = "S2" }, "it is the same disk as disks[0]"},
		"no identity":     {"partition", func(s *storageSite) { s.storage.Disks[1].Serial = "" }, "neither its serial nor its wwn"},
		"no room":         {"partition", func(s *storageSite) { s.storage.Disks[1].Partitions[1].Size = 131072 - 18432 - 32 }, "disks[1].partitions[1]: it does not fit"},
		"no mdadm":        {"partition", func(s *storageSite) { s.missing = []string{"mdadm"} }, "program mdadm"},
		"no lvm":          {"partition", func(s *storageSite) { s.missing = []string{"lvm"} }, "program lvm"},
		"no mke2fs":       {"format", func(s *storageSite) { s.missing = []string{"mke2fs"} }, "program mke2fs"},
		"not partitioned": {"format", func(*storageSite) {}, "carry out rootio with command partition first"},
		"not blank": {"partition", func(s *storageSite) {
			s.storage.RAID, s.storage.VolumeGroups, s.storage.Filesystems = nil, nil, nil
			s.storage.Disks[1].WipeTable = false
			if err := s.mark(s.disks[1].File, 0x438, "\x53\xef"); err != nil {
				panic(err)
			}
		}, "it is not empty (ext4): set wipe_table"},
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
				before[i] = sha256.Sum256(mapFile(t, f))
			}
			_, log, err := s.run(t, c.command)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\n%s", err, log)
			}
			for i, f := range files {
				if sha256.Sum256(mapFile(t, f)) != before[i] {
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
	a, err := New(Config{
		Server: "https://192.0.2.1:7443", Pin: "sha256:" + strings.Repeat("0", 64), Machine: "m1", Claim: "c0ffee",
		Disks: s.disks, Files: s.fakePrograms,
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(s.storage)
	if err != nil {
		t.Fatal(err)
	}
	x := &attempt{
		agent: a, env: map[string]string{action.StorageVariable: string(text)}, alias: "/dev/alias", bound: &s.bound,
		output: map[string]string{}, spared: []action.DiskID{{Serial: "S2"}},
	}
	err = x.perform(t.Context(), action.Assignment{Action: action.Action{Image: "rootio", Command: []string{"partition"}}})
	if err == nil || !strings.Contains(err.Error(), "the inventory protects it") || !allZero(mapFile(t, s.disks[0].File)) {
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
	if _, _, err := s.run(t, "partition"); err == nil || !strings.Contains(err.Error(), "it is raid1 of 2 devices, not raid0 of 2") {
		t.Error(err)
	}
}

// The agent runs the programs of a list only, and each word reaches a program as it is.
func TestS42OnlyProgramsOfTheListAreRun(t *testing.T) {
	t.Parallel()
	h := HostFilesystems{}
	for _, program := range []string{"sh", "/bin/sh", "../bin/sh", "busybox", ""} {
		if _, err := h.Run(t.Context(), program, []string{"-c", "true"}, func(string) {}); err == nil || h.Has(program) == nil {
			t.Errorf("%q was run", program)
		}
	}
	formats := action.StorageFormats()
	for _, format := range formats {
		program, _, err := action.Mkfs(format, nil)
		if _, ok := programs[program]; err != nil || !ok {
			t.Errorf("%s: %q is not in the list", format, program)
		}
	}

	need(t, "mkswap")
	file := filepath.Join(t.TempDir(), "a $(reboot); `b`")
	newFile(t, file, mib)
	var log []string
	exit, err := h.Run(t.Context(), "mkswap", []string{"-L", "$HOME", file}, func(line string) { log = append(log, line) })
	if exit != 0 || err != nil || !strings.Contains(strings.Join(log, "\n"), "LABEL=$HOME") ||
		string(mapFile(t, file)[4086:4096]) != "SWAPSPACE2" {
		t.Errorf("%d %v %q", exit, err, log)
	}
	exit, err = h.Run(t.Context(), "mkswap", []string{file + "x"}, func(line string) { log = append(log, line) })
	if exit != 1 || err == nil {
		t.Errorf("exit %d, %v", exit, err)
	}
}

// The kernel's view of arrays and logical volumes.
func TestVolume(t *testing.T) {
	t.Parallel()
	h := HostFilesystems{Sys: t.TempDir()}
	for file, text := range map[string]string{
		"block/md0/size": "2048", "block/md0/md/level": "raid1", "block/md0/md/raid_disks": "2",
		"block/md1/size": "0", "block/dm-3/size": "8", "block/dm-3/dm/name": "vg--0-root",
	} {
		p := filepath.Join(h.Sys, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]Volume{
		"md0":        {Partition: Partition{Path: "/dev/md0", Size: 1 << 20}, Level: "raid1", Members: 2},
		"vg--0-root": {Partition: Partition{Path: "/dev/dm-3", Size: 4096}},
	} {
		if v, ok := h.Volume(name); !ok || v != want {
			t.Errorf("%s: %+v", name, v)
		}
	}
	for _, name := range []string{"md1", "md2", "vg-0-root"} { // md1 is stopped
		if v, ok := h.Volume(name); ok {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
