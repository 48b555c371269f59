package action

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// mirror is a storage without problems, with everything that a storage may have.
const mirror = `{
  "disks": [
    {"device": "/dev/sda", "serial": "A", "wipe_table": true, "partitions": [
      {"label": "BIOS", "size": 2048}, {"label": "EFI", "size": 204800}, {"label": "ROOT", "size": 4194304}, {"label": "SWAP"}]},
    {"device": "/dev/nvme0n1", "wwn": "B", "wipe_table": true, "partitions": [
      {"label": "EFI", "size": 204800, "number": 2}, {"label": "ROOT", "size": 4194304, "number": 7}, {"label": "DATA"}]}],
  "raid": [{"name": "md0", "level": "raid1", "devices": ["/dev/sda3", "/dev/nvme0n1p7"]}],
  "volume_groups": [{"name": "vg-0", "physical_volumes": ["/dev/md0"], "tags": ["x"],
    "logical_volumes": [{"name": "root", "size": 1073741824}, {"name": "srv"}]}],
  "filesystems": [
    {"mount": {"device": "/dev/vg-0/root", "format": "ext4", "point": "/", "create": {"force": true, "options": ["-L", "ROOT"]}}},
    {"mount": {"device": "/dev/vg-0/srv", "format": "xfs", "point": "/srv"}},
    {"mount": {"device": "/dev/sda2", "format": "vfat", "point": "/boot/efi", "create": {"options": ["-n EFI"]}}},
    {"mount": {"device": "/dev/sda4", "format": "swap", "point": "none"}}]
}`

func problemsOf(t *testing.T, text string, sizes ...DiskSize) []string {
	t.Helper()
	s, err := ParseStorage(text)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range s.ProblemsOn(sizes) {
		if p.Field == "" || p.What == "" || p.Remedy == "" {
			t.Errorf("incomplete: %+v", p)
		}
		all = append(all, p.String())
	}
	return all
}

func TestStorageWithoutProblems(t *testing.T) {
	if all := problemsOf(t, mirror); len(all) > 0 {
		t.Error(all)
	}
	if all := problemsOf(t, mirror, DiskSize{4 << 30, 512}, DiskSize{4 << 30, 4096}); len(all) > 0 {
		t.Error(all)
	}
}

