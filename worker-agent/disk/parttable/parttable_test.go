package parttable_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// memory is a disk in memory.
type memory struct {
	content []byte
	sector  int
}

var _ blockdev.Device = (*memory)(nil)

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(m.content).ReadAt(p, off)
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > m.Size() {
		return 0, io.ErrShortWrite
	}
	return copy(m.content[off:], p), nil
}

func (m *memory) Zero(off, n int64) error { return blockdev.WriteZeros(m, off, n) }
func (m *memory) Sync() error             { return nil }
func (m *memory) Size() int64             { return int64(len(m.content)) }
func (m *memory) SectorSize() int         { return m.sector }
func (m *memory) Reread() error           { return nil }
func (m *memory) Close() error            { return nil }

// newDisk returns a disk of size bytes with a GPT of two partitions, from 1 to 3 and from 3 to 8 MiB.
func newDisk(t testing.TB, size int64, sector int) *memory {
	t.Helper()
	dev := &memory{make([]byte, size), sector}
	g := parttable.NewGPT(size, sector)
	mib := uint64(blockdev.MiB / sector)
	g.Entry(0).Set(parttable.BasicData, mib, 3*mib-1, "esp")
	g.Entry(4).Set(parttable.BasicData, 3*mib, 8*mib-1, "root")
	require.NoError(t, blockdev.WriteVerified(dev, parttable.ProtectiveMBR(dev), 0))
	require.NoError(t, g.Write(dev))
	return dev
}

func readAny(t *testing.T, dev *memory) (g *parttable.GPT, torn bool) {
	t.Helper()
	g, torn, err := parttable.ReadAnyGPT(dev, dev.Size(), dev.sector)
	require.NoError(t, err)
	return g, torn
}

func TestGPTIsReadAsItWasWritten(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		dev := newDisk(t, 16*blockdev.MiB, sector)
		table, err := parttable.Read(dev, dev.Size(), sector)
		require.NoError(t, err)
		require.Equal(t, "gpt", table.Kind)
		require.Len(t, table.Parts, 2)
		esp, root := table.Parts[0], table.Parts[1]
		require.Equal(t, parttable.Span{
			Number: 1, Start: blockdev.MiB, Size: 2 * blockdev.MiB, Name: "esp",
			Kind: "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7", UUID: esp.UUID,
		}, esp)
		require.Equal(t, parttable.Span{
			Number: 5, Start: 3 * blockdev.MiB, Size: 5 * blockdev.MiB, Name: "root", Kind: esp.Kind, UUID: root.UUID,
		}, root)
		require.Equal(t, byte('4'), esp.UUID[14], "the version of a random GUID")
		require.NotEqual(t, esp.UUID, root.UUID)

		g, torn := readAny(t, dev)
		require.False(t, torn)
		require.NoError(t, parttable.CheckTables(dev, g), "both copies, and the protective MBR")

		// Without the first entries, the backup has the same partitions.
		dev.content[2*sector] ^= 1
		g, torn = readAny(t, dev)
		require.True(t, torn)
		require.Equal(t, table.Parts, g.Spans())
		require.Error(t, parttable.CheckTables(dev, g))
		require.NoError(t, g.Write(dev))
		g, torn = readAny(t, dev)
		require.False(t, torn)
		require.Equal(t, table.Parts, g.Spans())

		// A table of another disk is no backup of this one.
		stranger := newDisk(t, 16*blockdev.MiB, sector)
		copy(dev.content[15*blockdev.MiB:], stranger.content[15*blockdev.MiB:])
		dev.content[2*sector] ^= 1
		_, _, err = parttable.ReadAnyGPT(dev, dev.Size(), sector)
		require.ErrorContains(t, err, "the entries' checksum is wrong")
	}
}

