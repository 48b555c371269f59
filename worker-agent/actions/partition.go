package actions

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

// partition returns the bound disk and the number of one of its partitions, which the variable's path or PARTITION selects. number
// is 0 if neither selects a partition.
func (t *Task) partition(ctx context.Context, variable string) (disk action.Disk, number int, err error) {
	sel, err := action.ParsePartition(t.env[action.PartitionVariable])
	if err != nil {
		return disk, 0, err
	}
	if disk, number, err = t.target(ctx, variable); err != nil || sel.By == "" {
		return disk, number, err
	}
	disk, dev, err := t.openDisk(ctx, *t.bound)
	if err != nil {
		return disk, 0, err
	}
	defer func() { _ = dev.Close() }() // opened only for reading
	p, err := t.selectPartition(disk, dev, sel)
	return disk, p.Number, err
}

// selectPartition returns the partition of an open disk that sel selects.
func (t *Task) selectPartition(disk action.Disk, dev blockdev.Device, sel action.Partition) (p parttable.Span, err error) {
	table, err := parttable.Read(dev, dev.Size(), dev.SectorSize())
	if err == nil {
		p, err = probe.FindPartition(sel, dev, table.Parts)
	}
	if err == nil {
		err = checkSpan(p, table.Parts, dev)
	}
	if err != nil {
		return parttable.Span{}, fmt.Errorf("reading %s: %w", disk.Path, err)
	}
	t.logf("%s is partition %d of %s", sel, p.Number, disk.Path)
	return p, nil
}

// extendedKinds are the types of MBR partitions that contain the logical partitions.
var extendedKinds = []string{"0x05", "0x0f", "0x85"}

// checkSpan returns an error if writing to p would also change the partition table or another partition in parts.
func checkSpan(p parttable.Span, parts []parttable.Span, dev blockdev.Device) error {
	if p.Start < int64(dev.SectorSize()) || p.Start+p.Size > dev.Size() {
		return fmt.Errorf("checking partition %d: it begins in the partition table, or ends behind the disk", p.Number)
	}
	if slices.Contains(extendedKinds, p.Kind) {
		return fmt.Errorf("checking partition %d: it is an extended partition, which contains logical partitions: name another one", p.Number)
	}
	for _, q := range parts {
		if q.Number != p.Number && p.Start < q.Start+q.Size && q.Start < p.Start+p.Size {
			return fmt.Errorf("checking partition %d: it overlaps partition %d", p.Number, q.Number)
		}
	}
	return nil
}

// selection returns the partition of the bound disk that the variable's path or PARTITION selects; it is zero if neither selects one.
func (t *Task) selection(ctx context.Context, variable string) (action.Partition, error) {
	sel, err := action.ParsePartition(t.env[action.PartitionVariable])
	if err != nil {
		return sel, err
	}
	_, number, err := t.target(ctx, variable)
	if number != 0 { // action.CheckDevice has made sure that PARTITION is not set
		sel = action.Partition{By: action.ByNumber, Value: strconv.Itoa(number)}
	}
	return sel, err
}

// Kinds of targets, as texts for errors.
const (
	diskTarget      = "disk"
	partitionTarget = "partition"
)

// A target is the bound disk or one of its partitions, open for writing.
type target struct {
	blockdev.Device
	path string // for logs and errors
	kind string // diskTarget or partitionTarget
}

// openTarget opens the bound disk for writing or, if the variable's path or PARTITION selects one, a partition of this disk. It opens the
// whole disk in both cases, which fails while any of the partitions is mounted. Writes outside of the partition fail.
func (t *Task) openTarget(ctx context.Context, variable string) (target, error) {
	sel, err := t.selection(ctx, variable)
	if err != nil {
		return target{}, err
	}
	disk, dev, err := t.openDisk(ctx, *t.bound)
	if err != nil || sel.By == "" {
		return target{dev, disk.Path, diskTarget}, err
	}
	p, err := t.selectPartition(disk, dev, sel)
	if err != nil {
		_ = dev.Close() // nothing was written
		return target{}, err
	}
	return target{blockdev.NewSection(dev, p.Start, p.Size), action.PartitionPath(disk.Path, p.Number), partitionTarget}, nil
}
