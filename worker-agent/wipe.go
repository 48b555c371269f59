package agent

import (
	"context"
	"errors"
	"fmt"
)

// wipeEnds is how much of each end of the disk a metadata wipe zeroes.
const wipeEnds = 10 * mib

// wipe makes the bound disk forget what is on it.
//
//	BLOCK_DEVICE or DEST_DISK  the bound disk
//	WIPE_MODE                  metadata (default): both ends of the disk and of each partition, and what else file
//	                           systems, LVM, md and ZFS are recognised by;
//	                           quick: the whole disk, by the device's own means where it has some
//
// What was zeroed is read back: all of it, for quick a sample. Output: mode,
// bytes, verified (bytes that were read back).
func (t *attempt) wipe(ctx context.Context) (err error) {
	variable := "DEST_DISK"
	if t.env["BLOCK_DEVICE"] != "" {
		variable = "BLOCK_DEVICE"
	}
	mode := t.env["WIPE_MODE"]
	switch mode {
	case "":
		mode = "metadata"
	case "metadata", "quick":
	default:
		return fmt.Errorf("reading WIPE_MODE=%q: want metadata or quick", mode)
	}
	disk, dev, err := t.open(ctx, variable)
	if err != nil {
		return err
	}
	defer func() {
		if e := dev.Close(); e != nil && err == nil {
			err = fmt.Errorf("closing %s: %w", disk.Path, e)
		}
	}()
	t.agent.markWrote()
	spans := []extent{{0, dev.Size()}}
	if mode == "metadata" {
		spans = t.metadataSpans(dev)
	}
	var total, done int64
	for _, s := range spans {
		total += s.n
	}
	for _, s := range spans {
		// In steps, so that an order to stop is heard.
		for at := s.at; at < s.at+s.n; {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			n := min(64*mib, s.at+s.n-at)
			if err := dev.Zero(at, n); err != nil {
				return fmt.Errorf("zeroing %s at %d: %w", disk.Path, at, err)
			}
			at, done = at+n, done+n
			t.progress(done, total, "zeroing")
		}
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", disk.Path, err)
	}
	var verified int64
	buf := aligned(mib)
	for _, s := range spans {
		step := int64(len(buf))
		if mode == "quick" {
			// About a thousand samples, the first and the last MiB among them.
			step = max(step, s.n/1000&^(mib-1))
		}
		for at := s.at; at < s.at+s.n; at += step {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			n, err := verifyZero(dev, buf, at, s.at+s.n)
			if err != nil {
				return fmt.Errorf("reading %s back: %w", disk.Path, err)
			}
			verified += n
			t.progress(verified, total, "reading back")
		}
		if last := s.at + s.n - int64(len(buf)); mode == "quick" && last > 0 {
			if _, err := verifyZero(dev, buf, last, s.at+s.n); err != nil {
				return fmt.Errorf("reading %s back: %w", disk.Path, err)
			}
		}
	}
	if err := dev.Reread(); err != nil {
		t.logf("warning: the kernel does not read the partition table again: %v", err)
	}
	t.output["mode"], t.output["bytes"], t.output["verified"] = mode, fmt.Sprint(total), fmt.Sprint(verified)
	t.logf("%s wipe: %d bytes zeroed, %d read back", mode, total, verified)
	return nil
}

// verifyZero reads up to len(buf) bytes at off, not beyond end.
func verifyZero(dev Device, buf []byte, off, end int64) (int64, error) {
	p := buf[:min(int64(len(buf)), end-off)]
	if _, err := dev.ReadAt(p, off); err != nil {
		return 0, err
	}
	if !allZero(p) {
		return 0, fmt.Errorf("between byte %d and %d not all is zero: the disk did not keep what was written", off, off+int64(len(p)))
	}
	return int64(len(p)), nil
}

// extent is n bytes at an offset.
type extent struct{ at, n int64 }

// metadataSpans lists where a disk keeps what tells others what is on it.
func (t *attempt) metadataSpans(dev Device) []extent {
	size := dev.Size()
	var spans []extent
	add := func(at, n, end int64) {
		at = max(at, 0)
		if n = min(n, end-at); n > 0 {
			spans = append(spans, extent{at, n})
		}
	}
	add(0, wipeEnds, size)
	table, err := readTable(dev, size, dev.SectorSize())
	if err != nil && !errors.Is(err, errNoTable) {
		t.logf("the partition table cannot be read (%v): what its partitions hold in their middle stays", err)
	}
	whole := []span{{start: 0, size: size}}
	if table != nil {
		whole = append(whole, table.parts...)
	}
	for _, p := range whole {
		end := min(p.start+p.size, size)
		if p.number > 0 {
			t.logf("partition %d %q: %d bytes", p.number, p.name, p.size)
			add(p.start, mib, end)
			add(end-mib, mib, end)
		}
		// Btrfs keeps copies of its superblock at 64 MiB and 256 GiB.
		add(p.start+64*mib, mib, end)
		add(p.start+256<<30, mib, end)
	}
	add(size-wipeEnds, wipeEnds, size)
	return spans
}
