package action

import (
	"fmt"
	"strings"
)

// Storage is how rootio lays out the disks of a machine. The JSON keys are those of metadata.instance.storage in Tinkerbell's
// Hardware.
type Storage struct {
	Disks        []StorageDisk       `json:"disks,omitempty"`         // disks with their partitions
	RAID         []StorageRAID       `json:"raid,omitempty"`          // arrays of the kernel's md driver
	Filesystems  []StorageFilesystem `json:"filesystems,omitempty"`   // file systems and swap spaces
	VolumeGroups []StorageVolumes    `json:"volume_groups,omitempty"` // volume groups of LVM
}

// A StorageDisk is a disk with its partitions. Device is only a name. If Device is the path that the run uses for the run's disk,
// the StorageDisk is the run's disk. Every other disk is identified by a serial number or a WWN.
type StorageDisk struct {
	Device string `json:"device"` // path that the storage uses for the disk
	DiskID
	// WipeTable allows rootio to replace the partition table and to overwrite what the disk contains.
	WipeTable  bool               `json:"wipe_table,omitempty"`
	Partitions []StoragePartition `json:"partitions,omitempty"` // partitions of the disk's GPT
}

// A StoragePartition is one partition of a GPT.
type StoragePartition struct {
	Label    string `json:"label"`               // name in the GPT; SWAP, BIOS and EFI set the type
	Number   int    `json:"number,omitempty"`    // 0 = the number is the position in the list, from 1
	Start    int64  `json:"start,omitempty"`     // sectors of 512 bytes; 0 = after the previous partition in the list
	Size     int64  `json:"size,omitempty"`      // sectors of 512 bytes; 0 = the rest of the disk
	TypeGUID string `json:"type_guid,omitempty"` // "" = the label decides
}

// A StorageRAID is an array of the kernel's md driver.
type StorageRAID struct {
	Name    string   `json:"name"`            // md0 or /dev/md0
	Level   string   `json:"level"`           // 0, 1 or 10; "raid1" is the same as "1"
	Devices []string `json:"devices"`         // partitions of different disks; the spares are the last ones
	Spare   int      `json:"spare,omitempty"` // number of spares
}

// A StorageFilesystem is a file system or swap space on a partition.
type StorageFilesystem struct {
	Mount StorageMount `json:"mount"`
}

// A StorageMount describes how a file system is made, and where the installed system mounts it.
type StorageMount struct {
	Device string        `json:"device"` // path of a partition, an array or a logical volume
	Format string        `json:"format"` // ext2, ext3, ext4, xfs, vfat or swap
	Create StorageCreate `json:"create,omitzero"`
	Point  string        `json:"point,omitempty"` // absolute path; "" for swap
}

// StorageCreate holds the options for making a file system.
type StorageCreate struct {
	Force   bool     `json:"force,omitempty"`   // has no effect: rootio formats only what it may overwrite
	Options []string `json:"options,omitempty"` // options of mkfs, such as -L ROOT; options that name another device are refused
}

// StorageVolumes is a volume group of LVM.
type StorageVolumes struct {
	Name            string          `json:"name"`                      // letters, digits and - _ . +
	PhysicalVolumes []string        `json:"physical_volumes"`          // partitions and arrays
	LogicalVolumes  []StorageVolume `json:"logical_volumes,omitempty"` // logical volumes in the group
	Tags            []string        `json:"tags,omitempty"`            // tags of the group
}

// A StorageVolume is a logical volume.
type StorageVolume struct {
	Name string `json:"name"`           // letters, digits and - _ . +
	Size int64  `json:"size,omitempty"` // bytes; 0 = the rest of the group
	// Options must be empty: no option of lvcreate is supported.
	Options []string `json:"opts,omitempty"`
}

// A StorageProblem is one error in a Storage. Field is the path of the wrong field in the storage.
type StorageProblem struct{ Field, What, Remedy string }

func (p StorageProblem) String() string {
	return fmt.Sprintf("%s: %s: %s", p.Field, p.What, p.Remedy)
}

type storageProblems []StorageProblem

func (ps *storageProblems) add(field, remedy, format string, args ...any) {
	*ps = append(*ps, StorageProblem{Field: field, What: fmt.Sprintf(format, args...), Remedy: remedy})
}

// PartitionPath returns the path that the kernel or udev gives to partition n of the disk at device.
func PartitionPath(device string, n int) string {
	switch {
	case strings.HasPrefix(device, "/dev/disk/"):
		return fmt.Sprintf("%s-part%d", device, n)
	case strings.TrimRight(device, "0123456789") != device:
		return fmt.Sprintf("%sp%d", device, n)
	}
	return fmt.Sprintf("%s%d", device, n)
}
