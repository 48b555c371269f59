package actions

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/fat"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// configDrive writes a NoCloud seed to the bound disk: a FAT16 partition at the end of the disk,
// labeled CIDATA. It replaces the seed of an earlier run.
//
//	DEST_DISK                                             the bound disk; it has a GPT
//	META_DATA, USER_DATA, VENDOR_DATA, NETWORK_CONFIG     contents of the files of that name
//
// Without META_DATA, the instance id is derived from the run. Without VENDOR_DATA or
// NETWORK_CONFIG, the seed does not contain that file. Output: partition (number), bytes.
func configDrive(ctx context.Context, t *Task) (err error) {
	files := seedFiles(t)
	disk, dev, err := t.open(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	defer closeDisk(dev, disk.Path, &err)
	volume, err := fat.Make16(parttable.SeedBytes(dev.SectorSize()), dev.SectorSize(), parttable.SeedLabel, files)
	if err == nil {
		err = fat.Check(volume, dev.SectorSize(), files)
	}
	if err != nil {
		return fmt.Errorf("making the %s file system: %w", parttable.SeedLabel, err)
	}

	table, _, err := parttable.ReadAnyGPT(dev, dev.Size(), dev.SectorSize())
	if errors.Is(err, parttable.ErrNoTable) {
		return fmt.Errorf("reading %s: the disk has no GPT, so no partition can be added", disk.Path)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", disk.Path, err)
	}

	number, first, err := table.PlaceSeed(dev.Size())
	if err != nil {
		return fmt.Errorf("making room on %s: %w", disk.Path, err)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}

	t.machine.Wrote()

	// Write the contents before the table, so that a partition in the table is always complete.
	if err := blockdev.WriteVerified(dev, volume, int64(first)*table.Sector); err != nil {
		return fmt.Errorf("writing partition %d of %s: %w", number, disk.Path, err)
	}
	if err := table.Write(dev); err != nil {
		return fmt.Errorf("writing %s: %w", disk.Path, err)
	}
	t.reread(dev)

	t.output["partition"], t.output["bytes"] = fmt.Sprint(number), fmt.Sprint(len(volume))
	t.logf("partition %d of %s: wrote the %s seed with %d files, and read it back", number, disk.Path, parttable.SeedLabel, len(files))
	return nil
}

func seedFiles(t *Task) []fat.File {
	meta := t.env["META_DATA"]
	if meta == "" {
		meta = "instance-id: " + t.machine.Name + "-" + t.order.Run + "\n"
	}

	// NoCloud accepts a seed only if it has both meta-data and user-data.
	files := []fat.File{{Name: "meta-data", Contents: meta}, {Name: "user-data", Contents: t.env["USER_DATA"]}}
	for _, f := range []fat.File{
		{Name: "vendor-data", Contents: t.env["VENDOR_DATA"]}, {Name: "network-config", Contents: t.env["NETWORK_CONFIG"]},
	} {
		if f.Contents != "" {
			files = append(files, f)
		}
	}
	return files
}
