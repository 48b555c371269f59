package parttable

import (
	"errors"
	"io"
	"slices"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// AllPartitions returns the partitions in all tables of the disk: the GPT, the backups of the GPT at the end of the disk and where
// its header names one, the MBR, and the logical partitions of the MBR. It logs errors in a table and does not return them: the
// other tables list the same partitions, and a wipe zeroes the ends of the disk in any case.
func AllPartitions(dev blockdev.Device, log func(format string, args ...any)) []Span {
	size, sector := dev.Size(), dev.SectorSize()
	var parts []Span
	add := func(more []Span) {
		for _, p := range more {
			if p.Size = min(p.Size, size-p.Start); p.Start <= 0 || p.Size <= 0 {
				continue
			}
			if !slices.ContainsFunc(parts, func(q Span) bool { return q.Start == p.Start && q.Size == p.Size }) {
				parts = append(parts, p)
				log("partition %d %q at byte %d: %d bytes", p.Number, p.Name, p.Start, p.Size)
			}
		}
	}

	headers := []int64{1, size/int64(sector) - 1}
	if b := blockdev.ReadAt(dev, int64(sector), sector); len(b) >= 92 && string(b[:8]) == "EFI PART" {
		// An image that was smaller than this disk has its backup table in the middle of the disk.
		headers = append(headers, int64(min(g64(b, gptAlternate), uint64(size/int64(sector)-1))))
	}

	for _, lba := range slices.Compact(headers) {
		g, err := ReadGPTAt(dev, size, sector, lba)
		switch {
		case err == nil:
			add(g.Spans())
			// List the header and the entries of a backup as a partition, so that a wipe zeroes them.
			if first := int64(g64(g.header, gptEntriesLBA)); lba != 1 {
				add([]Span{{
					Start: min(first, lba) * g.Sector,
					Size:  (max(first+int64(g.entrySectors()), lba+1) - min(first, lba)) * g.Sector, Name: "backup of the partition table",
				}})
			}
		case !errors.Is(err, ErrNoTable):
			log("the partition table at sector %d cannot be read: %v", lba, err)
		}
	}

	add(mbrPartitions(dev, size, int64(sector)))
	return parts
}

// mbrPartitions returns the entries of an MBR, which may be hybrid, and the logical partitions.
func mbrPartitions(r io.ReaderAt, size, sector int64) []Span {
	b := blockdev.ReadAt(r, 0, 512)
	if len(b) < 512 || b[510] != 0x55 || b[511] != 0xaa {
		return nil
	}

	var parts []Span
	for i := range 4 {
		e := b[446+16*i:][:16]
		start, n := int64(g32(e, 8))*sector, int64(g32(e, 12))*sector
		if e[0]&0x7f != 0 || e[4] == 0 || e[4] == 0xee || n == 0 || start == 0 || start >= size {
			continue
		}
		parts = append(parts, Span{Number: i + 1, Start: start, Size: n})
		if e[4] == 0x05 || e[4] == 0x0f || e[4] == 0x85 {
			parts = append(parts, logicalPartitions(r, size, sector, start)...)
		}
	}

	return parts
}

// logicalPartitions follows the chain of tables in an extended partition. It returns the partitions in these tables, and also each
// of the tables.
func logicalPartitions(r io.ReaderAt, size, sector, base int64) []Span {
	var parts []Span
	at := base
	for n := 5; n < 64 && at > 0 && at < size; n++ {
		b := blockdev.ReadAt(r, at, 512)
		if len(b) < 512 || b[510] != 0x55 || b[511] != 0xaa {
			break
		}
		parts = append(parts, Span{Start: at, Size: sector, Name: "table of an extended partition"})
		e, link := b[446:462], b[462:478]
		if length := int64(g32(e, 12)) * sector; e[4] != 0 && length > 0 {
			parts = append(parts, Span{Number: n, Start: at + int64(g32(e, 8))*sector, Size: length})
		}
		next := base + int64(g32(link, 8))*sector
		if link[4] == 0 || next <= at { // in a valid chain, each table is behind the previous one
			break
		}
		at = next
	}

	return parts
}
