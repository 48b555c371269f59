package action

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Storage is how rootio lays out the disks of a machine. Its keys are those of
// metadata.instance.storage in Tinkerbell's Hardware.
type Storage struct {
	Disks        []StorageDisk       `json:"disks,omitempty"`
	RAID         []StorageRAID       `json:"raid,omitempty"`
	Filesystems  []StorageFilesystem `json:"filesystems,omitempty"`
	VolumeGroups []StorageVolumes    `json:"volume_groups,omitempty"`
}

// A StorageDisk is a disk with its partitions. Device does not identify the disk: it is the run's
// disk if it has the path that the run uses for it. Any other disk has a serial number or a WWN.
type StorageDisk struct {
	Device string `json:"device"`
	DiskID
	// WipeTable allows to replace a partition table and to clear what the disk holds.
	WipeTable  bool               `json:"wipe_table,omitempty"`
	Partitions []StoragePartition `json:"partitions,omitempty"`
}

// A StoragePartition is one partition of a GPT.
type StoragePartition struct {
	Label    string `json:"label"`               // name in the GPT; SWAP, BIOS and EFI set the type
	Number   int    `json:"number,omitempty"`    // 0 = its place in the list, from 1
	Start    int64  `json:"start,omitempty"`     // sectors of 512 bytes; 0 = behind the one before it
	Size     int64  `json:"size,omitempty"`      // sectors of 512 bytes; 0 = the rest of the disk
	TypeGUID string `json:"type_guid,omitempty"` // "" = by the label
}

// A StorageRAID is an array of the kernel's md driver.
type StorageRAID struct {
	Name    string   `json:"name"`
	Level   string   `json:"level"` // 0, 1 or 10
	Devices []string `json:"devices"`
	Spare   int      `json:"spare,omitempty"`
}

// A StorageFilesystem is a file system or swap space on a partition.
type StorageFilesystem struct {
	Mount StorageMount `json:"mount"`
}

// A StorageMount is a file system, how it is made, and where the installed system mounts it.
type StorageMount struct {
	Device string        `json:"device"`
	Format string        `json:"format"` // one of StorageFormats
	Create StorageCreate `json:"create,omitzero"`
	Point  string        `json:"point,omitempty"` // absolute path; "" for swap
}

// StorageCreate has options of mkfs.
type StorageCreate struct {
	Force   bool     `json:"force,omitempty"` // not needed: rootio formats only what it may overwrite
	Options []string `json:"options,omitempty"`
}

// StorageVolumes is a volume group of LVM.
type StorageVolumes struct {
	Name            string          `json:"name"`
	PhysicalVolumes []string        `json:"physical_volumes"`
	LogicalVolumes  []StorageVolume `json:"logical_volumes,omitempty"`
	Tags            []string        `json:"tags,omitempty"`
}

// A StorageVolume is a logical volume.
type StorageVolume struct {
	Name    string   `json:"name"`
	Size    int64    `json:"size,omitempty"` // bytes; 0 = the rest of the group
	Options []string `json:"opts,omitempty"`
}

// A StorageProblem is one error in a Storage. Field is its path below the storage.
type StorageProblem struct{ Field, What, Remedy string }

func (p StorageProblem) String() string {
	return fmt.Sprintf("%s: %s: %s", p.Field, p.What, p.Remedy)
}

type storageProblems []StorageProblem

func (ps *storageProblems) add(field, remedy, format string, args ...any) {
	*ps = append(*ps, StorageProblem{Field: field, What: fmt.Sprintf(format, args...), Remedy: remedy})
}