func TestDamagedAndMissingTables(t *testing.T) {
	empty := &memory{make([]byte, 4*blockdev.MiB), 512}
	_, err := parttable.Read(empty, empty.Size(), 512)
	require.ErrorIs(t, err, parttable.ErrNoTable)
	require.False(t, parttable.IsDamaged(err))

	for name, c := range map[string]struct {
		break_ func(d *memory)
		want   string
	}{
		"header":   {func(d *memory) { d.content[512+60] ^= 1 }, "the header's checksum is wrong"},
		"entries":  {func(d *memory) { d.content[1024+60] ^= 1 }, "the entries' checksum is wrong"},
		"its size": {func(d *memory) { d.content[512+12] = 1 }, "invalid header size 1"},
	} {
		dev := newDisk(t, 16*blockdev.MiB, 512)
		c.break_(dev)
		clear(dev.content[:512]) // without a protective MBR
		_, err := parttable.Read(dev, dev.Size(), 512)
		require.ErrorContains(t, err, c.want, name)
		require.True(t, parttable.IsDamaged(err), name)
	}

	dev := newDisk(t, 16*blockdev.MiB, 512)
	dev.content[512+60] ^= 1
	table, err := parttable.Read(dev, dev.Size(), 512)
	require.NoError(t, err)
	require.Equal(t, "damaged gpt", table.Kind, "the protective MBR says that there was one")

	cut := newDisk(t, 16*blockdev.MiB, 512)
	cut.content = cut.content[:6*blockdev.MiB]
	_, _, err = parttable.ReadAnyGPT(cut, cut.Size(), 512)
	require.ErrorContains(t, err, "partition 5 lies outside the disk")
}

func TestGrowPartition(t *testing.T) {
	const size = 64 * blockdev.MiB
	for name, c := range map[string]struct {
		want parttable.Growth
		end  int64 // MiB; 0 = it does not grow
		err  string
	}{
		"the last one":      {parttable.Growth{}, 63, ""},
		"by its number":     {parttable.Growth{Number: 5}, 63, ""},
		"with a reserve":    {parttable.Growth{Reserve: 10 * blockdev.MiB}, 53, ""},
		"no room":           {parttable.Growth{Reserve: size}, 0, ""},
		"one in the middle": {parttable.Growth{Number: 1}, 0, `partition 5 "root" lies behind partition 1, which therefore cannot grow`},
		"an unknown one":    {parttable.Growth{Number: 7}, 0, "there is no partition 7"},
	} {
		dev := newDisk(t, 16*blockdev.MiB, 512)
		dev.content = append(dev.content, make([]byte, size-dev.Size())...)
		g, _ := readAny(t, dev)
		old, p, changed, err := g.GrowPartition(dev, c.want)
		if c.err != "" {
			require.ErrorContains(t, err, c.err, name)
			continue
		}
		require.NoError(t, err, name)
		require.True(t, changed, "the backup is not at the end of the disk")
		require.EqualValues(t, 5*blockdev.MiB, old)
		if end := c.end * blockdev.MiB; end > 0 {
			require.Equal(t, end, p.Start+p.Size, name)
		} else {
			require.Equal(t, old, p.Size, name)
		}

		require.NoError(t, g.Write(dev), name)
		g, torn := readAny(t, dev)
		require.False(t, torn)
		_, again, changed, err := g.GrowPartition(dev, c.want)
		require.NoError(t, err)
		require.False(t, changed, "%s: the second time", name)
		require.Equal(t, p.Size, again.Size)
	}
}

