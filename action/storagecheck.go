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

var (
	raidName    = regexp.MustCompile(`^(/dev/)?md[0-9]{1,3}$`)
	storageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.+-]{0,31}$`)
	storagePath = regexp.MustCompile(`^/[A-Za-z0-9._+:@/-]*$`)
	guidForm    = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
)

// RAIDLevels are the RAID levels that the storage of a machine may declare.
var RAIDLevels = []string{"0", "1", "10"}

// A DiskSize is the size of a disk and the size of its logical sectors, both in bytes. The zero value means that they are not
// known.
type DiskSize struct{ Size, Sector int64 }

// Kinds of devices in a Storage.
const (
	wholeDisk     = "a whole disk"
	diskPartition = "a partition"
	bootPartition = "a partition for the firmware" // label BIOS
	efiPartition  = "an EFI system partition"
	raidArray     = "an array"
	logicalVolume = "a logical volume"
)

// A storageDevice is a device that a Storage declares.
type storageDevice struct {
	kind  string
	field string // where it is declared
	by    string // field that uses the device; "" for none
	disk  int    // index of the disk; -1 for an array or a logical volume
	size  int64  // maximum size in bytes; 0 = not known
}

// storageCheck collects the problems of a Storage.
type storageCheck struct {
	Storage
	storageProblems
	devices map[string]*storageDevice // by path
}

// Problems returns the problems of s that do not depend on the sizes of disks.
func (s Storage) Problems() []StorageProblem { return s.ProblemsOn(nil) }

// ProblemsOn returns the problems of s on disks of these sizes. sizes are in the order of s.Disks; a size that is missing at the
// end counts as not known.
func (s Storage) ProblemsOn(sizes []DiskSize) []StorageProblem {
	c := storageCheck{Storage: s, devices: map[string]*storageDevice{}}
	for i, d := range s.Disks {
		size := DiskSize{Sector: storageSector}
		if i < len(sizes) && sizes[i].Sector > 0 {
			size = sizes[i]
		}
		c.checkDisk(i, d, size)
	}
	c.checkRAID()
	c.checkVolumes()
	c.checkFilesystems()
	return c.storageProblems
}

// declare adds the device d at path and returns true. If another device is declared at path already, declare adds a problem and
// returns false.
func (c *storageCheck) declare(path string, d storageDevice) bool {
	if other := c.devices[path]; other != nil {
		c.add(d.field, "remove one of the two", "%s is declared by %s already", path, other.field)
		return false
	}
	c.devices[path] = &d
	return true
}

func (c *storageCheck) checkDisk(i int, d StorageDisk, size DiskSize) {
	field := fmt.Sprintf("disks[%d]", i)
	if !utf8.ValidString(d.Serial+d.WWN) || strings.ContainsFunc(d.Serial+d.WWN, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		c.add(field, "copy the serial number as the machine shows it", "serial or wwn is not printable")
	}
	for j, other := range c.Disks[:i] {
		if d.DiskID != (DiskID{}) && d.Serial == other.Serial && strings.EqualFold(d.WWN, other.WWN) {
			c.add(field, "give each disk its own serial or wwn", "it is the same disk as disks[%d]", j)
		}
	}
	placed, problems := d.Layout(size.Size, size.Sector)
	for _, p := range problems {
		c.add(field+"."+p.Field, p.Remedy, "%s", p.What)
	}
	if !devicePath(d.Device) {
		c.add(field+".device", "give a path such as /dev/sda", "invalid device path %q", d.Device)
		return
	}
	if !c.declare(d.Device, storageDevice{kind: wholeDisk, field: field + ".device", disk: i}) {
		return
	}

	for j, n := range d.numbers() {
		p := storageDevice{kind: diskPartition, field: fmt.Sprintf("%s.partitions[%d]", field, j), disk: i}
		switch d.Partitions[j].kind() {
		case labelTypes["BIOS"]:
			p.kind = bootPartition
		case labelTypes["EFI"]:
			p.kind = efiPartition
		}
		if k := slices.IndexFunc(placed, func(x PlacedPartition) bool { return x.Number == n }); k >= 0 {
			p.size = placed[k].Size
		}
		if slices.Index(d.numbers(), n) == j { // if two partitions have the same number, Layout reports that
			c.declare(PartitionPath(d.Device, n), p)
		}
	}
}

func devicePath(p string) bool {
	return strings.HasPrefix(p, "/dev/") && path.Clean(p) == p && storagePath.MatchString(p) && len(p) < 256
}

// take marks the device at path as used by field and returns the device. If there is no such device, if it is used already, or if
// its kind is not one of kinds, take adds a problem and returns nil.
func (c *storageCheck) take(field, path string, kinds ...string) *storageDevice {
	d := c.devices[path]
	switch {
	case d == nil:
		c.add(field, "add it to the partitions of a disk", "the storage has no partition, array or logical volume %q", path)
	case d.by != "":
		c.add(field, "use each device once", "%s is used by %s already", path, d.by)
	case !slices.Contains(kinds, d.kind):
		c.add(field, "use "+strings.Join(kinds, " or "), "%s is %s", path, d.kind)
	default:
		d.by = field
		return d
	}
	return nil
}

// rewritten adds a problem if WipeTable is not set on disk i. Disks in arrays and volume groups need WipeTable, because each
// attempt at the action creates the array or group again and so overwrites what is on the partitions.
func (c *storageCheck) rewritten(field string, i int) {
	if i >= 0 && !c.Disks[i].WipeTable {
		c.add(field, fmt.Sprintf("set wipe_table: true in disks[%d]", i), "it is on disk %s, which must not be overwritten", c.Disks[i].Device)
	}
}

func (c *storageCheck) checkRAID() {
	for i, r := range c.RAID {
		field := fmt.Sprintf("raid[%d]", i)
		level := r.Kind()
		if !slices.Contains(RAIDLevels, level) {
			c.add(field+".level", "use one of "+strings.Join(RAIDLevels, ", "), "unsupported level %q", r.Level)
		}

		active := len(r.Devices) - r.Spare
		switch least := map[bool]int{true: 4, false: 2}[level == "10"]; {
		case r.Spare < 0 || active < least:
			c.add(field+".devices", fmt.Sprintf("give %d or more devices that are not spares", least), "%d devices, %d of them spare",
				len(r.Devices), r.Spare)
		case level == "0" && r.Spare > 0:
			c.add(field+".spare", "leave it out", "level 0 has no use for a spare")
		}

		array := storageDevice{kind: raidArray, field: field + ".name", disk: -1}
		disks, least, known := map[int]string{}, maxStorage, true
		for j, p := range r.Devices {
			at := fmt.Sprintf("%s.devices[%d]", field, j)
			d := c.take(at, p, diskPartition)
			if d == nil {
				known = false
				continue
			}
			if other := disks[d.disk]; other != "" {
				c.add(at, "use partitions of different disks", "%s is on the same disk as %s", p, other)
			}
			disks[d.disk], least, known = p, min(least, d.size), known && d.size > 0
			c.rewritten(at, d.disk)
		}
		if known && active > 0 {
			array.size = map[string]int64{"0": least * int64(active), "1": least, "10": least * int64(active) / 2}[level]
		}
		if !raidName.MatchString(r.Name) {
			c.add(field+".name", "give md and a number, such as md0", "invalid name %q", r.Name)
			continue
		}
		c.declare(r.Device(), array)
	}
}

// extent is the size of a physical extent of LVM, in bytes.
const extent = 4 << 20

func (c *storageCheck) checkVolumes() {
	groups := map[string]string{}
	for i, g := range c.VolumeGroups {
		field := fmt.Sprintf("volume_groups[%d]", i)
		if !storageName.MatchString(g.Name) {
			c.add(field+".name", "use letters, digits and - _ . +", "invalid name %q", g.Name)
		} else if groups[g.Name] != "" {
			c.add(field+".name", "give each group a different name", "%s has the name %s already", groups[g.Name], g.Name)
		}
		groups[g.Name] = field
		for j, tag := range g.Tags {
			if !storageName.MatchString(tag) {
				c.add(fmt.Sprintf("%s.tags[%d]", field, j), "use letters, digits and - _ . +", "invalid tag %q", tag)
			}
		}

		if len(g.PhysicalVolumes) == 0 {
			c.add(field+".physical_volumes", "name one or more partitions or arrays", "no physical volume is given")
		}
		room, known := int64(0), true
		for j, p := range g.PhysicalVolumes {
			at := fmt.Sprintf("%s.physical_volumes[%d]", field, j)
			d := c.take(at, p, diskPartition, raidArray)
			if d == nil || d.size == 0 {
				known = false
				continue
			}
			room += (d.size - 1<<20) / extent * extent // LVM begins at 1 MiB
			c.rewritten(at, d.disk)
		}
		if !known {
			room = maxStorage
		}
		c.checkLogical(field, g, room)
	}
}

// checkLogical checks the logical volumes of g. room is the maximum of the sum of their sizes, in bytes.
func (c *storageCheck) checkLogical(field string, g StorageVolumes, room int64) {
	left := room
	for j, v := range g.LogicalVolumes {
		at := fmt.Sprintf("%s.logical_volumes[%d]", field, j)
		if len(v.Options) > 0 {
			c.add(at+".opts", "leave it out", "no option of lvcreate is supported")
		}
		if !storageName.MatchString(v.Name) {
			c.add(at+".name", "use letters, digits and - _ . +", "invalid name %q", v.Name)
		} else {
			c.declare(g.Path(v), storageDevice{kind: logicalVolume, field: at + ".name", disk: -1})
		}

		switch size := (min(max(v.Size, 0), maxStorage) + extent - 1) / extent * extent; {
		case v.Size < 0 || v.Size > maxStorage:
			c.add(at+".size", "give a number of bytes, or 0 for the rest of the group", "invalid size %d", v.Size)
		case v.Size == 0 && j+1 < len(g.LogicalVolumes):
			c.add(at+".size", "give a size, or put this volume at the end", "only the last volume takes the rest of the group")
		case max(size, extent) > left:
			c.add(at+".size", "make the volumes smaller, or the group larger",
				"the volume does not fit: %d bytes of %d are left, in extents of %d", max(left, 0), room, extent)
		default:
			left -= size
		}
	}
}

func (c *storageCheck) checkFilesystems() {
	points := map[string]string{}
	for i, f := range c.Filesystems {
		field, m := fmt.Sprintf("filesystems[%d].mount", i), f.Mount
		kinds := []string{diskPartition, raidArray, logicalVolume}
		if m.Format == "vfat" {
			kinds = append(kinds, efiPartition) // only vfat, because UEFI reads no other file system
		}
		c.take(field+".device", m.Device, kinds...)

		if !slices.Contains(StorageFormats(), m.Format) {
			c.add(field+".format", "use one of "+strings.Join(StorageFormats(), ", "), "unsupported format %q", m.Format)
		} else if _, err := MkfsOptions(m.Format, m.Create.Options); err != nil {
			c.add(field+".create.options", "correct the options, or leave them out", "%v", err)
		}

		other := points[m.Point]
		switch {
		case m.Point == "", m.Format == "swap" && slices.Contains([]string{"none", "swap", "SWAP"}, m.Point):
		case !storagePath.MatchString(m.Point) || path.Clean(m.Point) != m.Point:
			c.add(field+".point", "give an absolute path such as /boot", "invalid mount point %q", m.Point)
		case other != "":
			c.add(field+".point", "give each file system a different mount point", "%s is the mount point of %s already", m.Point, other)
		default:
			points[m.Point] = field
		}
	}
}

// Device returns the path of the array.
func (r StorageRAID) Device() string { return "/dev/" + strings.TrimPrefix(r.Name, "/dev/") }

// Kind returns the level without the prefix "raid", in the form of RAIDLevels.
func (r StorageRAID) Kind() string { return strings.TrimPrefix(r.Level, "raid") }

// Path returns the path of the logical volume v of g.
func (g StorageVolumes) Path(v StorageVolume) string { return "/dev/" + g.Name + "/" + v.Name }

// Mapped returns the name that the device mapper gives to the logical volume v of g: the name of the group and the name of the
// volume, joined by a dash. Dashes within the two names are doubled.
func (g StorageVolumes) Mapped(v StorageVolume) string {
	return strings.ReplaceAll(g.Name, "-", "--") + "-" + strings.ReplaceAll(v.Name, "-", "--")
}

// Disk returns which disk has the partition at the path device: its index in s.Disks, and the number of the partition. The index is
// -1 if s has no such partition.
func (s Storage) Disk(device string) (disk, number int) {
	for i, d := range s.Disks {
		for _, n := range d.numbers() {
			if device == PartitionPath(d.Device, n) {
				return i, n
			}
		}
	}
	return -1, 0
}

// Declares reports whether s has a partition, an array or a logical volume at device.
func (s Storage) Declares(device string) bool {
	disk, _ := s.Disk(device)
	return disk >= 0 || slices.ContainsFunc(s.RAID, func(a StorageRAID) bool { return a.Device() == device }) ||
		slices.ContainsFunc(s.VolumeGroups, func(g StorageVolumes) bool {
			return slices.ContainsFunc(g.LogicalVolumes, func(v StorageVolume) bool { return g.Path(v) == device })
		})
}

// numbers returns the numbers of the disk's partitions, in the order of d.Partitions.
func (d StorageDisk) numbers() []int {
	var out []int
	for i, p := range d.Partitions {
		out = append(out, cmp.Or(p.Number, i+1))
	}
	return out
}
