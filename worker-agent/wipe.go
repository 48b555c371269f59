package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ingotmetal/ingot/action"
)

// wipeEnds is how much of each end of the disk a metadata wipe zeroes, in bytes.
const wipeEnds = 10 * mib

// wipe erases the contents of the bound disk.
//
//	BLOCK_DEVICE or DEST_DISK  the bound disk
//	ALL_DISKS                  true: all disks of the machine instead, except for removable and protected ones
//	WIPE_MODE                  metadata (default): both ends of the disk and of each partition, all partition tables, and
//	                           all other signatures of file systems, LVM, md, ZFS and Ceph;
//	                           quick: the whole disk, with the device's own command if it has one
//
// The zeroed data is read back: all of it, or a sample for quick. Nothing on the disk may be
// recognized afterwards. A sector that cannot be written or read is a failure. The partition tables
// are erased last: after an interruption, the next wipe still finds the partitions. Output: mode,
// bytes, verified (bytes that were read back), disks (JSON).
func (t *attempt) wipe(ctx context.Context) error {
	mode := cmp.Or(t.env[action.WipeModeVariable], action.WipeModes[0])
	disks, err := t.wipeTargets(ctx)
	if err != nil {
		return err
	}

	var done []wiped
	var errs []error
	for _, d := range disks {
		w, err := t.wipeDisk(ctx, d, mode)
		// Wipe the other disks even if one fails: the operator needs to handle only that one.
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
		return fmt.Errorf("encoding what was wiped: %w", err)
	}

	t.output["mode"], t.output["disks"] = mode, string(text)
	t.output["bytes"], t.output["verified"] = fmt.Sprint(total), fmt.Sprint(verified)
	return errors.Join(errs...)
}

// wiped is the result for one disk.
type wiped struct {
	Path     string `json:"path"`
	Serial   string `json:"serial,omitempty"`
	WWN      string `json:"wwn,omitempty"`
	Bytes    int64  `json:"bytes"`    // bytes zeroed
	Verified int64  `json:"verified"` // bytes read back
	Error    string `json:"error,omitempty"`
}