// The seed is at the end of the disk, replaces an earlier one, and is not grown over.
func TestPlaceSeed(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		dev := newDisk(t, 128*blockdev.MiB, sector)
		for range 2 {
			g, _ := readAny(t, dev)
			number, first, err := g.PlaceSeed(dev.Size())
			require.NoError(t, err)
			require.Equal(t, 2, number, "the first free entry")
			seed := g.Spans()[1]
			require.Equal(t, parttable.SeedLabel, seed.Name)
			require.Equal(t, parttable.SeedBytes(sector), seed.Size)
			require.Equal(t, int64(first)*int64(sector), seed.Start)
			require.Zero(t, seed.Start%blockdev.MiB)
			require.NoError(t, g.Write(dev))
		}

		g, _ := readAny(t, dev)
		seed := g.Spans()[1]
		_, root, _, err := g.GrowPartition(dev, parttable.Growth{})
		require.NoError(t, err)
		require.Equal(t, "root", root.Name)
		require.Equal(t, seed.Start, root.Start+root.Size)
	}

	full := newDisk(t, 12*blockdev.MiB, 512)
	g, _ := readAny(t, full)
	_, _, err := g.PlaceSeed(full.Size())
	require.ErrorContains(t, err, "too small")
	crowded := newDisk(t, 20*blockdev.MiB, 512)
	g, _ = readAny(t, crowded)
	_, _, err = g.PlaceSeed(crowded.Size())
	require.ErrorContains(t, err, "16 MiB must be free at the end of the disk")
	for i := range 128 {
		g.Entry(i).Set(parttable.BasicData, 2048, 4095, "x")
	}
	_, _, err = g.PlaceSeed(64 * blockdev.MiB)
	require.ErrorContains(t, err, "all entries of the partition table are in use")
}

// writeMBREntry writes entry n of a table of four at byte off.
func writeMBREntry(d *memory, off int64, n int, kind byte, start, sectors uint32) {
	table := d.content[off:]
	table[510], table[511] = 0x55, 0xaa
	e := table[446+16*n:]
	e[4] = kind
	for i := range 4 {
		e[8+i], e[12+i] = byte(start>>(8*i)), byte(sectors>>(8*i))
	}
}

func TestMBR(t *testing.T) {
	dev := &memory{make([]byte, 64*blockdev.MiB), 512}
	copy(dev.content[440:], "\x78\x56\x34\x12")
	writeMBREntry(dev, 0, 0, 0x0c, 2048, 2048)
	writeMBREntry(dev, 0, 1, 0x83, 4096, 8192)
	table, err := parttable.Read(dev, dev.Size(), 512)
	require.NoError(t, err)
	require.Equal(t, &parttable.Table{Kind: "mbr", Parts: []parttable.Span{
		{Number: 1, Start: blockdev.MiB, Size: blockdev.MiB, Kind: "0x0c", UUID: "12345678-01"},
		{Number: 2, Start: 2 * blockdev.MiB, Size: 4 * blockdev.MiB, Kind: "0x83", UUID: "12345678-02"},
	}}, table)

	old, p, sector, err := parttable.GrowMBR(dev, parttable.Growth{Reserve: blockdev.MiB})
	require.NoError(t, err)
	require.EqualValues(t, 4*blockdev.MiB, old)
	require.EqualValues(t, 63*blockdev.MiB, p.Start+p.Size)
	_, err = dev.WriteAt(sector, 0)
	require.NoError(t, err)
	table, err = parttable.Read(dev, dev.Size(), 512)
	require.NoError(t, err)
	require.Equal(t, p, table.Parts[1])
	_, _, sector, err = parttable.GrowMBR(dev, parttable.Growth{Reserve: blockdev.MiB})
	require.NoError(t, err)
	require.Nil(t, sector, "it is as large as it can be")

	writeMBREntry(dev, 0, 1, 0x05, 4096, 8192)
	_, _, _, err = parttable.GrowMBR(dev, parttable.Growth{})
	require.ErrorContains(t, err, "an extended partition")

	boot := &memory{make([]byte, blockdev.MiB), 512}
	copy(boot.content[446:], "Non-System disk")
	writeMBREntry(boot, 0, 3, 0x83, 1, 2)
	_, err = parttable.Read(boot, boot.Size(), 512)
	require.ErrorIs(t, err, parttable.ErrNoTable, "the boot sector of a file system")
}

