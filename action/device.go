package action

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// partitionForms match the paths that the kernel and udev give to partitions. The first group of each matches the path of the disk.
var partitionForms = []*regexp.Regexp{
	regexp.MustCompile(`^(/dev/disk/.+)-part\d+$`),
	regexp.MustCompile(`^(/dev/(?:cciss/|ida/)?[a-z][a-z0-9]*\d)p\d+$`),
	regexp.MustCompile(`^(/dev/(?:sd|vd|xvd|hd|dasd)[a-z]+)\d+$`),
}

// volumeForm matches the paths of md arrays, of device mapper devices, and of logical volumes in a group whose name begins with
// "vg".
var volumeForm = regexp.MustCompile(`^/dev/(md(\d|/)|dm-|mapper/|vg[^/]*/)`)

// contentForm matches the paths with which udev names a file system or a partition by its label or UUID.
var contentForm = regexp.MustCompile(`^/dev/disk/by-(label|uuid|partlabel|partuuid)/`)

// DiskOf returns the path of the disk if path is a partition, and path itself otherwise.
func DiskOf(path string) string {
	for _, r := range partitionForms {
		if m := r.FindStringSubmatch(path); m != nil {
			return m[1]
		}
	}
	return path
}

// IsVolume reports whether path has a form that only paths of arrays and logical volumes have.
func IsVolume(path string) bool { return volumeForm.MatchString(path) }

// CheckDevicePath returns an error if path can name neither the run's disk nor a partition of it.
func CheckDevicePath(path string) error {
	switch {
	case path == "":
		return nil
	case !strings.HasPrefix(path, "/dev/") || strings.Contains(path, "..") || strings.HasSuffix(path, "/"):
		return fmt.Errorf("invalid disk path %q; must be a path in /dev", path)
	case contentForm.MatchString(path):
		return fmt.Errorf("invalid disk path %q: it names a file system or a partition: select one with %s", path, PartitionVariable)
	}
	return nil
}

// PartitionOf returns the number of the partition at path if it is a partition of disk, and 0 if path is disk itself. ok is false
// if path is any other device. PartitionOf is the reverse of PartitionPath.
func PartitionOf(path, disk string) (number int, ok bool) {
	if path == disk {
		return 0, true
	}
	digits := path[len(strings.TrimRight(path, "0123456789")):]
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || disk == "" || PartitionPath(disk, n) != path {
		return 0, false
	}
	return n, true
}

// DiskVariable returns the name of the variable in env that names the disk of the native action; "" if the action has no such
// variable. If the variable is not set, the action uses the run's disk.
func DiskVariable(name string, env map[string]string) string {
	if name == Wipe && env["BLOCK_DEVICE"] == "" && env["DEST_DISK"] != "" {
		return "DEST_DISK"
	}
	return natives[name].Disk
}

// CheckDevice returns an error if a native action cannot use the device in its environment env. The argument names lists the paths
// by which env may name the run's disk. If the list is empty, CheckDevice assumes that the device is the run's disk or a partition
// of it. Both the plan and the agent call CheckDevice in addition to Check.
func CheckDevice(native string, env map[string]string, names ...string) error {
	row, variable := natives[native], DiskVariable(native, env)
	device := env[variable]
	if all, err := Bool(env, AllDisksVariable, false); variable == "" || row.AllDisks && err == nil && all {
		return nil
	}
	disks := names // disks that GRUB_DISK may name
	if len(names) == 0 {
		names = []string{DiskOf(device)}
	}

	number, own := 0, device == ""
	for _, name := range names {
		if n, ok := PartitionOf(device, name); ok && !own {
			number, own = n, true
		}
	}
	partition := env[PartitionVariable]
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("reading %s=%q: %s", variable, device, fmt.Sprintf(format, args...))
	}
	switch {
	case CheckDevicePath(device) != nil:
		return fmt.Errorf("reading %s: %w", variable, CheckDevicePath(device))
	case !row.Volumes && IsVolume(device):
		return wrong("it is an array or a logical volume, but %s needs a disk", native)
	case !own && row.Volumes && env[StorageVariable] != "":
		return errors.Join(checkStorageDevice(env, variable, names), checkGrubDisks(native, env, own, disks))
	case !own:
		return wrong("it is not the disk bound to this run (%s)", names[0])
	case native == RootIO: // rootio takes its partitions from STORAGE, and PARTITION may be meant for other actions of the task
		return nil
	case number != 0 && !row.Volumes && !row.Partitions:
		return wrong("%s takes a whole disk, not partition %d", native, number)
	case number != 0 && partition != "":
		return wrong("it names a partition already, and so does %s=%q: give one of the two", PartitionVariable, partition)
	case native == Syslinux && number == 0 && partition == "":
		return wrong("it names no partition: name one, such as /dev/sda1, or give %s", PartitionVariable)
	}
	return checkGrubDisks(native, env, own, disks)
}

