package actions

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// growPart enlarges a partition of the bound disk as far as possible. It also enlarges the file system in this partition.
//
//	DEST_DISK    the bound disk, or its partition
//	PARTITION    which partition (see action.ParsePartition); default: the last one on the disk
//	RESERVE_MIB  how much to leave free at the end of the disk, for a configdrive; default 0
//	FILESYSTEM   false: leave the file system as it is
//
// On a disk with a GPT, the backup of the GPT is moved to the end of the disk. If another partition follows the partition that has to grow,
// the action fails; only the seed of configdrive may follow it, at the end of the disk. Running the action again changes nothing. Output:
// partition, from, to (bytes), filesystem = grown or left.
func growPart(ctx context.Context, t *Task) error {
	reserve, err := action.MiB(t.env, action.ReserveVariable)
	grow, e := action.Bool(t.env, "FILESYSTEM", true)
	if err := errors.Join(err, e); err != nil {
		return err
	}

	disk, number, err := t.partition(ctx, "DEST_DISK")
	if err != nil {
		return err
	}

	old, p, err := growTable(ctx, t, parttable.Growth{Number: number, Reserve: reserve})
	if err != nil {
		return fmt.Errorf("growing a partition of %s: %w", disk.Path, err)
	}

	t.output["partition"], t.output["from"], t.output["to"] = fmt.Sprint(p.Number), fmt.Sprint(old), fmt.Sprint(p.Size)
	if !grow {
		t.output["filesystem"] = "left"
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}

	t.progress(0, 0, "growing the file system")
	return growFilesystem(ctx, t, disk, p)
}

// growTable enlarges a partition in the partition table. It returns the enlarged partition, and the size that it had before, in bytes.
func growTable(ctx context.Context, t *Task, want parttable.Growth) (old int64, p parttable.Span, err error) {
	disk, dev, err := t.openDisk(ctx, *t.bound)
	if err != nil {
		return 0, p, err
	}
	defer closeDisk(dev, disk.Path, &err)

	g, torn, err := parttable.ReadAnyGPT(dev, dev.Size(), dev.SectorSize())
	var mbr []byte
	changed := false
	switch {
	case errors.Is(err, parttable.ErrNoTable):
		old, p, mbr, err = parttable.GrowMBR(dev, want)
		changed = mbr != nil
	case err == nil:
		if torn {
			t.logf("the partition table is damaged: using the intact copy")
		}
		old, p, changed, err = g.GrowPartition(dev, want)
		changed = changed || torn
	}
	if err != nil {
		return 0, p, err
	}

	if changed {
		if err := context.Cause(ctx); err != nil {
			return 0, p, err
		}
		t.machine.Wrote()
		if mbr == nil {
			err = g.Write(dev)
		} else if err = blockdev.WriteVerified(dev, mbr, 0); err != nil {
			err = fmt.Errorf("writing the partition table: %w", err)
		}
		if err != nil {
			return 0, p, err
		}
	}
	t.reread(dev)

	t.logf("partition %d has %d bytes now, and had %d before", p.Number, p.Size, old)
	return old, p, nil
}

// growFilesystem waits until the kernel knows the new size of the partition p. Then it enlarges the file system in p.
func growFilesystem(ctx context.Context, t *Task, disk action.Disk, p parttable.Span) error {
	left := func(format string, args ...any) error {
		t.output["filesystem"] = "left"
		t.logf("the file system was not grown, so the installed system must grow it (cloud-init's resizefs, systemd-growfs): %s",
			fmt.Sprintf(format, args...))
		return nil
	}
	grower, ok := t.machine.Files.(filesys.Grower)
	if !ok {
		return left("this agent cannot grow file systems")
	}

	var part filesys.Partition
	known, err := t.waitForPartitions(ctx, disk, func(parts []filesys.Partition) bool {
		i := slices.IndexFunc(parts, func(q filesys.Partition) bool { return q.Number == p.Number && q.Size == p.Size })
		if i >= 0 {
			part = parts[i]
		}
		return i >= 0
	})
	if err != nil {
		return err
	}
	if !known {
		return left("the kernel still has the partition's old size")
	}

	kind := filesys.TypeOf(part)
	if !slices.Contains(action.FileSystems, kind) || kind == "vfat" {
		return left("it holds %q", kind)
	}

	t.machine.Wrote()
	err = grower.Grow(ctx, part.Path, kind, p.Size)
	if errors.Is(err, errors.ErrUnsupported) {
		return left("%v", err)
	}
	if err != nil {
		return fmt.Errorf("growing the %s on %s: %w", kind, part.Path, err)
	}

	t.output["filesystem"] = "grown"
	t.logf("the %s on %s fills its partition", kind, part.Path)
	return nil
}