// AllPartitions finds what any of the tables lists: a backup in the middle of the disk, and logical partitions.
func TestAllPartitions(t *testing.T) {
	dev := newDisk(t, 16*blockdev.MiB, 512)
	dev.content = append(dev.content, make([]byte, 16*blockdev.MiB)...)
	var starts []int64
	for _, p := range parttable.AllPartitions(dev, t.Logf) {
		starts = append(starts, p.Start)
	}
	require.Equal(t, []int64{blockdev.MiB, 3 * blockdev.MiB, 16*blockdev.MiB - 33*512}, starts)

	logical := &memory{make([]byte, 16*blockdev.MiB), 512}
	writeMBREntry(logical, 0, 0, 0x0f, 2048, 16384)
	writeMBREntry(logical, blockdev.MiB, 0, 0x83, 64, 128)
	writeMBREntry(logical, blockdev.MiB, 1, 0x05, 4096, 4096) // the next table, from the first one
	writeMBREntry(logical, 3*blockdev.MiB, 0, 0x83, 64, 256)
	writeMBREntry(logical, 3*blockdev.MiB, 1, 0x05, 4096, 4096) // it leads to itself
	var sizes []int64
	for _, p := range parttable.AllPartitions(logical, t.Logf) {
		sizes = append(sizes, p.Size/512)
	}
	require.Equal(t, []int64{16384, 1, 128, 1, 256}, sizes)
}

func TestGUID(t *testing.T) {
	const text = "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"
	b, err := parttable.ParseGUID(text)
	require.NoError(t, err)
	require.Equal(t, parttable.BasicData, b)
	require.Equal(t, text, parttable.FormatGUID(b))
	for _, invalid := range []string{"", "ebd0", text + "00", "x" + text[1:]} {
		_, err := parttable.ParseGUID(invalid)
		require.Error(t, err, invalid)
	}
}

// writeHostile writes parts of hostile tables to a disk, with the checksums of a GPT as they have to be.
func writeHostile(dev *memory, mbr, header, entries []byte) {
	copy(dev.content[:512], mbr)
	copy(dev.content[2*dev.sector:], entries[:min(len(entries), 4096)])
	h := dev.content[dev.sector : 2*dev.sector]
	copy(h, header)

	le := binary.LittleEndian
	at, n := le.Uint64(h[72:]), uint64(le.Uint32(h[80:]))*uint64(le.Uint32(h[84:]))
	if all := uint64(len(dev.content)); at < all/uint64(dev.sector) && n <= all-at*uint64(dev.sector) && at > 1 {
		le.PutUint32(h[88:], crc32.ChecksumIEEE(dev.content[at*uint64(dev.sector):][:n]))
	}
	if n := le.Uint32(h[12:]); n >= 92 && int(n) <= dev.sector {
		le.PutUint32(h[16:], 0)
		le.PutUint32(h[16:], crc32.ChecksumIEEE(h[:n]))
	}
}

// FuzzTables reads and changes hostile tables. No partition leaves the disk.
func FuzzTables(f *testing.F) {
	const size = 40 * blockdev.MiB
	for _, sector := range []int{512, 4096} {
		good := newDisk(f, size, sector).content
		f.Add(good[440:512], good[sector:sector+92], good[2*sector:2*sector+640], sector == 4096)
	}
	content := make([]byte, size)
	f.Fuzz(func(t *testing.T, mbr, header, entries []byte, large bool) {
		clear(content[:16<<10])
		dev := &memory{content, 512}
		if large {
			dev.sector = 4096
		}
		writeHostile(dev, append(make([]byte, 440), mbr...), header, entries)
		inside := func(parts ...parttable.Span) {
			t.Helper()
			for _, p := range parts {
				if p.Start < 0 || p.Size <= 0 || p.Start+p.Size > size {
					t.Fatalf("outside of the disk: %+v", p)
				}
			}
		}

		inside(parttable.AllPartitions(dev, func(string, ...any) {})...)
		if table, err := parttable.Read(dev, size, dev.sector); err == nil {
			inside(table.Parts...)
		}
		if _, p, _, err := parttable.GrowMBR(dev, parttable.Growth{}); err == nil {
			inside(p)
		}
		for _, change := range []func(g *parttable.GPT) error{
			func(g *parttable.GPT) error { _, _, _, err := g.GrowPartition(dev, parttable.Growth{}); return err },
			func(g *parttable.GPT) error { _, _, err := g.PlaceSeed(size); return err },
		} {
			if g, _, err := parttable.ReadAnyGPT(dev, size, dev.sector); err == nil && change(g) == nil {
				inside(g.Spans()...)
			}
		}
	})
}
