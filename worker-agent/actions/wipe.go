package actions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

// wipeEnds is the size of each end of the disk that a metadata wipe zeroes, in bytes.
const wipeEnds = 10 * blockdev.MiB

// wipe erases the contents of the bound disk.
//
//	BLOCK_DEVICE or DEST_DISK  the bound disk
//	ALL_DISKS                  true: all disks of the machine instead, except for removable and protected ones
//	WIPE_MODE                  metadata (default): both ends of the disk and of each partition, all partition tables, and
//	                           all other signatures of file systems, LVM, md, ZFS and Ceph;
//	                           quick: the whole disk, with the device's own command if it has one
//
// All zeroed data is read back, but in the mode quick only a sample of it. Afterwards, the probes must not recognize anything on
// the disk. A sector that cannot be written or read is a failure. The partition tables are zeroed last, so that a wipe after an
// interruption still finds the partitions. Output: mode, bytes, verified (bytes that were read back), disks (JSON).
func wipe(ctx context.Context, t *Task) error {
	mode := cmp.Or(t.env[action.WipeModeVariable], action.WipeModes[0])
	disks, err := wipeTargets(ctx, t)
	if err != nil {
		return err
	}

	var done []wiped
	var errs []error
	for _, d := range disks {
		w, err := wipeDisk(ctx, t, d, mode)
		// If a disk fails, wipe the others anyway: the operator then has to handle only the failed disk.
		if err != nil {
			w.Error = err.Error()
			errs = append(errs, err)
		}
		done = append(done, w)
		if ctx.Err() != nil {
			break
		}
	}

	var total, verified int64
	for _, w := range done {
		total, verified = total+w.Bytes, verified+w.Verified
	}
	text, err := json.Marshal(done)
	if err != nil {
		return fmt.Errorf("encoding the list of wiped disks: %w", err)
	}

	t.output["mode"], t.output["disks"] = mode, string(text)
	t.output["bytes"], t.output["verified"] = fmt.Sprint(total), fmt.Sprint(verified)
	return errors.Join(errs...)
}

// wiped is the result of wiping one disk.
type wiped struct {
	Path     string `json:"path"`
	Serial   string `json:"serial,omitempty"`
	WWN      string `json:"wwn,omitempty"`
	Bytes    int64  `json:"bytes"`    // number of bytes that were zeroed
	Verified int64  `json:"verified"` // number of bytes that were read back
	Error    string `json:"error,omitempty"`
}

// wipeTargets returns the disks to wipe: the bound disk, or with ALL_DISKS every fixed disk that is not protected.
func wipeTargets(ctx context.Context, t *Task) ([]action.Disk, error) {
	all, err := action.Bool(t.env, action.AllDisksVariable, false)
	if err != nil {
		return nil, err
	}

	if !all {
		if _, _, err := t.target(ctx, action.DiskVariable(action.Wipe, t.env)); err != nil {
			return nil, err
		}
		return []action.Disk{*t.bound}, nil
	}

	disks, err := t.machine.Disks.Disks(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing disks: %w", err)
	}

	var found []action.Disk
	spared := 0
	for _, d := range disks {
		switch {
		case d.Removable:
			t.logf("%s (%s) is removable: not wiped", d.Path, disk.Describe(d))
		case t.protects(d):
			t.logf("%s (%s) is protected: not wiped", d.Path, disk.Describe(d))
			spared++
		default:
			found = append(found, d)
		}
	}
	if len(found) == 0 && spared == 0 {
		return nil, errors.New("listing disks: this machine has no fixed disk")
	}
	return found, nil
}

// wipeDisk wipes the disk that matches want.
func wipeDisk(ctx context.Context, t *Task, want action.Disk, mode string) (w wiped, err error) {
	w = wiped{Path: want.Path, Serial: want.Serial, WWN: want.WWN}
	disk, dev, err := t.openDisk(ctx, want)
	if err != nil {
		return w, err
	}

	w.Path = disk.Path
	defer closeDisk(dev, disk.Path, &err)
	parts := parttable.AllPartitions(dev, t.logf)
	spans := []extent{{0, dev.Size()}}
	if mode == "metadata" {
		spans = metadataSpans(dev, parts)
	}

	t.machine.Wrote()
	if err := zeroSpans(ctx, t, dev, spans, &w); err != nil {
		return w, err
	}
	if err := verifyWiped(ctx, t, dev, spans, &w, mode == "quick"); err != nil {
		return w, err
	}

	// The probes that recognize the contents of disks for all other purposes must not find anything either.
	for _, p := range parts {
		if what := probe.FileSystem(io.NewSectionReader(dev, p.Start, p.Size), p.Size); what != "" {
			return w, fmt.Errorf("reading %s back: the area of the former partition %d, at byte %d, still looks like %s", disk.Path, p.Number,
				p.Start, what)
		}
	}
	if names, blank := probe.Signatures(dev, dev.Size(), dev.SectorSize()); !blank {
		return w, fmt.Errorf("reading %s back: the disk still looks like %v", disk.Path, names)
	}
	t.reread(dev)

	t.logf("%s: %s wipe: %d bytes zeroed, %d read back", disk.Path, mode, w.Bytes, w.Verified)
	return w, nil
}

