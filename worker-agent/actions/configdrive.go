package actions

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/fat"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// configDrive writes a NoCloud seed to the bound disk: a FAT16 partition with the label CIDATA at the end of the disk. If an earlier run
// has written a seed, the new seed replaces it.
//
//	DEST_DISK                                             the bound disk; it has a GPT
//	META_DATA, USER_DATA, VENDOR_DATA, NETWORK_CONFIG     contents of the files of that name
//
// Without META_DATA, the instance id contains the names of the machine and the run. Without VENDOR_DATA or NETWORK_CONFIG, the seed does
// not contain the file of that name. Output: partition (number), bytes.
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

	// Write the contents before the partition table, so that a partition in the table always has complete contents.
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

	// These two files are always written, because NoCloud ignores a seed without one of them.
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
