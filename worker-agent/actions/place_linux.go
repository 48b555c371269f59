package actions

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// A place is the file system that an action uses.
type place struct {
	filesys.Partition        // the block device
	fstype            string // what it holds
	disk              action.Disk
	named             bool    // the environment names it, so that no other is looked at
	storage           *rootIO // what holds the device active; nil for a partition of the run's disk
}

// place finds the file system that variable's path, PARTITION and FS_TYPE select; the root file
// system by default. If the path names an array, a logical volume or another disk's partition
// in STORAGE, place activates what STORAGE declares. The caller calls release.
func (t *Task) place(ctx context.Context, variable string) (p place, err error) {
	storage, declared, err := t.findDeclared(t.env[variable])
	if err != nil {
		return p, err
	}
	if !declared {
		disk, number, err := t.partition(ctx, variable)
		if err != nil {
			return p, err
		}
		p = place{disk: disk, named: number != 0}
		p.Partition, p.fstype, err = t.locate(ctx, disk, number)
		return p, err
	}

	r, err := openStorage(ctx, t, storage, "mount")
	if err != nil {
		return p, err
	}
	p = place{disk: *t.bound, named: true, storage: r}
	if err = r.assemble(ctx); err == nil {
		p.Partition, err = r.node(ctx, t.env[variable])
	}
	if err == nil {
		p.fstype, err = t.holds(p.Partition)
	}
	if err != nil { // the caller gets no place to release
		p.release(ctx, &err)
	}
	return p, err
}

// findDeclared returns the storage of the action, and whether it declares device, which is no partition
// of the run's disk.
func (t *Task) findDeclared(device string) (s action.Storage, declared bool, err error) {
	if t.env[action.StorageVariable] == "" {
		return s, false, nil
	}
	if _, err := t.partitionOf(device); err == nil {
		return s, false, nil
	}
	if s, err = action.ParseStorage(t.env[action.StorageVariable]); err != nil {
		return s, false, fmt.Errorf("reading %s: %w", action.StorageVariable, err)
	}
	return s, s.Declares(device), nil
}

// release deactivates what place has activated. It keeps what the caller returns in *err.
func (p place) release(ctx context.Context, err *error) {
	if p.storage != nil {
		*err = errors.Join(*err, p.storage.release(context.WithoutCancel(ctx)))
	}
}

// again finds the place again, after a use of it: its path may have changed.
func (t *Task) again(ctx context.Context, p place) (place, error) {
	if p.storage != nil {
		return p, nil
	}
	var err error
	p.Partition, p.fstype, err = t.locate(ctx, p.disk, p.Number)
	return p, err
}
