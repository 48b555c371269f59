package actions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// target returns the bound disk, which it finds by identity and never by name. The path in the environment variable must name this
// disk or one of its partitions; partition is the number of that partition, or 0 for the whole disk.
//
// Call target right before the first write, because it looks the disk up again.
func (t *Task) target(ctx context.Context, variable string) (disk action.Disk, partition int, err error) {
	if t.bound == nil {
		return disk, 0, errors.New("finding the disk: no disk is bound to this run")
	}
	path := t.env[variable]
	if partition, err = t.partitionOf(path); err != nil {
		return disk, 0, fmt.Errorf("finding the disk %s=%q: %w", variable, path, err)
	}
	disk, err = t.lookUp(ctx, *t.bound)
	return disk, partition, err
}

// present returns an error if the bound disk is missing. perform calls it before an action that writes.
func (t *Task) present(ctx context.Context) error {
	_, _, err := t.target(ctx, "") // without a variable, the path is empty, and an empty path means the bound disk
	return err
}

// diskNames returns the paths by which the action may name the bound disk.
func (t *Task) diskNames() []string {
	switch {
	case t.alias != "":
		return []string{t.alias}
	case t.bound != nil:
		return append([]string{t.bound.Path}, t.bound.ByID...)
	}
	return nil
}

// partitionOf returns the number of the bound disk's partition that has the given path. It returns 0 if the path is "" or the path
// of the whole disk.
func (t *Task) partitionOf(path string) (int, error) {
	if path == "" {
		return 0, nil
	}
	for _, name := range t.diskNames() {
		if n, ok := action.PartitionOf(path, name); ok {
			return n, nil
		}
	}
	return 0, fmt.Errorf("it is not the disk bound to this run (%s)", disk.Describe(*t.bound))
}

// open opens the whole bound disk for writing. The argument variable is the environment variable with the path of the disk;
// action.CheckDevice has already refused a path of a partition there.
func (t *Task) open(ctx context.Context, variable string) (action.Disk, blockdev.Device, error) {
	if disk, _, err := t.target(ctx, variable); err != nil {
		return disk, nil, err
	}
	return t.openDisk(ctx, *t.bound)
}

// openDisk looks up the disk that matches want, and opens it for writing.
func (t *Task) openDisk(ctx context.Context, want action.Disk) (action.Disk, blockdev.Device, error) {
	found, err := t.lookUp(ctx, want)
	if err != nil {
		return found, nil, err
	}

	dev, err := t.machine.Disks.Open(found.Path)
	if errors.Is(err, syscall.EBUSY) {
		err = fmt.Errorf("%w: a partition of it is mounted, or an array or a volume group uses it", err)
	}
	if err != nil {
		return found, nil, fmt.Errorf("opening %s: %w", found.Path, err)
	}

	if dev.Size() != found.Size {
		_ = dev.Close() // nothing was written
		return found, nil, fmt.Errorf("opening %s: the disk has %d bytes instead of %d", found.Path, dev.Size(), found.Size)
	}

	// Before the device was open, its name may have passed to another disk, so look the disk up again. While the device is open,
	// its name cannot change.
	if again, err := t.lookUp(ctx, want); err != nil || again.Path != found.Path {
		_ = dev.Close() // nothing was written
		if err == nil {
			err = fmt.Errorf("the disk's path has changed to %s", again.Path)
		}
		return found, nil, fmt.Errorf("opening %s: %w", found.Path, err)
	}

	t.logf("disk %s (%s)", found.Path, disk.Describe(found))
	return found, dev, nil
}

// closeDisk closes a disk. If closing fails and *err is nil, it sets *err.
func closeDisk(dev blockdev.Device, path string, err *error) {
	if e := dev.Close(); e != nil && *err == nil {
		*err = fmt.Errorf("closing %s: %w", path, e)
	}
}

// reread makes the kernel read the partition table of dev again.
func (t *Task) reread(dev blockdev.Device) {
	if err := dev.Reread(); err != nil {
		t.logf("warning: the kernel has not read the new partition table: %v", err)
	}
}

// lookUp lists the disks again and returns the one that matches want.
func (t *Task) lookUp(ctx context.Context, want action.Disk) (action.Disk, error) {
	disks, err := t.machine.Disks.Disks(ctx)
	if err != nil {
		return action.Disk{}, fmt.Errorf("listing disks: %w", err)
	}
	found, err := disk.Identify(want, disks)
	if err == nil && t.protects(found) {
		return action.Disk{}, fmt.Errorf("finding the disk %s: the inventory protects this disk, so the agent never writes to it",
			disk.Describe(want))
	}
	return found, err
}

// protects reports whether the order protects d from writes.
func (t *Task) protects(d action.Disk) bool {
	return slices.ContainsFunc(t.spared, func(id action.DiskID) bool { return id.Is(d) })
}
