package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// nodeWait is how long the device node of a partition may take to appear after the partition table was written.
const nodeWait = 15 * time.Second

// locate waits until the partition with the given number exists on disk. It returns the partition and the type of its file system.
// Number 0 means the partition with the root file system.
func (t *Task) locate(ctx context.Context, disk action.Disk, number int) (part filesys.Partition, fstype string, err error) {
	if t.machine.Files == nil {
		return part, "", errors.New("mounting: this agent cannot mount file systems")
	}

	_, e := t.waitForPartitions(ctx, disk, func(parts []filesys.Partition) bool {
		if number > 0 {
			part, fstype, err = t.pick(parts, number)
		} else {
			part, fstype, err = t.findRoot(ctx, disk.Path, parts)
		}
		return !errors.Is(err, errNotYet)
	})
	switch {
	case e != nil && err != nil:
		return part, fstype, fmt.Errorf("%w (%w)", err, e)
	case e != nil:
		return part, fstype, e
	}
	return part, fstype, err
}

// waitForPartitions lists the partitions of disk until found returns true. It returns false if that takes longer than nodeWait.
func (t *Task) waitForPartitions(ctx context.Context, disk action.Disk, found func([]filesys.Partition) bool) (bool, error) {
	for end := time.Now().Add(nodeWait); ; {
		parts, err := t.machine.Files.Partitions(ctx, disk.Path)
		if err != nil {
			return false, fmt.Errorf("listing the partitions of %s: %w", disk.Path, err)
		}
		if found(parts) {
			return true, nil
		}
		if time.Now().After(end) {
			return false, nil
		}
		if err := clock.Sleep(ctx, 200*time.Millisecond); err != nil {
			return false, err
		}
	}
}

// pick returns the partition with number n and the type of its file system.
func (t *Task) pick(parts []filesys.Partition, n int) (filesys.Partition, string, error) {
	for _, p := range parts {
		if p.Number != n {
			continue
		}
		fstype, err := t.holds(p)
		return p, fstype, err
	}
	return filesys.Partition{}, "", fmt.Errorf("finding partition %d among %d partitions: %w", n, len(parts), errNotYet)
}

// holds returns the type of the file system on p: FS_TYPE if it is set, otherwise what TypeOf recognizes. It returns errNotYet if
// it knows no type.
func (t *Task) holds(p filesys.Partition) (string, error) {
	fstype := cmp.Or(t.env["FS_TYPE"], filesys.TypeOf(p))
	if fstype == "" {
		return "", fmt.Errorf("finding a file system on %s: %w", p.Path, errNotYet)
	}
	if !slices.Contains(action.FileSystems, fstype) {
		return fstype, fmt.Errorf("mounting %s: unsupported file system %q; must be one of %s", p.Path, fstype,
			strings.Join(action.FileSystems, ", "))
	}
	return fstype, nil
}

// findRoot returns the largest partition whose file system contains /etc/os-release, and the file system's type.
func (t *Task) findRoot(ctx context.Context, disk string, parts []filesys.Partition) (filesys.Partition, string, error) {
	slices.SortFunc(parts, func(a, b filesys.Partition) int { return int(min(1, max(-1, b.Size-a.Size))) })
	var seen []string
	for _, p := range parts {
		fstype := filesys.TypeOf(p)
		seen = append(seen, p.Path+" "+fstype)
		if fstype != "ext4" && fstype != "xfs" && fstype != "btrfs" {
			continue
		}

		dir, unmount, err := t.machine.Files.Mount(ctx, p.Path, fstype, true)
		if err != nil {
			seen = append(seen, err.Error())
			continue
		}
		_, err = os.Lstat(dir + "/etc/os-release")
		if e := unmount(); e != nil {
			return p, fstype, fmt.Errorf("unmounting %s: %w", p.Path, e)
		}
		if err == nil {
			return p, fstype, nil
		}
	}

	return filesys.Partition{}, "", fmt.Errorf("finding the root file system of %s (one with /etc/os-release) on [%s]: %w", disk,
		strings.Join(seen, ", "), errNotYet)
}

// errNotYet means that a partition or its file system is missing but may still appear: after a table is written, the device nodes
// appear one by one.
var errNotYet = errors.New("not found")
