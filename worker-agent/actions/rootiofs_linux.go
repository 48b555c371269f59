package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"golang.org/x/sys/unix"
)

// format creates all file systems, and replaces existing ones.
func (r *rootIO) format(ctx context.Context) error {
	for i := range r.storage.Disks {
		if err := r.partitioned(ctx, i); err != nil {
			return err
		}
	}
	if err := r.assemble(ctx); err != nil {
		return err
	}

	all := r.storage.Filesystems
	for i, f := range all {
		m := f.Mount
		r.progress(int64(i), int64(len(all)), fmt.Sprintf("formatting %s as %s", m.Device, m.Format))
		program, args, err := action.Mkfs(m.Format, m.Create.Options)
		if err != nil {
			return err
		}
		part, err := r.node(ctx, m.Device)
		if err != nil {
			return err
		}
		if err := r.exec(ctx, program, append(args, part.Path)...); err != nil {
			return fmt.Errorf("formatting %s as %s: %w", part.Path, m.Format, err)
		}
		if err := proveFormat(part, m.Format); err != nil {
			return err
		}
	}

	r.output["filesystems"] = fmt.Sprint(len(all))
	return nil
}

// partitioned returns nil if disk i has the partitions that the storage declares.
func (r *rootIO) partitioned(ctx context.Context, i int) error {
	disk, dev, err := r.openDisk(ctx, r.disks[i])
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // opened only for reading
	if same, _ := sameTable(dev, r.storage.Disks[i]); !same {
		return fmt.Errorf("reading %s: the disk's partitions differ from the storage: run rootio with command partition first",
			disk.Path)
	}
	return nil
}

// node returns the block device that has the given path in the storage. If it is a partition, node looks up the disk again and
// waits for the device node.
func (r *rootIO) node(ctx context.Context, device string) (filesys.Partition, error) {
	i, number := r.storage.Disk(device)
	if i < 0 {
		return r.volume(device)
	}
	disk, err := r.lookUp(ctx, r.disks[i])
	if err != nil {
		return filesys.Partition{}, err
	}

	size := int64(0) // 0 = unknown
	if r.placed != nil {
		k := slices.IndexFunc(r.placed[i], func(p action.PlacedPartition) bool { return p.Number == number })
		size = r.placed[i][k].Size
	}
	var part filesys.Partition
	known, err := r.waitForPartitions(ctx, disk, func(parts []filesys.Partition) bool {
		n := slices.IndexFunc(parts, func(q filesys.Partition) bool { return q.Number == number && (size == 0 || q.Size == size) })
		if n < 0 {
			return false
		}
		part = parts[n]
		_, err := os.Stat(part.Path)
		return err == nil
	})
	if err == nil && !known {
		err = fmt.Errorf("finding partition %d of %s: the kernel does not list this partition", number, disk.Path)
	}
	return part, err
}

// proveFormat verifies the type of the new file system, and syncs the device.
func proveFormat(part filesys.Partition, format string) error {
	want := format
	if strings.HasPrefix(format, "ext") {
		want = "ext4" // TypeOf returns ext4 for ext2, ext3 and ext4
	}
	if got := filesys.TypeOf(part); got != want {
		return fmt.Errorf("reading %s back: it contains file system %q instead of %s", part.Path, got, format)
	}

	f, err := os.Open(part.Path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsync(int(f.Fd())), f.Close())
}

// mount creates the mount points: it mounts each file system once, writable, and creates in it the folders on which other file
// systems are mounted. At the end, nothing is mounted: each action mounts the file systems that it needs.
func (r *rootIO) mount(ctx context.Context) error {
	var all []action.StorageMount
	for _, f := range r.storage.Filesystems {
		if f.Mount.Format != "swap" && f.Mount.Point != "" {
			all = append(all, f.Mount)
		}
	}
	slices.SortStableFunc(all, func(a, b action.StorageMount) int { return cmp.Compare(len(a.Point), len(b.Point)) })

	if err := r.assemble(ctx); err != nil {
		return err
	}
	for i, m := range all {
		r.progress(int64(i), int64(len(all)), "mounting "+m.Device)
		part, err := r.node(ctx, m.Device)
		if err != nil {
			return err
		}
		r.machine.Wrote()
		err = filesys.UseMounted(
			ctx,
			r.machine.Files,
			part,
			filesys.TypeOf(part),
			false,
			func(root filesys.Tree) error { return r.makePoints(root, all, m.Point) },
		)
		if err != nil {
			return fmt.Errorf("mounting %s for %s: %w", part.Path, m.Point, err)
		}
	}
	r.output["filesystems"] = fmt.Sprint(len(all))
	return nil
}

// makePoints creates mount points in root, the file system that is mounted at point. It creates one for each file system in the
// list all that belongs directly below point.
func (r *rootIO) makePoints(root filesys.Tree, all []action.StorageMount, point string) error {
	for _, m := range all {
		parent := ""
		for _, p := range all {
			if below(p.Point, m.Point) && len(p.Point) > len(parent) {
				parent = p.Point
			}
		}
		if parent != point {
			continue
		}
		folder := path.Join("/", strings.TrimPrefix(m.Point, point))
		if err := (filesys.File{Path: folder, Directory: true, Mode: 0o755, DirMode: 0o755}).Write(root); err != nil {
			return fmt.Errorf("making the folder %s: %w", folder, err)
		}
		r.logf("%s: made folder %s to mount %s", point, folder, m.Device)
	}
	return nil
}

// below reports whether path q is below folder p.
func below(p, q string) bool {
	return p != q && strings.HasPrefix(q, strings.TrimSuffix(p, "/")+"/")
}
