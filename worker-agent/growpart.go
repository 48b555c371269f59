package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/clock"
)

// Grower is an optional part of a Filesystems: it can enlarge file systems.
type Grower interface {
	// Grow enlarges the file system of type fstype at device to the device's size in bytes.
	// errors.ErrUnsupported means that nothing was changed and that the installed system has to
	// grow it.
	Grow(ctx context.Context, device, fstype string, size int64) error
}

// growPart enlarges the last partition of the bound disk as far as possible, and the file system in
// it.
//
//	DEST_DISK    the bound disk, or its partition
//	PARTITION    which partition (see action.ParsePartition); default: the last one on the disk
//	RESERVE_MIB  how much to leave free at the end of the disk, for a configdrive; default 0
//	FILESYSTEM   false: leave the file system as it is
//
// The backup of the GPT moves to the end of the disk first. A partition behind the one that grows
// is refused, except for the seed of configdrive at the end of the disk. Running it again changes
// nothing. Output: partition, from, to (bytes), filesystem = grown or left.
func (t *attempt) growPart(ctx context.Context) error {
	reserve, err := action.MiB(t.env, action.ReserveVariable)
	grow, e := action.Bool(t.env, "FILESYSTEM", true)
	if err := errors.Join(err, e); err != nil {
		return err
	}

	disk, number, err := t.partition(ctx, "DEST_DISK")
	if err != nil {
		return err
	}

	old, p, err := t.growTable(ctx, growth{number, reserve})
	if err != nil {
		return fmt.Errorf("growing a partition of %s: %w", disk.Path, err)
	}

	t.output["partition"], t.output["from"], t.output["to"] = fmt.Sprint(p.number), fmt.Sprint(old), fmt.Sprint(p.size)
	if !grow {
		t.output["filesystem"] = "left"
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}

	t.progress(0, 0, "growing the file system")
	return t.growFilesystem(ctx, disk, p)
}

// growth selects the partition that grows.
type growth struct {
	number  int   // 0: the last partition
	reserve int64 // bytes that stay free at the end of the disk
}

// growTable changes the partition table. It returns the partition and its old size.
func (t *attempt) growTable(ctx context.Context, want growth) (old int64, p span, err error) {
	disk, dev, err := t.openDisk(ctx, *t.bound)
	if err != nil {
		return 0, p, err
	}
	defer closeDisk(dev, disk.Path, &err)

	g, torn, err := readAnyGPT(dev, dev.Size(), dev.SectorSize())
	switch {
	case errors.Is(err, errNoTable):
		old, p, err = t.growMBR(ctx, dev, want)
	case err == nil:
		if torn {
			t.logf("the partition table is incomplete: using its backup")
		}
		old, p, err = t.growGPT(ctx, dev, g, torn, want)
	}
	if err != nil {
		return 0, p, err
	}
	if err := dev.Reread(); err != nil {
		t.logf("warning: the kernel does not read the new partition table: %v", err)
	}

	t.logf("partition %d: %d bytes, before %d", p.number, p.size, old)
	return old, p, nil
}

// lastOf returns the partition with that number or, for 0, the last one on the disk that is not the
// seed.
func lastOf(parts []span, number int) (span, error) {
	var last span
	for _, p := range parts {
		if number != 0 && p.number != number || number == 0 && p.name == seedLabel {
			continue
		}
		if p.start >= last.start {
			last = p
		}
	}

	if last.number == 0 {
		if number != 0 {
			return last, fmt.Errorf("there is no partition %d", number)
		}
		return last, errors.New("the disk has no partitions")
	}
	return last, nil
}

// room returns the largest possible end of p, one of parts.
func room(parts []span, p span, limit int64) (int64, error) {
	seed := limit
	for _, q := range parts {
		if q.number == p.number || q.start < p.start {
			continue
		}
		if q.name != seedLabel {
			return 0, fmt.Errorf("partition %d %q lies behind partition %d: it cannot grow", q.number, q.name, p.number)
		}
		seed = min(seed, q.start)
	}
	return seed, nil
}

// growGPT is growTable for the GPT g on dev; torn means that g is the backup.
func (t *attempt) growGPT(ctx context.Context, dev Device, g *gpt, torn bool, want growth) (int64, span, error) {
	p, err := lastOf(g.spans(), want.number)
	if err != nil {
		return 0, p, err
	}

	before := slices.Concat(g.header, g.entries)
	g.resize(dev.Size())
	limit, err := room(g.spans(), p, int64(g64(g.header, gptLastUsable)+1)*g.sector-want.reserve)
	if err != nil {
		return 0, p, err
	}

	e := g.entry(p.number - 1)
	old := p.size
	if end := uint64(limit &^ (mib - 1) / g.sector); end > e.last()+1 {
		binary.LittleEndian.PutUint64(e[40:], end-1)
		p.size = int64(end-e.first()) * g.sector
	}
	if !torn && slices.Equal(before, slices.Concat(g.header, g.entries)) && tablesAgree(dev, g) == nil {
		return old, p, nil
	}
	if err := context.Cause(ctx); err != nil {
		return 0, p, err
	}

	t.agent.markWrote()
	return old, p, g.write(dev)
}

