package parttable

import (
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// SeedLabel is the volume label by which cloud-init's NoCloud finds the seed.
const SeedLabel = "CIDATA"

// PlaceSeed adapts g to a disk of size bytes, and adds a partition named CIDATA at the end of the disk. It removes an earlier
// partition of that name. It returns the number and the first sector of the new partition.
func (g *GPT) PlaceSeed(size int64) (number int, first uint64, err error) {
	g.Resize(size)
	free, end := -1, uint64(0)
	for i := range g.count() {
		e := g.Entry(i)
		if !e.unused() && e.name() == SeedLabel {
			clear(e)
		}

		if e.unused() {
			if free < 0 {
				free = i
			}
			continue
		}

		end = max(end, e.last())
	}
	if free < 0 {
		return 0, 0, errors.New("all entries of the partition table are in use")
	}

	sectors, grain := uint64(SeedBytes(int(g.Sector))/g.Sector), uint64(blockdev.MiB/g.Sector)
	usable := g64(g.header, gptLastUsable) + 1
	if usable < sectors+grain {
		return 0, 0, errors.New("the disk is too small for the seed partition")
	}

	first = (usable - sectors) / grain * grain
	if first <= end || first < g64(g.header, gptFirstUsable) {
		return 0, 0, fmt.Errorf("%d MiB must be free at the end of the disk, but the last partition ends at sector %d of %d",
			SeedBytes(int(g.Sector))/blockdev.MiB, end, usable)
	}

	g.Entry(free).Set(BasicData, first, first+sectors-1, SeedLabel)
	return free + 1, first, nil
}

// SeedBytes returns the size of the seed partition on a disk with the given sector size. Fsck, mtools and the kernel all accept a
// FAT16 volume of that size.
func SeedBytes(sector int) int64 {
	if sector == 512 {
		return 16 * blockdev.MiB
	}
	return 32 * blockdev.MiB
}

// BasicData is the partition type of a FAT file system other than an ESP:
// EBD0A0A2-B9E5-4433-87C0-68B6B72699C7, in the table's byte order.
var BasicData = []byte{0xa2, 0xa0, 0xd0, 0xeb, 0xe5, 0xb9, 0x33, 0x44, 0x87, 0xc0, 0x68, 0xb6, 0xb7, 0x26, 0x99, 0xc7}
