package actions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

// runRootIO partitions and formats the disks of the machine's storage; see action.RootIOCommands.
//
// It finds all disks by their identity before the first write, and finds each disk again right before it writes to that disk.
// Before the first write, it also checks that the storage fits the sizes of the disks, and that all programs for the command exist.
// When it returns, no array and no logical volume is active. Output: command, disks, partitions, filesystems (numbers).
func runRootIO(ctx context.Context, t *Task) (err error) {
	command := t.command[0]
	t.output["command"] = command
	if command == "version" {
		t.logf("rootio is part of the agent and has the agent's version")
		return nil
	}

	storage, err := action.ParseStorage(t.env[action.StorageVariable])
	if err != nil {
		return fmt.Errorf("reading %s: %w", action.StorageVariable, err)
	}
	r, err := openStorage(ctx, t, storage, command)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.release(context.WithoutCancel(ctx))) }()

	t.output["disks"] = fmt.Sprint(len(r.disks))
	switch command {
	case "wipe":
		return r.wipe(ctx)
	case "partition":
		return r.partition(ctx)
	case "format":
		return r.format(ctx)
	}
	return r.mount(ctx)
}

// rootIO is one attempt at the action rootio, or a storage that Task.place has activated.
type rootIO struct {
	*Task
	storage action.Storage
	disks   []action.Disk              // for each of storage.Disks, the machine's disk
	placed  [][]action.PlacedPartition // for each of storage.Disks, the partitions that belong on it; nil until measure is called
}

// openStorage finds the disks of the storage, and checks that the storage fits these disks and that the programs for the rootio
// command exist. It also deactivates all arrays and volumes of the storage.
func openStorage(ctx context.Context, t *Task, storage action.Storage, command string) (*rootIO, error) {
	r := &rootIO{Task: t, storage: storage}
	if err := r.findDisks(ctx); err != nil {
		return nil, err
	}
	if err := r.findPrograms(command); err != nil {
		return nil, err
	}
	// Release first: the disks of an active array cannot be opened.
	if err := r.release(ctx); err != nil {
		return nil, err
	}
	return r, r.measure(ctx)
}

// findDisks finds all disks of the storage.
func (r *rootIO) findDisks(ctx context.Context) error {
	there, err := r.machine.Disks.Disks(ctx)
	if err != nil {
		return fmt.Errorf("listing disks: %w", err)
	}

	var errs []error
	for _, d := range r.storage.Disks {
		found, err := r.findDisk(ctx, d, there)
		if err == nil && slices.ContainsFunc(r.disks, func(o action.Disk) bool { return o.Path == found.Path }) {
			err = fmt.Errorf("finding %s of the storage: two disks of the storage are %s", d.Device, found.Path)
		}
		r.disks, errs = append(r.disks, found), append(errs, err)
	}
	return errors.Join(errs...)
}

// measure checks that the storage fits the sizes of the disks, and sets r.placed.
func (r *rootIO) measure(ctx context.Context) error {
	sizes := make([]action.DiskSize, len(r.disks))
	for i, d := range r.disks {
		disk, dev, err := r.openDisk(ctx, d)
		if err != nil {
			return err
		}
		sizes[i] = action.DiskSize{Size: disk.Size, Sector: int64(dev.SectorSize())}
		placed, _ := r.storage.Disks[i].Layout(sizes[i].Size, sizes[i].Sector)
		r.placed = append(r.placed, placed)
		_ = dev.Close() // opened only for reading
	}

	var errs []error
	for _, p := range r.storage.ProblemsOn(sizes) {
		errs = append(errs, fmt.Errorf("checking %s against this machine's disks: %s", action.StorageVariable, p))
	}
	return errors.Join(errs...)
}

// findDisk returns the disk of the machine that matches d.
func (r *rootIO) findDisk(ctx context.Context, d action.StorageDisk, there []action.Disk) (action.Disk, error) {
	run := d.Device == r.alias
	if run {
		found, err := r.lookUp(ctx, *r.bound)
		if err == nil && (d.Serial != "" && d.Serial != found.Serial || d.WWN != "" && !strings.EqualFold(d.WWN, found.WWN)) {
			err = fmt.Errorf("finding %s of the storage: serial or wwn differ from the disk bound to this run (%s)", d.Device, disk.Describe(found))
		}
		return found, err
	}
	if d.Serial == "" && d.WWN == "" {
		return action.Disk{}, fmt.Errorf("finding %s of the storage: it is not the disk bound to this run (%s), so the storage must "+
			"declare its serial or wwn", d.Device, disk.Describe(*r.bound))
	}

	for _, x := range there {
		if (d.Serial == "" || d.Serial == x.Serial) && (d.WWN == "" || strings.EqualFold(d.WWN, x.WWN)) {
			return r.lookUp(ctx, x) // lookUp fails if a second disk matches, or if the disk is protected
		}
	}
	_, err := disk.Identify(action.Disk{Path: d.Device, Serial: d.Serial, WWN: d.WWN}, there)
	return action.Disk{}, fmt.Errorf("%w (nothing was written)", err)
}

