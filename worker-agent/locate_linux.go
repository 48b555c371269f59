package agent

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
	"github.com/ingotmetal/ingot/internal/clock"
)

// nodeWait is how long the device node of a partition may take to appear after the table is
// written.
const nodeWait = 15 * time.Second

// locate waits until the partition of disk exists and returns it with the type of its file system;
// number 0 selects the root file system.
func (t *attempt) locate(ctx context.Context, disk action.Disk, number int) (part Partition, fstype string, err error) {
	files := t.agent.cfg.Files
	if files == nil {
		return part, "", errors.New("mounting: this agent cannot mount file systems")
	}

	for end := time.Now().Add(nodeWait); ; {
		parts, e := files.Partitions(ctx, disk.Path)
		if e != nil {
			return part, "", fmt.Errorf("listing the partitions of %s: %w", disk.Path, e)
		}

		if number > 0 {
			part, fstype, err = t.pick(parts, number)
		} else {
			part, fstype, err = t.findRoot(ctx, disk.Path, parts)
		}
		if !errors.Is(err, errNotYet) || time.Now().After(end) {
			return part, fstype, err
		}
		if e := clock.Sleep(ctx, 200*time.Millisecond); e != nil {
			return part, fstype, fmt.Errorf("%w (%w)", err, e)
		}
	}
}

// mounted calls do with the file system on part. When it returns, the file system is unmounted and
// everything that do wrote is on the disk.
func (t *attempt) mounted(ctx context.Context, part Partition, fstype string, readOnly bool,
	do func(root tree) error,
) error {
	dir, unmount, err := t.agent.cfg.Files.Mount(ctx, part.Path, fstype, readOnly)
	if err != nil {
		return err
	}
	root, err := openTree(dir)
	if err == nil {
		err = do(root)
		root.close()
	}
	if e := unmount(); e != nil {
		err = errors.Join(err, fmt.Errorf("unmounting %s: %w", part.Path, e))
	}
	return err
}

// pick returns partition number n and the type of its file system.
func (t *attempt) pick(parts []Partition, n int) (Partition, string, error) {
	for _, p := range parts {
		if p.Number != n {
			continue
		}
		fstype, err := t.holds(p)
		return p, fstype, err
	}
	return Partition{}, "", fmt.Errorf("finding partition %d of %d: %w", n, len(parts), errNotYet)
}

// holds returns the type of the file system on p, or the one that FS_TYPE gives.
func (t *attempt) holds(p Partition) (string, error) {
	fstype := cmp.Or(t.env["FS_TYPE"], deviceFS(p))
	if fstype == "" {
		return "", fmt.Errorf("finding a file system on %s: %w", p.Path, errNotYet)
	}
	if !slices.Contains(action.FileSystems, fstype) {
		return fstype, fmt.Errorf("mounting %s: it holds %q, not one of %s", p.Path, fstype, strings.Join(action.FileSystems, ", "))
	}
	return fstype, nil
}

// deviceFS returns the type of the file system on p.
func deviceFS(p Partition) string {
	f, err := os.Open(p.Path)
	if err != nil {
		return ""
	}
	// Opened only for reading.
	defer func() { _ = f.Close() }()
	return probeFS(f, p.Size)
}

// findRoot returns the largest partition whose file system has an os-release file.
func (t *attempt) findRoot(ctx context.Context, disk string, parts []Partition) (Partition, string, error) {
	slices.SortFunc(parts, func(a, b Partition) int { return int(min(1, max(-1, b.Size-a.Size))) })
	var seen []string
	for _, p := range parts {
		fstype := deviceFS(p)
		seen = append(seen, p.Path+" "+fstype)
		if fstype != "ext4" && fstype != "xfs" && fstype != "btrfs" {
			continue
		}

		dir, unmount, err := t.agent.cfg.Files.Mount(ctx, p.Path, fstype, true)
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

	return Partition{}, "", fmt.Errorf("finding the root file system of %s (one with /etc/os-release) on [%s]: %w", disk,
		strings.Join(seen, ", "), errNotYet)
}
