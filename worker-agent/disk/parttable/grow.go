package parttable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// Growth selects the partition to enlarge.
type Growth struct {
	Number  int   // 0 = the last partition
	Reserve int64 // bytes to leave free at the end of the disk
}

// lastOf returns the partition with the given number. If number is 0, it returns the last partition on the disk, without counting
// the seed.
func lastOf(parts []Span, number int) (Span, error) {
	var last Span
	for _, p := range parts {
		if number != 0 && p.Number != number || number == 0 && p.Name == SeedLabel {
			continue
		}
		if p.Start >= last.Start {
			last = p
		}
	}

	if last.Number == 0 {
		if number != 0 {
			return last, fmt.Errorf("there is no partition %d", number)
		}
		return last, errors.New("the disk has no partitions")
	}
	return last, nil
}

// room returns the largest possible end of p, at most limit. It returns an error if p is followed by a partition other than the
// seed.
func room(parts []Span, p Span, limit int64) (int64, error) {
	seed := limit
	for _, q := range parts {
		if q.Number == p.Number || q.Start < p.Start {
			continue
		}
		if q.Name != SeedLabel {
			return 0, fmt.Errorf("partition %d %q lies behind partition %d, which therefore cannot grow", q.Number, q.Name, p.Number)
		}
		seed = min(seed, q.Start)
	}
	return seed, nil
}

// GrowPartition enlarges a partition in g, and returns the partition and its old size. If changed is true, the table on dev differs
// from g, and the caller must write g.
func (g *GPT) GrowPartition(dev blockdev.Device, want Growth) (old int64, p Span, changed bool, err error) {
	p, err = lastOf(g.Spans(), want.Number)
	if err != nil {
		return 0, p, false, err
	}

	before := slices.Concat(g.header, g.entries)
	g.Resize(dev.Size())
	limit, err := room(g.Spans(), p, int64(g64(g.header, gptLastUsable)+1)*g.Sector-want.Reserve)
	if err != nil {
		return 0, p, false, err
	}

	e := g.Entry(p.Number - 1)
	old = p.Size
	if end := limit &^ (blockdev.MiB - 1); end > p.Start+p.Size { // a reserve larger than the free space must not shrink p
		binary.LittleEndian.PutUint64(e[40:], uint64(end/g.Sector)-1)
		p.Size = end - p.Start
	}
	changed = !slices.Equal(before, slices.Concat(g.header, g.entries)) || CheckTables(dev, g) != nil
	return old, p, changed, nil
}

// GrowMBR computes how a partition of an MBR grows. It returns the old size, the enlarged partition, and the first sector of the
// disk, which the caller must write; mbr is nil if the partition cannot grow further. It returns an error for an extended
// partition.
func GrowMBR(dev blockdev.Device, want Growth) (old int64, p Span, mbr []byte, err error) {
	table, err := Read(dev, dev.Size(), dev.SectorSize())
	if err != nil {
		return 0, Span{}, nil, err
	}
	if table.Kind != "mbr" {
		return 0, Span{}, nil, fmt.Errorf("unsupported partition table %s", table.Kind)
	}

	p, err = lastOf(table.Parts, want.Number)
	if err != nil {
		return 0, p, nil, err
	}
	if slices.Contains([]string{"0x05", "0x0f", "0x85"}, p.Kind) {
		return 0, p, nil, fmt.Errorf("partition %d is an extended partition; partitions inside it cannot grow", p.Number)
	}

	sector := int64(dev.SectorSize())

	// An MBR stores the number of sectors in 32 bits: the rest of a larger disk stays unused.
	limit, err := room(table.Parts, p, min(dev.Size()-want.Reserve, p.Start+0xffffffff*sector))
	if err != nil {
		return 0, p, nil, err
	}

	old = p.Size
	end := limit &^ (blockdev.MiB - 1)
	if end <= p.Start+p.Size {
		return old, p, nil, nil
	}

	p.Size = end - p.Start
	mbr = blockdev.Aligned(int(sector))
	if _, err := dev.ReadAt(mbr, 0); err != nil {
		return 0, p, nil, err
	}

	e := mbr[446+16*(p.Number-1):]
	binary.LittleEndian.PutUint32(e[12:], uint32(p.Size/sector))

	// No system uses heads and cylinders any more: set them to their maximum.
	copy(e[5:8], "\xfe\xff\xff")
	return old, p, mbr, nil
}
