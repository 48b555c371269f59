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
	named             bool    // the environment names the partition, so no other one may be used
	storage           *rootIO // the activated storage that contains the device; nil for a partition of the bound disk
}

// place returns the file system on which the action works. The variable's path, PARTITION and FS_TYPE select it; the default is the
// root file system. If the path is an array, a logical volume or a partition of another disk in STORAGE, place first activates the
// arrays and volumes in STORAGE. The caller must call release.
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
	if err != nil { // after an error, the caller does not call release
		p.release(ctx, &err)
	}
	return p, err
}

// findDeclared reports whether the action's STORAGE declares device, and if so, returns the storage. A partition of the bound disk
// counts as not declared.
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

// release deactivates the arrays and volumes that place has activated. If that fails, it adds its error to *err.
func (p place) release(ctx context.Context, err *error) {
	if p.storage != nil {
		*err = errors.Join(*err, p.storage.release(context.WithoutCancel(ctx)))
	}
}

// again looks up p once more after its file system was used, and returns it: the path of its device may have changed.
func (t *Task) again(ctx context.Context, p place) (place, error) {
	if p.storage != nil {
		return p, nil
	}
	var err error
	p.Partition, p.fstype, err = t.locate(ctx, p.disk, p.Number)
	return p, err
}