// zeroSpans zeroes spans in steps, so that an order to stop takes effect between two steps. It counts the zeroed bytes in w.Bytes.
func zeroSpans(ctx context.Context, t *Task, dev blockdev.Device, spans []extent, w *wiped) error {
	total := sumBytes(spans)
	for _, s := range spans {
		for at := s.at; at < s.at+s.n; {
			if err := context.Cause(ctx); err != nil {
				return err
			}

			n := min(64*blockdev.MiB, s.at+s.n-at)
			err := dev.Zero(at, n)
			if err == nil {
				err = dev.Sync() // sync each step, so that an error belongs to this step
			}

			if err != nil {
				if sector, e := blockdev.FindBadSector(dev, at, n, blockdev.WriteZero); e != nil {
					return fmt.Errorf("zeroing %s: sector %d cannot be written: %w", w.Path, sector, e)
				}
				t.logf("zeroing %s at byte %d: %v; wrote these bytes sector by sector instead", w.Path, at, err)
			}

			at, w.Bytes = at+n, w.Bytes+n
			t.progress(w.Bytes, total, "zeroing "+w.Path)
		}
	}

	return nil
}

// verifyWiped reads spans back, and counts the bytes that it has read in w.Verified. It returns an error if one of them is not
// zero. If sample is true, it reads only about a thousand pieces of each span, including the first and the last MiB.
func verifyWiped(ctx context.Context, t *Task, dev blockdev.Device, spans []extent, w *wiped, sample bool) error {
	total := sumBytes(spans)
	buf := blockdev.Aligned(blockdev.MiB)
	for _, s := range spans {
		step := int64(len(buf))
		if sample {
			step = max(step, s.n/1000&^(blockdev.MiB-1))
		}

		for at := s.at; at < s.at+s.n; at += step {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			n, err := blockdev.VerifyZero(dev, buf, at, s.at+s.n)
			if err != nil {
				return fmt.Errorf("reading %s back: %w", w.Path, err)
			}
			w.Verified += n
			t.progress(w.Verified, total, "reading back "+w.Path)
		}
		if last := s.at + s.n - int64(len(buf)); sample && last > 0 {
			if _, err := blockdev.VerifyZero(dev, buf, last, s.at+s.n); err != nil {
				return fmt.Errorf("reading %s back: %w", w.Path, err)
			}
		}
	}

	return nil
}

// extent is n bytes at offset at.
type extent struct{ at, n int64 }

func sumBytes(spans []extent) (total int64) {
	for _, s := range spans {
		total += s.n
	}
	return total
}

// metadataSpans returns the parts of a disk that identify its contents, in the order in which they are wiped. The partition tables
// come last: first the backup, then the primary table.
func metadataSpans(dev blockdev.Device, parts []parttable.Span) []extent {
	size := dev.Size()
	var spans []extent
	add := func(at, n, end int64) {
		at = max(at, 0)
		if n = min(n, end-at); n > 0 {
			spans = append(spans, extent{at, n})
		}
	}

	for _, p := range append(slices.Clone(parts), parttable.Span{Size: size}) {
		end := min(p.Start+p.Size, size)
		if p.Start > 0 {
			add(p.Start, blockdev.MiB, end)
			add(end-blockdev.MiB, blockdev.MiB, end)
		}

		// Btrfs has copies of its superblock at 64 MiB and 256 GiB.
		add(p.Start+64*blockdev.MiB, blockdev.MiB, end)
		add(p.Start+256<<30, blockdev.MiB, end)
	}

	slices.SortStableFunc(spans, func(a, b extent) int { return cmp.Compare(b.at, a.at) })
	spans = slices.Compact(spans)
	add(size-wipeEnds, wipeEnds, size)
	add(0, wipeEnds, size)
	return spans
}
