package actions

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// A place is the file system on which an action works.
type place struct {
	filesys.Partition        // the block device with the file system
	fstype            string // type of the file system
	disk              action.Disk
	named             bool    // the environment names the partition: do not look for another one
	storage           *rootIO // the storage that keeps the device active; nil for a partition of the bound disk
}

// place returns the file system that the variable's path, PARTITION and FS_TYPE select; by default, the root file system. If the
// path is an array, a logical volume or a partition of another disk in STORAGE, place first activates the arrays and volumes in
// STORAGE. The caller must call release.
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
	if err != nil { // without a place, the caller cannot release it
		p.release(ctx, &err)
	}
	return p, err
}

// findDeclared returns the action's STORAGE, and whether it declares device. A partition of the bound disk counts as not declared.
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

// release deactivates what place has activated. It adds its error to *err.
func (p place) release(ctx context.Context, err *error) {
	if p.storage != nil {
		*err = errors.Join(*err, p.storage.release(context.WithoutCancel(ctx)))
	}
}

// again returns the current place after the file system was used: its path may have changed.
func (t *Task) again(ctx context.Context, p place) (place, error) {
	if p.storage != nil {
		return p, nil
	}
	var err error
	p.Partition, p.fstype, err = t.locate(ctx, p.disk, p.Number)
	return p, err
}