func (r *rootIO) wipe(ctx context.Context) error {
	for _, d := range r.disks {
		if _, err := wipeDisk(ctx, r.Task, d, action.WipeModes[0]); err != nil {
			return err
		}
	}
	return nil
}

// partition checks all disks. It then writes their partition tables, and creates the arrays and the volume groups.
func (r *rootIO) partition(ctx context.Context) error {
	var errs []error
	keep := make([]bool, len(r.disks))
	total := 0
	for i, d := range r.storage.Disks {
		var err error
		keep[i], err = r.examine(ctx, d, r.disks[i])
		errs = append(errs, err)
		total += len(d.Partitions)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}

	r.output["partitions"] = fmt.Sprint(total)
	for i, d := range r.storage.Disks {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if len(d.Partitions) == 0 || keep[i] {
			continue
		}
		if d.WipeTable {
			if _, err := wipeDisk(ctx, r.Task, r.disks[i], action.WipeModes[0]); err != nil {
				return err
			}
		}
		if err := r.writeTable(ctx, i); err != nil {
			return err
		}
	}
	return r.makeVolumes(ctx)
}

// examine returns an error if the disk must not be overwritten. keep is true if the disk already has the complete partition table
// of d, which then stays.
func (r *rootIO) examine(ctx context.Context, d action.StorageDisk, want action.Disk) (keep bool, err error) {
	found, dev, err := r.openDisk(ctx, want)
	if err != nil {
		return false, err
	}
	defer func() { _ = dev.Close() }() // opened only for reading

	if d.WipeTable || len(d.Partitions) == 0 {
		return false, nil
	}

	same, whole := sameTable(dev, d)
	if same {
		r.logf("%s has these partitions already", found.Path)
		return whole, nil
	}
	if names, blank := probe.Signatures(dev, dev.Size(), dev.SectorSize()); !blank {
		return false, fmt.Errorf("partitioning %s (%s): the disk is not empty (%s): set wipe_table: true for it in the storage, "+
			"or wipe it first", found.Path, disk.Describe(found), strings.Join(names, ", "))
	}
	return false, nil
}

// sameTable reports whether one of the two GPTs of dev has the partitions of d, and whether both GPTs and the protective MBR
// are complete.
func sameTable(dev blockdev.Device, d action.StorageDisk) (same, whole bool) {
	parts, _ := d.Layout(dev.Size(), int64(dev.SectorSize()))
	for _, lba := range []int64{1, dev.Size()/int64(dev.SectorSize()) - 1} {
		g, err := parttable.ReadGPTAt(dev, dev.Size(), dev.SectorSize(), lba)
		if err != nil {
			continue
		}
		spans := g.Spans()
		same = len(spans) == len(parts)
		for _, p := range parts {
			same = same && slices.ContainsFunc(spans, func(s parttable.Span) bool {
				return s.Number == p.Number && s.Start == p.Start && s.Size == p.Size && s.Name == p.Label && strings.EqualFold(s.Kind, p.Type)
			})
		}
		if same {
			mbr := blockdev.ReadAt(dev, 0, 512)
			return true, lba == 1 && parttable.CheckTables(dev, g) == nil && len(mbr) == 512 && mbr[510] == 0x55 && mbr[446+4] == 0xee
		}
	}
	return false, false
}

// writeTable writes the partition table of disk i. It first zeroes both ends of each partition, so that old data there is not taken
// for a file system.
func (r *rootIO) writeTable(ctx context.Context, i int) (err error) {
	disk, dev, err := r.openDisk(ctx, r.disks[i])
	if err != nil {
		return err
	}
	defer closeDisk(dev, disk.Path, &err)

	r.machine.Wrote()
	g := parttable.NewGPT(dev.Size(), dev.SectorSize())
	parts := r.placed[i]
	for k, p := range parts {
		r.progress(int64(k), int64(len(parts)), fmt.Sprintf("clearing partition %d of %s", p.Number, disk.Path))
		for _, at := range []int64{p.Start, p.Start + max(0, p.Size-blockdev.MiB)} {
			if err := dev.Zero(at, min(blockdev.MiB, p.Size)); err != nil {
				return fmt.Errorf("clearing partition %d of %s: %w", p.Number, disk.Path, err)
			}
		}
		kind, err := parttable.ParseGUID(p.Type)
		if err != nil {
			return err
		}
		g.Entry(p.Number-1).Set(kind, uint64(p.Start/g.Sector), uint64((p.Start+p.Size)/g.Sector-1), p.Label)
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", disk.Path, err)
	}

	if err := g.Write(dev); err != nil {
		return fmt.Errorf("partitioning %s: %w", disk.Path, err)
	}
	if err := blockdev.WriteVerified(dev, parttable.ProtectiveMBR(dev), 0); err != nil {
		return fmt.Errorf("writing the protective MBR of %s: %w", disk.Path, err)
	}
	r.reread(dev)
	r.logf("%s: wrote %d partitions, and read them back", disk.Path, len(parts))
	return nil
}
