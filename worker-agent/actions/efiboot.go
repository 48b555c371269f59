package actions

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/efi"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// efiBoot lists and changes the boot entries of the machine's UEFI firmware.
//
//	CREATE_LABEL  create an entry of this description, unless there is one; an entry with another loader gets the new one
//	LOADER        path of the entry's loader on its partition
//	DEST_DISK, PARTITION  the loader's partition; default: the EFI system partition of the bound disk, which has a GPT
//	DELETE_LABEL  delete the entries of these descriptions, one on each line
//	DELETE_STALE  true: delete the entries whose loader is on a partition that no disk of this machine has
//	BOOT_ORDER    these entries first, then the others as they were; numbers (0003) or descriptions, one on each line or
//	              separated by commas
//	BOOT_NEXT     start this entry once, next time
//	REQUIRED      true: fail if the machine was not booted by UEFI; otherwise, the action does nothing on such a machine
//
// If none of these variables is set, it only lists the entries. It reads all changes back. Running the action again changes nothing.
// Output: firmware, entries (JSON), deleted, order, next.
func efiBoot(ctx context.Context, t *Task) error {
	required, err := action.Bool(t.env, "REQUIRED", false)
	stale, e := action.Bool(t.env, "DELETE_STALE", false)
	if err := errors.Join(err, e); err != nil {
		return err
	}

	var names []string
	err = fs.ErrNotExist
	vars := t.machine.EFI
	if vars != nil {
		names, err = vars.Names()
	}

	if errors.Is(err, fs.ErrNotExist) {
		t.output["firmware"] = "bios"
		if required {
			return errors.New("listing the boot entries: this machine was not booted by UEFI, and REQUIRED is set")
		}
		t.logf("this machine was not booted by UEFI, so it has no boot entries: nothing to do")
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing the boot entries: %w", err)
	}

	t.output["firmware"] = "uefi"
	b, err := efi.ReadBootManager(vars, names, t.logf)
	if err != nil {
		return err
	}

	steps := []func() error{
		func() error { return b.DeleteLabels(lines(t.env["DELETE_LABEL"], "\n")) },
		func() error {
			if !stale {
				return nil
			}
			there, err := partitionsOfAll(ctx, t)
			if err != nil {
				return fmt.Errorf("finding stale boot entries (nothing was deleted): %w", err)
			}
			return b.DeleteStale(there)
		},
		func() error { return createEntry(ctx, t, b) },
		func() error { return b.SetOrder(lines(t.env["BOOT_ORDER"], ",\n")) },
		func() error { return b.SetNext(strings.TrimSpace(t.env["BOOT_NEXT"])) },
	}

	for i, step := range steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
		t.progress(int64(i+1), int64(len(steps)), "boot entries")
	}
	return b.Report(t.output)
}

// createEntry creates the boot entry that CREATE_LABEL names; it does nothing if CREATE_LABEL is not set.
func createEntry(ctx context.Context, t *Task, b *efi.BootManager) error {
	label := t.env[action.CreateLabelVariable]
	if label == "" {
		return nil
	}
	sel, err := t.selection(ctx, "DEST_DISK")
	if err == nil && sel.By == "" {
		sel, err = action.ParsePartition(action.EFISystemPartition)
	}
	if err != nil {
		return err
	}
	disk, dev, err := t.openDisk(ctx, *t.bound)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // opened only for reading
	p, err := t.selectPartition(disk, dev, sel)
	if err != nil {
		return err
	}
	return b.Create(label, efi.Loader{Partition: p, Sector: int64(dev.SectorSize()), File: t.env[action.LoaderVariable]})
}

// lines splits text at every character that seps contains, and returns the parts that are not blank.
func lines(text, seps string) []string {
	var out []string
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(seps, r) }) {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// partitionsOfAll returns the PARTUUIDs of all partitions on all disks of the machine. If a disk cannot be read, it returns an error:
// otherwise, the boot entries of partitions on this disk would count as stale.
func partitionsOfAll(ctx context.Context, t *Task) (map[string]bool, error) {
	disks, err := t.machine.Disks.Disks(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing disks: %w", err)
	}

	there := map[string]bool{}
	for _, d := range disks {
		dev, err := t.machine.Disks.Open(d.Path)
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", d.Path, err)
		}

		_, unreadable := dev.ReadAt(make([]byte, 2*dev.SectorSize()), 0)
		table, err := parttable.Read(dev, dev.Size(), dev.SectorSize())
		_ = dev.Close() // opened only for reading
		if unreadable != nil {
			return nil, fmt.Errorf("reading %s: %w", d.Path, unreadable)
		}
		if errors.Is(err, parttable.ErrNoTable) && !parttable.IsDamaged(err) {
			continue
		}
		if err != nil || table.Kind == "damaged gpt" {
			return nil, errors.Join(fmt.Errorf("reading the partition table of %s: the table is damaged", d.Path), err)
		}

		for _, p := range table.Parts {
			there[p.UUID] = true
		}
	}

	return there, nil
}
