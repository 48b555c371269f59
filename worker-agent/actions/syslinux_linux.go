package actions

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// Constants of an MBR (UEFI specification 2.10, §5.2).
const (
	bootCodeSize = 440
	activeFlag   = 0x80
)

// syslinux installs SYSLINUX on a partition of the bound disk, marks that partition as the one that BIOS boots, and writes boot
// code that looks for this mark.
//
//	DEST_PARTITION, PARTITION, FS_TYPE  the partition
//
// Output: device, table = gpt or mbr.
func syslinux(ctx context.Context, t *Task) error {
	disk, number, err := t.partition(ctx, action.SyslinuxPartitionVariable)
	if err != nil {
		return err
	}
	part, fstype, err := t.locate(ctx, disk, number)
	if err != nil {
		return err
	}
	programs, ok := t.machine.Files.(filesys.Programs)
	if !ok {
		return errors.New("installing SYSLINUX: this agent cannot run programs")
	}
	if err := programs.Has("extlinux"); err != nil {
		return err
	}

	t.machine.Wrote()
	err = filesys.UseMounted(ctx, t.machine.Files, part, fstype, false, func(root filesys.Tree) error {
		dir, err := root.Path()
		if err != nil {
			return err
		}
		exit, err := programs.Run(ctx, "extlinux", []string{"--install", dir}, func(line string) { t.logf("extlinux: %s", line) })
		if exit != 0 {
			return &exitError{code: exit, text: fmt.Sprintf("extlinux: exit code %d; see the log", exit)}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("installing SYSLINUX on %s: %w", part.Path, err)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}

	table, err := bootFrom(ctx, t, part.Number, programs)
	if err != nil {
		return err
	}
	t.output["device"], t.output["table"] = part.Path, table
	return nil
}

// bootFrom marks the partition with the given number as the only bootable one, and writes boot code that looks for this mark. It
// returns the kind of the partition table.
func bootFrom(ctx context.Context, t *Task, number int, programs filesys.Programs) (kind string, err error) {
	disk, dev, err := t.openDisk(ctx, *t.bound)
	if err != nil {
		return "", err
	}
	defer closeDisk(dev, disk.Path, &err)

	table, err := parttable.Read(dev, dev.Size(), dev.SectorSize())
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", disk.Path, err)
	}
	code, err := programs.BootCode(table.Kind)
	if err != nil {
		return "", err
	}
	if len(code) > bootCodeSize {
		return "", fmt.Errorf("reading the boot code for a %s: it has %d bytes; must have at most %d", table.Kind, len(code), bootCodeSize)
	}

	if table.Kind == "mbr" && number > 4 {
		return "", fmt.Errorf("booting from partition %d: the partition is in an extended partition, but the boot code finds only the first four",
			number)
	}

	if table.Kind == "gpt" {
		g, _, err := parttable.ReadAnyGPT(dev, dev.Size(), dev.SectorSize())
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", disk.Path, err)
		}
		g.Resize(dev.Size()) // the table may come from an image of a smaller disk
		g.SetBootable(number)
		if err := g.Write(dev); err != nil {
			return "", fmt.Errorf("writing the partition table: %w", err)
		}
	}

	mbr := blockdev.Aligned(dev.SectorSize())
	if _, err := dev.ReadAt(mbr, 0); err != nil {
		return "", err
	}
	clear(mbr[:bootCodeSize])
	copy(mbr, code)
	if table.Kind == "mbr" {
		for i := range 4 {
			mbr[446+16*i] &^= activeFlag
		}
		mbr[446+16*(number-1)] |= activeFlag
	}
	if err := blockdev.WriteVerified(dev, mbr, 0); err != nil {
		return "", fmt.Errorf("writing the boot code: %w", err)
	}
	t.logf("%s now boots from partition %d", disk.Path, number)
	return table.Kind, nil
}