// checkStorageDevice returns an error unless STORAGE declares the device that the variable names, and a file system can be on this
// device.
func checkStorageDevice(env map[string]string, variable string, names []string) error {
	device := env[variable]
	s, err := ParseStorage(env[StorageVariable])
	if err != nil {
		return fmt.Errorf("reading %s: %w", StorageVariable, err)
	}
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("reading %s=%q: %s", variable, device, fmt.Sprintf(format, args...))
	}
	if !s.Declares(device) {
		return wrong("it is not the disk bound to this run (%s), and %s does not declare it", strings.Join(names, ", "), StorageVariable)
	}
	if env[PartitionVariable] != "" {
		return wrong("it names a file system already: leave out %s", PartitionVariable)
	}
	for i, r := range s.RAID {
		if slices.Contains(r.Devices, device) {
			return wrong("it is part of the array %s (raid[%d] of %s): name the array", r.Device(), i, StorageVariable)
		}
	}
	for i, g := range s.VolumeGroups {
		if slices.Contains(g.PhysicalVolumes, device) {
			return wrong("it is part of the volume group %s (volume_groups[%d] of %s): name a logical volume", g.Name, i, StorageVariable)
		}
	}
	for _, f := range s.Filesystems {
		format, given := strings.Replace(f.Mount.Format, "ext2", "ext4", 1), env[FileSystemVariable]
		format = strings.Replace(format, "ext3", "ext4", 1)
		switch {
		case f.Mount.Device != device:
		case format == "swap":
			return wrong("it is a swap space in %s: name a device with a file system", StorageVariable)
		case given != "" && given != format:
			return wrong("it has the file system %s in %s, but FS_TYPE is %s: leave out FS_TYPE", f.Mount.Format, StorageVariable, given)
		}
	}
	return nil
}

// checkGrubDisks returns an error for each disk in GRUB_DISK that may not get GRUB. The run's disk may, and so may every disk of
// STORAGE if the system is on another device of STORAGE. own means that the system is on the run's disk. names are the paths of the
// run's disk; if there are none, checkGrubDisks refuses only partitions.
func checkGrubDisks(native string, env map[string]string, own bool, names []string) error {
	if native != Grub2Disk {
		return nil
	}
	s, err := ParseStorage(env[StorageVariable])
	known := err == nil && !own

	var errs []error
	for _, d := range GrubDisks(env) {
		switch declared := known && slices.ContainsFunc(s.Disks, func(x StorageDisk) bool { return x.Device == d }); {
		case slices.Contains(names, d) || declared:
		case len(names) == 0 && DiskOf(d) == d:
		case DiskOf(d) != d:
			errs = append(errs, fmt.Errorf("reading %s: %q is a partition: name its disk", GrubDisksVariable, d))
		default:
			errs = append(errs, fmt.Errorf("reading %s: %q is a second disk next to %q: name the run's disk, "+
				"or, if the system is on another device of STORAGE, disks of STORAGE", GrubDisksVariable, d, strings.Join(names, ", ")))
		}
	}
	return errors.Join(errs...)
}