// tablesAgree returns an error unless both copies of the table on dev and the protective MBR match
// g.
func tablesAgree(dev Device, g *gpt) error {
	last := dev.Size()/g.sector - 1
	for _, lba := range []int64{1, last} {
		on, err := readGPTAt(dev, dev.Size(), dev.SectorSize(), lba)
		if err != nil {
			return fmt.Errorf("table at sector %d: %w", lba, err)
		}
		if other := int64(g64(on.header, gptAlternate)); !slices.Equal(on.entries, g.entries) || other != last+1-lba {
			return fmt.Errorf("table at sector %d: it differs from the expected table", lba)
		}
	}

	mbr := readAt(dev, 0, 512)
	if len(mbr) < 512 {
		return errors.New("the first sector is cut short")
	}

	for i := range 4 {
		if e := mbr[446+16*i:][:16]; e[4] == 0xee && g32(e, 8) == 1 && g32(e, 12) != uint32(min(last, 0xffffffff)) {
			return errors.New("the protective MBR does not have the size of the disk")
		}
	}
	return nil
}

// growMBR is growTable for an MBR. It does not change partitions inside an extended one.
func (t *attempt) growMBR(ctx context.Context, dev Device, want growth) (int64, span, error) {
	table, err := readTable(dev, dev.Size(), dev.SectorSize())
	if err != nil {
		return 0, span{}, err
	}
	if table.kind != "mbr" {
		return 0, span{}, fmt.Errorf("unsupported partition table %s", table.kind)
	}

	p, err := lastOf(table.parts, want.number)
	if err != nil {
		return 0, p, err
	}
	if slices.Contains([]string{"0x05", "0x0f", "0x85"}, p.kind) {
		return 0, p, fmt.Errorf("partition %d is an extended partition: the partitions in it cannot grow", p.number)
	}

	sector := int64(dev.SectorSize())

	// The number of sectors has 32 bits: the rest of a larger disk stays unused.
	limit, err := room(table.parts, p, min(dev.Size()-want.reserve, p.start+0xffffffff*sector))
	if err != nil {
		return 0, p, err
	}

	old := p.size
	end := limit &^ (mib - 1)
	if end <= p.start+p.size {
		return old, p, nil
	}
	if err := context.Cause(ctx); err != nil {
		return 0, p, err
	}

	p.size = end - p.start
	mbr := aligned(int(sector))
	if _, err := dev.ReadAt(mbr, 0); err != nil {
		return 0, p, err
	}

	e := mbr[446+16*(p.number-1):]
	binary.LittleEndian.PutUint32(e[12:], uint32(p.size/sector))

	// Heads and cylinders are not used any more: set them to their maximum.
	copy(e[5:8], "\xfe\xff\xff")
	t.agent.markWrote()
	if err := writeVerified(dev, mbr, 0); err != nil {
		return 0, p, fmt.Errorf("writing the partition table: %w", err)
	}
	return old, p, nil
}

// growFilesystem grows the file system in p after the kernel knows the new size of p.
func (t *attempt) growFilesystem(ctx context.Context, disk action.Disk, p span) error {
	left := func(format string, args ...any) error {
		t.output["filesystem"] = "left"
		t.logf("the installed system has to grow the file system (cloud-init's resizefs, systemd-growfs): %s",
			fmt.Sprintf(format, args...))
		return nil
	}
	grower, ok := t.agent.cfg.Files.(Grower)
	if !ok {
		return left("this agent grows none")
	}

	var part Partition
	for end := time.Now().Add(nodeWait); ; {
		parts, err := t.agent.cfg.Files.Partitions(ctx, disk.Path)
		if err != nil {
			return fmt.Errorf("listing the partitions of %s: %w", disk.Path, err)
		}
		i := slices.IndexFunc(parts, func(q Partition) bool { return q.Number == p.number && q.Size == p.size })
		if i >= 0 {
			part = parts[i]
			break
		}
		if time.Now().After(end) {
			return left("the kernel does not know of the partition's new size")
		}
		if err := clock.Sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}

	kind := deviceFS(part)
	if !slices.Contains(action.FileSystems, kind) || kind == "vfat" {
		return left("it holds %q", kind)
	}

	t.agent.markWrote()
	err := grower.Grow(ctx, part.Path, kind, p.size)
	if errors.Is(err, errors.ErrUnsupported) {
		return left("%v", err)
	}
	if err != nil {
		return fmt.Errorf("growing the %s on %s: %w", kind, part.Path, err)
	}

	t.output["filesystem"] = "grown"
	t.logf("the %s on %s is as large as its partition", kind, part.Path)
	return nil
}
