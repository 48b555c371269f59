package action

import "errors"

// SyslinuxPartitionVariable is the variable that names the partition for syslinux. It has the same name as in Tinkerbell's action.
const SyslinuxPartitionVariable = "DEST_PARTITION"

// syslinux installs the SYSLINUX that the agent contains.
var syslinux = Description{
	Text:   "Installs SYSLINUX on a partition, and its boot code on the disk, for BIOS.",
	Loader: true, Writes: true, Disk: SyslinuxPartitionVariable, Partitions: true,
	Variables: []Variable{
		{
			Name: SyslinuxPartitionVariable, Text: "path of the partition (FAT, ext4, xfs or btrfs) with syslinux.cfg or extlinux.conf in its top " +
				"folder; or give PARTITION instead", Required: true, check: onePartition,
		},
		{Name: "DEST_DISK", Text: "path of the disk", Default: runDisk},
		{Name: PartitionVariable, Text: partitionText, check: partition},
		fileSystem,
		{Name: "SYSLINUX_VERSION", Text: "not needed: the version is always SYSLINUX 6"},
	},
	Output: []string{"device", "table"},
	Limits: "The partition becomes the only one that BIOS boots. The rest of the boot sector and of the partition table is not changed. " +
		"Kernel and configuration must be in the image.",
}

func onePartition(env map[string]string, name string) error {
	if env[name] == "" && env[PartitionVariable] == "" {
		return errors.New("reading " + name + ": it is missing: name the partition, such as /dev/sda1, or give " + PartitionVariable)
	}
	return nil
}
