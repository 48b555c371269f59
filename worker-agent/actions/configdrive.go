package actions

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/fat"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// configDrive writes a NoCloud seed to the bound disk: a FAT16 partition with the label CIDATA at the end of the disk. If an earlier run
// has written a seed, the new seed replaces it. If the environment names a partition, the seed is in the file system of this partition,
// see seedRoot.
//
//	DEST_DISK                                             the bound disk, which has a GPT; or a partition of it
//	PARTITION, FS_TYPE                                    as inject, without a default
//	META_DATA, USER_DATA, VENDOR_DATA, NETWORK_CONFIG     contents of the files of that name
//
// Without META_DATA, the instance id contains the names of the machine and the run. Without VENDOR_DATA or NETWORK_CONFIG, the seed does
// not contain the file of that name. Output: partition (number), bytes.
func configDrive(ctx context.Context, t *Task) (err error) {
	files := seedFiles(t)
	sel, err := t.selection(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	if sel.By != "" {
		return seedRoot(ctx, t, files)
	}

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

// rootSeed is the folder in which cloud-init's NoCloud finds a seed that belongs to one root file system.
const rootSeed = "/var/lib/cloud/seed/nocloud/"

// rootSeedConfig makes cloud-init use only the seed in its root file system. Without it, cloud-init also reads a CIDATA partition, which
// belongs to another system on the disk, and may ask the metadata server, whose instance id changes with each run.
const rootSeedConfig = "datasource_list: [NoCloud, None]\ndatasource: {NoCloud: {fs_label: null}}\n"

// seedRoot writes a NoCloud seed into the file system of a partition, so that several systems on the disk have seeds of their own.
func seedRoot(ctx context.Context, t *Task, seed []fat.File) error {
	files := []filesys.File{{Path: "/etc/cloud/cloud.cfg.d/99-ingot-seed.cfg", Contents: rootSeedConfig, Mode: 0o644, DirMode: 0o755}}
	for _, f := range seed {
		files = append(files, filesys.File{Path: rootSeed + f.Name, Contents: f.Contents, Mode: 0o600, DirMode: 0o755})
	}
	return writeFiles(ctx, t, files)
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