var (
	storageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.+-]{0,31}$`)
	storagePath = regexp.MustCompile(`^/[A-Za-z0-9._+:@/-]*$`)
	guidForm    = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
)

// Problems returns everything that is wrong with s for every machine.
func (s Storage) Problems() []StorageProblem {
	var ps storageProblems
	devices := map[string]string{} // path: field that declares it
	declare := func(field, device string) {
		switch {
		case !devicePath(device):
			ps.add(field, "give a path such as /dev/sda", "invalid device path %q", device)
		case devices[device] != "":
			ps.add(field, "remove one of the two", "%s is the device of %s already", device, devices[device])
		default:
			devices[device] = field
		}
	}

	for i, d := range s.Disks {
		field := fmt.Sprintf("disks[%d]", i)
		declare(field+".device", d.Device)
		if !utf8.ValidString(d.Serial+d.WWN) || strings.ContainsFunc(d.Serial+d.WWN, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			ps.add(field, "copy the serial number as the machine shows it", "serial or wwn is not printable")
		}
		_, problems := d.Layout(0, 512)
		for _, p := range problems {
			ps.add(field+"."+p.Field, p.Remedy, "%s", p.What)
		}
		for j, n := range d.numbers() {
			if devicePath(d.Device) {
				devices[PartitionPath(d.Device, n)] = fmt.Sprintf("%s.partitions[%d]", field, j)
			}
		}
	}

	s.checkRAID(&ps, devices)
	s.checkVolumes(&ps, devices)
	s.checkFilesystems(&ps, devices)
	return ps
}

func devicePath(p string) bool {
	return strings.HasPrefix(p, "/dev/") && path.Clean(p) == p && storagePath.MatchString(p) && len(p) < 256
}

// RAIDLevels are the levels that a machine may declare.
var RAIDLevels = []string{"0", "1", "10"}

func (s Storage) checkRAID(ps *storageProblems, devices map[string]string) {
	for i, r := range s.RAID {
		field := fmt.Sprintf("raid[%d]", i)
		if !storageName.MatchString(strings.TrimPrefix(strings.TrimPrefix(r.Name, "/dev/"), "md/")) {
			ps.add(field+".name", "give a name such as md0", "invalid name %q", r.Name)
		}

		level := strings.TrimPrefix(r.Level, "raid")
		if !slices.Contains(RAIDLevels, level) {
			ps.add(field+".level", "use one of "+strings.Join(RAIDLevels, ", "), "unsupported level %q", r.Level)
		}
		if least := map[bool]int{true: 4, false: 2}[level == "10"]; r.Spare < 0 || len(r.Devices)-r.Spare < least {
			ps.add(field+".devices", fmt.Sprintf("give %d or more devices beside the spares", least), "%d devices, %d of them spare",
				len(r.Devices), r.Spare)
		}
		take(ps, devices, field+".devices", r.Devices)

		base := strings.TrimPrefix(strings.TrimPrefix(r.Name, "/dev/"), "md/")
		for _, p := range []string{"/dev/" + base, "/dev/md/" + base} {
			devices[p] = field
		}
	}
}

func (s Storage) checkVolumes(ps *storageProblems, devices map[string]string) {
	for i, g := range s.VolumeGroups {
		field := fmt.Sprintf("volume_groups[%d]", i)
		if !storageName.MatchString(g.Name) {
			ps.add(field+".name", "use letters, digits and - _ . +", "invalid name %q", g.Name)
		}
		if len(g.PhysicalVolumes) == 0 {
			ps.add(field+".physical_volumes", "name one or more partitions", "there is none")
		}
		take(ps, devices, field+".physical_volumes", g.PhysicalVolumes)

		for j, v := range g.LogicalVolumes {
			at := fmt.Sprintf("%s.logical_volumes[%d]", field, j)
			if !storageName.MatchString(v.Name) {
				ps.add(at+".name", "use letters, digits and - _ . +", "invalid name %q", v.Name)
			}
			if v.Size < 0 {
				ps.add(at+".size", "give bytes, or 0 for the rest of the group", "invalid size %d", v.Size)
			}
			devices["/dev/"+g.Name+"/"+v.Name] = at
		}
	}
}

// used marks a device that an array, a group or a file system takes.
const used = "used by "

// take marks members as used by field. Each is declared, and used once.
func take(ps *storageProblems, devices map[string]string, field string, members []string) {
	for i, d := range members {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch by := devices[d]; {
		case by == "":
			ps.add(at, "add it to the partitions of a disk", "no disk, array or volume group here has %q", d)
		case strings.HasPrefix(by, used):
			ps.add(at, "use each device once", "%s is %s already", d, by)
		default:
			devices[d] = used + at
		}
	}
}

func (s Storage) checkFilesystems(ps *storageProblems, devices map[string]string) {
	points := map[string]string{}
	for i, f := range s.Filesystems {
		field, m := fmt.Sprintf("filesystems[%d].mount", i), f.Mount
		switch by := devices[m.Device]; {
		case by == "":
			ps.add(field+".device", "add it to the partitions of a disk", "no disk, array or volume group here has %q", m.Device)
		case strings.HasPrefix(by, used):
			ps.add(field+".device", "use each device once", "%s is %s already", m.Device, by)
		case strings.HasSuffix(by, ".device"):
			ps.add(field+".device", "name a partition", "%s is a whole disk", m.Device)
		default:
			devices[m.Device] = used + field + ".device"
		}

		if !slices.Contains(StorageFormats(), m.Format) {
			ps.add(field+".format", "use one of "+strings.Join(StorageFormats(), ", "), "unsupported format %q", m.Format)
		} else if _, err := MkfsOptions(m.Format, m.Create.Options); err != nil {
			ps.add(field+".create.options", "leave it out", "%v", err)
		}

		other := points[m.Point]
		switch {
		case m.Format == "swap" && (m.Point == "" || m.Point == "none" || m.Point == "swap" || m.Point == "SWAP"), m.Point == "":
		case !storagePath.MatchString(m.Point) || path.Clean(m.Point) != m.Point || strings.Contains(m.Point, ".."):
			ps.add(field+".point", "give an absolute path such as /boot", "invalid mount point %q", m.Point)
		case other != "":
			ps.add(field+".point", "give each file system its own", "%s is the mount point of %s already", m.Point, other)
		default:
			points[m.Point] = field
		}
	}
}

// PartitionPath returns the path of partition n of the disk at device, as the kernel and udev name
// it.
func PartitionPath(device string, n int) string {
	switch last := device[len(device)-1]; {
	case strings.HasPrefix(device, "/dev/disk/"):
		return fmt.Sprintf("%s-part%d", device, n)
	case last >= '0' && last <= '9':
		return fmt.Sprintf("%sp%d", device, n)
	}
	return fmt.Sprintf("%s%d", device, n)
}

// Partition returns the disk and the number of the partition at device; nil if s has no such
// partition.
func (s Storage) Partition(device string) (*StorageDisk, int) {
	for i := range s.Disks {
		for _, n := range s.Disks[i].numbers() {
			if device == PartitionPath(s.Disks[i].Device, n) {
				return &s.Disks[i], n
			}
		}
	}
	return nil, 0
}

// numbers returns the numbers of the partitions, in the order of the list.
func (d StorageDisk) numbers() []int {
	var out []int
	for i, p := range d.Partitions {
		out = append(out, cmp.Or(p.Number, i+1))
	}
	return out
}