// wipeTargets returns the disks to wipe: the bound one, or all.
func (t *attempt) wipeTargets(ctx context.Context) ([]action.Disk, error) {
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

	disks, err := t.agent.cfg.Disks.Disks(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing disks: %w", err)
	}

	var found []action.Disk
	spared := 0
	for _, d := range disks {
		switch {
		case d.Removable:
			t.logf("%s (%s) is removable: it is left alone", d.Path, describe(d))
		case t.protects(d):
			t.logf("%s (%s) is protected: it is left alone", d.Path, describe(d))
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
func (t *attempt) wipeDisk(ctx context.Context, want action.Disk, mode string) (w wiped, err error) {
	w = wiped{Path: want.Path, Serial: want.Serial, WWN: want.WWN}
	disk, dev, err := t.openDisk(ctx, want)
	if err != nil {
		return w, err
	}

	w.Path = disk.Path
	defer closeDisk(dev, disk.Path, &err)
	parts := t.allPartitions(dev)
	spans := []extent{{0, dev.Size()}}
	if mode == "metadata" {
		spans = metadataSpans(dev, parts)
	}

	t.agent.markWrote()
	if err := t.zero(ctx, dev, spans, &w); err != nil {
		return w, err
	}
	if err := t.verifyWiped(ctx, dev, spans, &w, mode == "quick"); err != nil {
		return w, err
	}

	// Check with the same probes that recognize a disk's contents.
	for _, p := range parts {
		if what := probeFS(io.NewSectionReader(dev, p.start, p.size), p.size); what != "" {
			return w, fmt.Errorf("reading %s back: what was partition %d at byte %d still looks like %s", disk.Path, p.number,
				p.start, what)
		}
	}
	if names, blank := Signatures(dev, dev.Size(), dev.SectorSize()); !blank {
		return w, fmt.Errorf("reading %s back: it still looks like %v", disk.Path, names)
	}
	if err := dev.Reread(); err != nil {
		t.logf("warning: the kernel does not read the new partition table: %v", err)
	}

	t.logf("%s: %s wipe: %d bytes zeroed, %d read back", disk.Path, mode, w.Bytes, w.Verified)
	return w, nil
}

// zero zeroes spans of w's disk in steps, so that an order to stop takes effect between them.
func (t *attempt) zero(ctx context.Context, dev Device, spans []extent, w *wiped) error {
	total := sumBytes(spans)
	for _, s := range spans {
		for at := s.at; at < s.at+s.n; {
			if err := context.Cause(ctx); err != nil {
				return err
			}

			n := min(64*mib, s.at+s.n-at)
			err := dev.Zero(at, n)
			if err == nil {
				err = dev.Sync() // piece by piece, so that an error is this one's
			}

			if err != nil {
				if sector, e := findBadSector(dev, at, n, writeZero); e != nil {
					return fmt.Errorf("zeroing %s: sector %d cannot be written: %w", w.Path, sector, e)
				}
				t.logf("zeroing %s at %d: %v: written sector by sector instead", w.Path, at, err)
			}

			at, w.Bytes = at+n, w.Bytes+n
			t.progress(w.Bytes, total, "zeroing "+w.Path)
		}
	}

	return nil
}

// verifyWiped reads spans of w's disk back: all of it or, with sample, about a thousand pieces,
// including the first and the last MiB.
func (t *attempt) verifyWiped(ctx context.Context, dev Device, spans []extent, w *wiped, sample bool) error {
	total := sumBytes(spans)
	buf := aligned(mib)
	for _, s := range spans {
		step := int64(len(buf))
		if sample {
			step = max(step, s.n/1000&^(mib-1))
		}

		for at := s.at; at < s.at+s.n; at += step {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			n, err := verifyZero(dev, buf, at, s.at+s.n)
			if err != nil {
				return fmt.Errorf("reading %s back: %w", w.Path, err)
			}
			w.Verified += n
			t.progress(w.Verified, total, "reading back "+w.Path)
		}
		if last := s.at + s.n - int64(len(buf)); sample && last > 0 {
			if _, err := verifyZero(dev, buf, last, s.at+s.n); err != nil {
				return fmt.Errorf("reading %s back: %w", w.Path, err)
			}
		}
	}

	return nil
}

// verifyZero reads up to len(buf) bytes at off, up to end.
func verifyZero(dev Device, buf []byte, off, end int64) (int64, error) {
	p := buf[:min(int64(len(buf)), end-off)]
	if _, err := dev.ReadAt(p, off); err != nil {
		sector, e := findBadSector(dev, off, int64(len(p)), readSector)
		if e == nil {
			e = err
		}
		return 0, fmt.Errorf("sector %d cannot be read: %w", sector, e)
	}
	if !allZero(p) {
		return 0, fmt.Errorf("not all bytes between %d and %d are zero: the disk did not keep what was written", off,
			off+int64(len(p)))
	}
	return int64(len(p)), nil
}

// findBadSector calls do for each MiB of the n bytes at off and, if that fails, for each of its sectors.
// It returns the first sector that fails with its error, or nil as the error.
func findBadSector(dev Device, off, n int64, do func(dev Device, p []byte, off int64) error) (sector int64, err error) {
	size := int64(dev.SectorSize())
	buf := aligned(mib)
	for at := off; at < off+n; {
		k := min(mib, off+n-at)
		if do(dev, buf[:k], at) != nil {
			for s := at; s < at+k; s += size {
				if err := do(dev, buf[:min(size, at+k-s)], s); err != nil {
					return s / size, err
				}
			}
		}

		at += k
	}

	return off / size, nil
}

// writeZero writes zeros and syncs them: a write that is too small for direct I/O goes to the page
// cache first, where a bad sector is not noticed.
func writeZero(dev Device, p []byte, off int64) error {
	clear(p)
	if _, err := dev.WriteAt(p, off); err != nil {
		return err
	}
	return dev.Sync()
}

func readSector(dev Device, p []byte, off int64) error {
	_, err := dev.ReadAt(p, off)
	return err
}

// extent is n bytes at offset at.
type extent struct{ at, n int64 }

func sumBytes(spans []extent) (total int64) {
	for _, s := range spans {
		total += s.n
	}
	return total
}

// allPartitions lists the partitions in all of the disk's tables: the GPT and its backup, wherever
// they are, the MBR, and the logical partitions in it. Errors in one table are logged: the other
// tables list the same partitions, and the ends of the disk are wiped in any case.
func (t *attempt) allPartitions(dev Device) []span {
	size, sector := dev.Size(), dev.SectorSize()
	var parts []span
	add := func(more []span) {
		for _, p := range more {
			if p.size = min(p.size, size-p.start); p.start <= 0 || p.size <= 0 {
				continue
			}
			if !slices.ContainsFunc(parts, func(q span) bool { return q.start == p.start && q.size == p.size }) {
				parts = append(parts, p)
				t.logf("partition %d %q at byte %d: %d bytes", p.number, p.name, p.start, p.size)
			}
		}
	}

	headers := []int64{1, size/int64(sector) - 1}
	if b := readAt(dev, int64(sector), sector); len(b) >= 92 && string(b[:8]) == "EFI PART" {
		// The backup table of an image that was smaller than this disk is in the middle of the
		// disk.
		headers = append(headers, int64(min(g64(b, gptAlternate), uint64(size/int64(sector)-1))))
	}

	for _, lba := range slices.Compact(headers) {
		g, err := readGPTAt(dev, size, sector, lba)
		switch {
		case err == nil:
			add(g.spans())
			// The header and the entries of a copy are zeroed like a partition.
			if first := int64(g64(g.header, gptEntriesLBA)); lba != 1 {
				add([]span{{
					start: min(first, lba) * g.sector,
					size:  (max(first+int64(g.entrySectors()), lba+1) - min(first, lba)) * g.sector, name: "backup of the table",
				}})
			}
		case !errors.Is(err, errNoTable):
			t.logf("the partition table at sector %d cannot be read: %v", lba, err)
		}
	}

	add(mbrPartitions(dev, size, int64(sector)))
	return parts
}

// mbrPartitions lists the entries of the MBR, including a hybrid one, and the logical partitions.
func mbrPartitions(r io.ReaderAt, size, sector int64) []span {
	b := readAt(r, 0, 512)
	if len(b) < 512 || b[510] != 0x55 || b[511] != 0xaa {
		return nil
	}

	var parts []span
	for i := range 4 {
		e := b[446+16*i:][:16]
		start, n := int64(g32(e, 8))*sector, int64(g32(e, 12))*sector
		if e[0]&0x7f != 0 || e[4] == 0 || e[4] == 0xee || n == 0 || start == 0 || start >= size {
			continue
		}
		parts = append(parts, span{number: i + 1, start: start, size: n})
		if e[4] == 0x05 || e[4] == 0x0f || e[4] == 0x85 {
			parts = append(parts, logicalPartitions(r, size, sector, start)...)
		}
	}

	return parts
}

// logicalPartitions follows the chain of tables in an extended partition. It also lists each of
// these tables.
func logicalPartitions(r io.ReaderAt, size, sector, base int64) []span {
	var parts []span
	at := base
	for n := 5; n < 64 && at > 0 && at < size; n++ {
		b := readAt(r, at, 512)
		if len(b) < 512 || b[510] != 0x55 || b[511] != 0xaa {
			break
		}
		parts = append(parts, span{start: at, size: sector, name: "table of an extended partition"})
		e, link := b[446:462], b[462:478]
		if length := int64(g32(e, 12)) * sector; e[4] != 0 && length > 0 {
			parts = append(parts, span{number: n, start: at + int64(g32(e, 8))*sector, size: length})
		}
		next := base + int64(g32(link, 8))*sector
		if link[4] == 0 || next <= at { // a valid chain leads forwards
			break
		}
		at = next
	}

	return parts
}

// metadataSpans lists the places on a disk with parts that identify its contents, in the order of
// wiping: the tables last, and among these the backup first.
func metadataSpans(dev Device, parts []span) []extent {
	size := dev.Size()
	var spans []extent
	add := func(at, n, end int64) {
		at = max(at, 0)
		if n = min(n, end-at); n > 0 {
			spans = append(spans, extent{at, n})
		}
	}

	for _, p := range append(slices.Clone(parts), span{size: size}) {
		end := min(p.start+p.size, size)
		if p.start > 0 {
			add(p.start, mib, end)
			add(end-mib, mib, end)
		}

		// Btrfs has copies of its superblock at 64 MiB and 256 GiB.
		add(p.start+64*mib, mib, end)
		add(p.start+256<<30, mib, end)
	}

	slices.SortStableFunc(spans, func(a, b extent) int { return cmp.Compare(b.at, a.at) })
	spans = slices.Compact(spans)
	add(size-wipeEnds, wipeEnds, size)
	add(0, wipeEnds, size)
	return spans
}