// One change of the storage above gives exactly one problem, at the place of the change.
func TestS42StorageProblems(t *testing.T) {
	for _, c := range []struct{ old, new, field, what string }{
		{`"serial": "A"`, `"serial": "A\u0007"`, "disks[0]:", "not printable"},
		{`"/dev/sda", "serial"`, `"sda", "serial"`, "disks[0].device:", "invalid device path"},
		{`"/dev/nvme0n1", "wwn"`, `"/dev/sda", "wwn"`, "disks[1].device:", "declared by disks[0].device already"},
		{`"label": "DATA"`, `"label": ""`, "disks[1].partitions[2].label:", "invalid label"},
		{`"label": "DATA"`, `"label": "swap"`, "disks[1].partitions[2].label:", "unknown label"},
		{`"label": "DATA"`, `"label": "DATA", "type_guid": "8300"`, "disks[1].partitions[2].type_guid:", "invalid type"},
		{`"label": "DATA"`, `"label": "DATA", "number": 129`, "disks[1].partitions[2].number:", "invalid partition number 129"},
		{`"label": "DATA"`, `"label": "DATA", "number": 2`, "disks[1].partitions[2].number:", "has the number 2 already"},
		{`"label": "DATA"`, `"label": "DATA", "size": -1`, "disks[1].partitions[2]:", "out of range"},
		{`"label": "DATA"`, `"label": "DATA", "start": 33`, "disks[1].partitions[2].start:", "belongs to the partition table"},
		{`"label": "DATA"`, `"label": "DATA", "start": 206848, "size": 8`, "disks[1].partitions:", "partitions 7 and 3 overlap"},
		{`"label": "BIOS", "size": 2048`, `"label": "BIOS"`, "disks[0].partitions[0].size:", "only the last partition"},
		{`"level": "raid1"`, `"level": "5"`, "raid[0].level:", `unsupported level "5"`},
		{`"level": "raid1"`, `"level": "10"`, "raid[0].devices:", "2 devices"},
		{`"level": "raid1"`, `"level": "1", "spare": 1`, "raid[0].devices:", "2 devices, 1 of them spare"},
		{`"level": "raid1"`, `"level": "1", "spare": -1`, "raid[0].devices:", "-1 of them spare"},
		{`, "/dev/nvme0n1p7"]`, `, "/dev/sdb1"]`, "raid[0].devices[1]:", `the storage has no partition, array or logical volume "/dev/sdb1"`},
		{`, "/dev/nvme0n1p7"]`, `, "/dev/sda3"]`, "raid[0].devices[1]:", "used by raid[0].devices[0] already"},
		{`, "/dev/nvme0n1p7"]`, `, "/dev/sda1"]`, "raid[0].devices[1]:", "is a partition for the firmware"},
		{`, "/dev/nvme0n1p7"]`, `, "/dev/nvme0n1"]`, "raid[0].devices[1]:", "is a whole disk"},
		{`, "/dev/nvme0n1p7"]`, `, "/dev/nvme0n1p2"]`, "raid[0].devices[1]:", "is an EFI system partition"},
		{`"wwn": "B", "wipe_table": true`, `"wwn": "B"`, "raid[0].devices[1]:", "must not be overwritten"},
		{`["x"]`, `["x y"]`, "volume_groups[0].tags[0]:", "invalid tag"},
		{`["/dev/md0"]`, `["/dev/md0", "/dev/md0"]`, "volume_groups[0].physical_volumes[1]:", "used by"},
		{`["/dev/md0"]`, `["/dev/md0", "/dev/sdc1"]`, "volume_groups[0].physical_volumes[1]:", "no partition, array"},
		{`["/dev/md0"]`, `[]`, "volume_groups[0].physical_volumes:", "no physical volume is given"},
		{`"size": 1073741824`, `"size": -1`, "volume_groups[0].logical_volumes[0].size:", "invalid size"},
		{`"size": 1073741824`, `"opts": ["x"], "size": 4096`, "volume_groups[0].logical_volumes[0].opts:", "no option"},
		{`"size": 1073741824`, `"size": 0`, "volume_groups[0].logical_volumes[0].size:", "only the last volume"},
		// One extent less than the partitions have is too much for LVM, which begins at 1 MiB.
		{`"size": 1073741824`, `"size": 2143289344`, "volume_groups[0].logical_volumes[1].size:", "does not fit: 0 bytes of 2143289344"},
		{`"size": 1073741824`, `"size": 2147483648`, "volume_groups[0].logical_volumes[0].size:", "does not fit"},
		{`{"name": "srv"}`, `{"name": "srv"}, {"name": "-x"}`, "volume_groups[0].logical_volumes[1].size:", "only the last volume"},
		{`"format": "xfs"`, `"format": "btrfs"`, "filesystems[1].mount.format:", `unsupported format "btrfs"`},
		{`"format": "xfs"`, `"format": "xfs", "create": {"options": ["-d", "file"]}`, "filesystems[1].mount.create.options:", "not allowed"},
		{`"-L", "ROOT"`, `"-J", "device=/dev/sdb"`, "filesystems[0].mount.create.options:", "not allowed"},
		{`"-L", "ROOT"`, `"-L", "/dev/sdb"`, "filesystems[0].mount.create.options:", "invalid value"},
		{`"-L", "ROOT"`, `"/dev/sdb"`, "filesystems[0].mount.create.options:", "must be a dash and a letter"},
		{`"format": "vfat"`, `"format": "ext4", "create": {}`, "filesystems[2].mount.device:", "is an EFI system partition"},
		{`"/dev/sda4", "format"`, `"/dev/sda", "format"`, "filesystems[3].mount.device:", "is a whole disk"},
		{`"/dev/sda4", "format"`, `"/dev/sda5", "format"`, "filesystems[3].mount.device:", "no partition, array"},
		{`"/dev/sda4", "format"`, `"/dev/sda3", "format"`, "filesystems[3].mount.device:", "used by raid[0]"},
		{`"/dev/sda4", "format"`, `"/dev/md0", "format"`, "filesystems[3].mount.device:", "used by volume_groups[0]"},
		{`"point": "/srv"`, `"point": "srv"`, "filesystems[1].mount.point:", "invalid mount point"},
		{`"point": "/srv"`, `"point": "/srv/../etc"`, "filesystems[1].mount.point:", "invalid mount point"},
		{`"point": "/srv"`, `"point": "/"`, "filesystems[1].mount.point:", "mount point of filesystems[0].mount already"},
	} {
		t.Run(c.field+" "+c.what, func(t *testing.T) {
			if strings.Count(mirror, c.old) != 1 {
				t.Fatalf("%s is not once in the storage", c.old)
			}
			all := problemsOf(t, strings.Replace(mirror, c.old, c.new, 1))
			if !slices.ContainsFunc(all, func(p string) bool { return strings.HasPrefix(p, c.field) && strings.Contains(p, c.what) }) {
				t.Errorf("%q", all)
			}
		})
	}
}

// All problems are reported at once. S42: names are neither flags nor paths.
func TestStorageNames(t *testing.T) {
	all := problemsOf(t, `{
  "disks": [{"device": "/dev/sda", "wipe_table": true, "partitions": [{"label": "a", "size": 8192}, {"label": "b", "size": 8192}]},
    {"device": "/dev/sdb", "wipe_table": true, "partitions": [{"label": "a", "size": 8192}, {"label": "b", "size": 8192}]}],
  "raid": [{"name": "../x", "level": "1", "devices": ["/dev/sda1", "/dev/sda2"]}, {"name": "md1", "level": "1", "devices": []},
    {"name": "/dev/md1", "level": "0", "spare": 1, "devices": ["/dev/sdb1", "/dev/sdb2", "/dev/sdc1"]}],
  "volume_groups": [{"name": "-f", "physical_volumes": []}, {"name": "v", "physical_volumes": []},
    {"name": "v", "physical_volumes": [], "logical_volumes": [{"name": "a/b", "size": 1}, {"name": "l", "size": 1}, {"name": "l", "size": 1}]}]
}`)
	for _, want := range []string{
		`raid[0].name: invalid name "../x"`, `raid[0].devices[1]: /dev/sda2 is on the same disk as /dev/sda1`,
		`raid[2].name: /dev/md1 is declared by raid[1].name already`, `raid[2].spare: level 0 has no use`,
		`volume_groups[0].name: invalid name "-f"`, `volume_groups[2].name: volume_groups[1] has the name v already`,
		`volume_groups[2].logical_volumes[0].name: invalid name "a/b"`,
		`volume_groups[2].logical_volumes[2].name: /dev/v/l is declared by volume_groups[2].logical_volumes[1].name already`,
	} {
		if !slices.ContainsFunc(all, func(p string) bool { return strings.HasPrefix(p, want) }) {
			t.Errorf("%s is missing: %q", want, all)
		}
	}
}

// On disks of known sizes, what does not fit is found, to the sector.
func TestStorageSizes(t *testing.T) {
	storage := func(size int64) string {
		return fmt.Sprintf(`{"disks": [{"device": "/dev/sda", "partitions": [{"label": "a", "size": 2048}, {"label": "b", "size": %d}]}]}`, size)
	}
	// 64 MiB are 131,072 sectors. The first partition begins at 2,048, the second at 4,096, and 33 sectors at the end are the
	// backup table.
	disk := DiskSize{64 << 20, 512}
	if all := problemsOf(t, storage(131072-4096-33), disk); len(all) > 0 {
		t.Error(all)
	}
	if all := problemsOf(
		t,
		storage(131072-4096-32),
		disk,
	); len(all) != 1 ||
		!strings.HasPrefix(all[0], "disks[0].partitions[1]: the partition ends at byte ") {
		t.Error(all)
	}
	if all := problemsOf(t, storage(131072-4096-32)); len(all) > 0 {
		t.Errorf("without a size: %q", all)
	}
	if all := problemsOf(t, storage(2049), DiskSize{64 << 20, 4096}); len(all) != 1 || !strings.Contains(all[0], "sectors of 4096 bytes") {
		t.Error(all)
	}
	if all := problemsOf(t, storage(0), DiskSize{2 << 20, 512}); len(all) == 0 {
		t.Error("a partition of no bytes fits")
	}
}

func TestStorageLayout(t *testing.T) {
	const mib = 1 << 20
	d := StorageDisk{Device: "/dev/sda", Partitions: []StoragePartition{
		{Label: "BIOS", Size: 2048},
		{Label: "EFI", Size: 3},
		{Label: "x", Number: 9, Start: 20480, Size: 2048},
		{Label: "SWAP", Size: 2048},
		{Label: "rest", TypeGUID: strings.ToLower(labelTypes["EFI"])},
	}}
	want := []PlacedPartition{
		{1, "BIOS", labelTypes["BIOS"], mib, mib},
		{2, "EFI", labelTypes["EFI"], 2 * mib, 3 * 512},
		{9, "x", linuxType, 10 * mib, mib},
		{4, "SWAP", labelTypes["SWAP"], 11 * mib, mib},
		{5, "rest", labelTypes["EFI"], 12 * mib, 87 * mib}, // the last MiB of 100 has the backup table
	}
	got, problems := d.Layout(100*mib, 512)
	if len(problems) > 0 || !slices.Equal(got, want) {
		t.Errorf("%v\n%+v\n%+v", problems, got, want)
	}
	d.Partitions[1].Size = 8
	if got, problems = d.Layout(100*mib, 4096); len(problems) > 0 || got[4].Start != 12*mib || got[4].Size != 87*mib {
		t.Errorf("%v\n%+v", problems, got)
	}
}

func TestPartitionPath(t *testing.T) {
	for device, want := range map[string]string{
		"/dev/sda": "/dev/sda3", "/dev/nvme0n1": "/dev/nvme0n1p3", "/dev/disk/by-id/ata-X1": "/dev/disk/by-id/ata-X1-part3",
	} {
		if got := PartitionPath(device, 3); got != want {
			t.Errorf("%s: %s", device, got)
		}
		s := Storage{Disks: []StorageDisk{{Device: "/dev/vdz"}, {Device: device, Partitions: []StoragePartition{{Label: "x", Number: 3}}}}}
		if disk, n := s.Disk(want); disk != 1 || n != 3 {
			t.Errorf("%s: disk %d, partition %d", want, disk, n)
		}
		if disk, _ := s.Disk(device); disk != -1 {
			t.Errorf("%s is disk %d", device, disk)
		}
	}
}

func TestMappedName(t *testing.T) {
	if got := (StorageVolumes{Name: "vg-0"}).Mapped(StorageVolume{Name: "a-b"}); got != "vg--0-a--b" {
		t.Error(got)
	}
}

func TestRootIOIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		`{`: "decoding the storage", `{"disk": []}`: "unknown field", `{} {}`: "unexpected text after", `{}`: "no disks",
		strings.Replace(mirror, `"ext4"`, `"zfs"`, 1): `filesystems[0].mount.format: unsupported format "zfs"`,
	} {
		if err := Check(RootIO, map[string]string{StorageVariable: text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := Check(
		RootIO,
		map[string]string{StorageVariable: mirror, "MBR": "true"},
	); err == nil ||
		!strings.Contains(err.Error(), "only GPT") {
		t.Error(err)
	}
	for _, command := range [][]string{nil, {}, {"format", "x"}, {"parted"}} {
		if err := CheckCommand(RootIO, command); err == nil || !strings.Contains(err.Error(), "wipe, partition, format, mount, version") {
			t.Errorf("%q: %v", command, err)
		}
	}
	if err := CheckCommand(RootIO, []string{"format"}); err != nil {
		t.Error(err)
	}
	err := CheckStorageDisks(map[string]string{StorageVariable: `{"disks": [{"device": "/dev/sda"}, {"device": "/dev/sdb"}]}`}, "/dev/sda")
	if err == nil || !strings.Contains(err.Error(), "disks[1]: /dev/sdb is not the run's disk (/dev/sda)") ||
		strings.Contains(err.Error(), "disks[0]") {
		t.Error(err)
	}
}

func FuzzStorage(f *testing.F) {
	f.Add([]byte(mirror), int64(4<<30))
	f.Add([]byte(`{"disks": [{"device": "", "partitions": [{"start": 9007199254740993, "size": 9007199254740993}]}]}`), int64(1))
	f.Fuzz(func(t *testing.T, text []byte, size int64) {
		s, err := ParseStorage(string(text))
		if err != nil {
			return
		}
		sizes := make([]DiskSize, len(s.Disks))
		for i := range sizes {
			sizes[i] = DiskSize{max(0, size%maxStorage), 512}
		}
		if len(s.ProblemsOn(sizes)) > 0 || size <= 0 {
			return
		}
		// What is accepted lies on the disk, without overlaps.
		for _, d := range s.Disks {
			placed, _ := d.Layout(sizes[0].Size, 512)
			for i, p := range placed {
				if p.Start < 34*512 || p.Size <= 0 || p.Start+p.Size > sizes[0].Size-33*512 {
					t.Fatalf("%+v on a disk of %d bytes", p, sizes[0].Size)
				}
				for _, q := range placed[:i] {
					if p.Start < q.Start+q.Size && q.Start < p.Start+p.Size {
						t.Fatalf("%+v and %+v overlap", p, q)
					}
				}
			}
		}
		if _, err := json.Marshal(s); err != nil {
			t.Fatal(err)
		}
	})
}
