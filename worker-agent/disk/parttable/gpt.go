// Package parttable reads and writes partition tables: GPT and MBR.
package parttable

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// GPT is a GUID partition table (UEFI specification 2.10, §5.3). All bytes that the agent does not change are kept.
type GPT struct {
	Sector  int64
	header  []byte // the primary header; its length is its HeaderSize field
	entries []byte
}

// Offsets in the header of a GPT.
const (
	gptCRC         = 16
	gptMyLBA       = 24
	gptAlternate   = 32
	gptFirstUsable = 40
	gptLastUsable  = 48
	gptDiskGUID    = 56
	gptEntriesLBA  = 72
	gptCount       = 80
	gptEntrySize   = 84
	gptEntriesCRC  = 88
)

// readGPT reads the primary table of a disk of size bytes. It returns ErrNoTable if there is none.
func readGPT(r io.ReaderAt, size int64, sector int) (*GPT, error) {
	return ReadGPTAt(r, size, sector, 1)
}

// ReadAnyGPT reads the primary table. If an interrupted write has damaged the primary table, ReadAnyGPT reads the backup at the end
// of the disk, and torn is true. In that case, the sector of the primary header must still have the disk GUID of the backup,
// because Write writes this sector last.
func ReadAnyGPT(r io.ReaderAt, size int64, sector int) (g *GPT, torn bool, err error) {
	g, err = readGPT(r, size, sector)
	if err == nil || errors.Is(err, ErrNoTable) {
		return g, false, err
	}

	b := blockdev.ReadAt(r, int64(sector), sector)
	backup, e := ReadGPTAt(r, size, sector, size/int64(sector)-1)
	if e != nil || len(b) < 92 || !bytes.Equal(b[gptDiskGUID:gptDiskGUID+16], backup.header[gptDiskGUID:gptDiskGUID+16]) {
		return nil, false, err
	}

	last := g64(backup.header, gptMyLBA)
	backup.put64(gptMyLBA, 1)
	backup.put64(gptAlternate, last)
	backup.put64(gptEntriesLBA, 2)
	if first := g64(backup.header, gptFirstUsable); 2+backup.entrySectors() > first {
		return nil, false, err
	}
	return backup, true, nil
}

// ReadGPTAt reads the table whose header is in sector lba. It returns ErrNoTable if that sector has no GPT header.
func ReadGPTAt(r io.ReaderAt, size int64, sector int, lba int64) (*GPT, error) {
	s := int64(sector)
	b := blockdev.ReadAt(r, lba*s, sector)
	if len(b) < sector || string(b[:8]) != "EFI PART" {
		return nil, ErrNoTable
	}

	g := &GPT{Sector: s}
	n := g32(b, 12)
	if n < 92 || int(n) > sector {
		return nil, fmt.Errorf("reading the partition table: invalid header size %d", n)
	}

	g.header = bytes.Clone(b[:n])
	sum := g32(g.header, gptCRC)
	binary.LittleEndian.PutUint32(g.header[gptCRC:], 0)
	if crc32.ChecksumIEEE(g.header) != sum {
		return nil, errors.New("reading the partition table: the header's checksum is wrong")
	}
	if g64(b, gptMyLBA) != uint64(lba) {
		return nil, fmt.Errorf("reading the partition table: the header at sector %d claims to be at sector %d", lba,
			g64(b, gptMyLBA))
	}

	count, each := g32(b, gptCount), g32(b, gptEntrySize)
	if each < 128 || each > 4096 || count == 0 || count > 1024 {
		return nil, fmt.Errorf("reading the partition table: invalid table of %d entries of %d bytes", count, each)
	}

	at := g64(b, gptEntriesLBA)
	if at > uint64(size/s) {
		return nil, errors.New("reading the partition table: the entries lie beyond the end of the disk")
	}

	g.entries = blockdev.ReadAt(r, int64(at)*s, int(count*each))
	if len(g.entries) < int(count*each) || crc32.ChecksumIEEE(g.entries) != g32(b, gptEntriesCRC) {
		return nil, errors.New("reading the partition table: the entries' checksum is wrong")
	}

	for i := range g.count() {
		if e := g.Entry(i); !e.unused() && (e.last() < e.first() || e.last() >= uint64(size/s)) {
			return nil, fmt.Errorf("reading the partition table: partition %d lies outside the disk", i+1)
		}
	}
	return g, nil
}

func g32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func g64(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }

func (g *GPT) put64(at int, v uint64) { binary.LittleEndian.PutUint64(g.header[at:], v) }

func (g *GPT) count() int { return int(g32(g.header, gptCount)) }

// Entry returns entry i of the table, which describes partition i+1.
func (g *GPT) Entry(i int) GPTEntry {
	n := int(g32(g.header, gptEntrySize))
	return g.entries[i*n : (i+1)*n]
}

// GPTEntry is the part of a table that describes one partition.
type GPTEntry []byte

func (e GPTEntry) unused() bool  { return blockdev.AllZero(e[:16]) }
func (e GPTEntry) first() uint64 { return g64(e, 32) }
func (e GPTEntry) last() uint64  { return g64(e, 40) }

func (e GPTEntry) name() string {
	name, _, _ := DecodeUTF16(e[56:128])
	return name
}

// Spans returns the partitions in the table.
func (g *GPT) Spans() []Span {
	var parts []Span
	for i := range g.count() {
		if e := g.Entry(i); !e.unused() {
			parts = append(parts, Span{
				Number: i + 1, Start: int64(e.first()) * g.Sector, Size: int64(e.last()-e.first()+1) * g.Sector,
				Name: e.name(), Kind: FormatGUID(e[:16]), UUID: FormatGUID(e[16:32]),
			})
		}
	}
	return parts
}

// FormatGUID formats the GUID b, whose first three fields are little-endian.
func FormatGUID(b []byte) string {
	le := binary.LittleEndian
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", le.Uint32(b), le.Uint16(b[4:]), le.Uint16(b[6:]), b[8:10], b[10:16])
}

// Set makes e a new partition, from sector first to sector last inclusive.
func (e GPTEntry) Set(kind []byte, first, last uint64, name string) {
	clear(e)
	copy(e, kind)

	// crypto/rand.Read never fails: it crashes the program instead.
	_, _ = rand.Read(e[16:32])
	e[16+7] = e[16+7]&0x0f | 0x40 // version 4, in the GUID's mixed byte order
	e[16+8] = e[16+8]&0x3f | 0x80
	binary.LittleEndian.PutUint64(e[32:], first)
	binary.LittleEndian.PutUint64(e[40:], last)

	for i, c := range utf16.Encode([]rune(name)) {
		if i < 36 {
			binary.LittleEndian.PutUint16(e[56+2*i:], c)
		}
	}
}

// SetBootable marks the partition with that number as the only one that BIOS boot code boots.
func (g *GPT) SetBootable(number int) {
	const attributes, legacyBootable = 48, 1 << 2 // UEFI specification 2.10, §5.3.3
	for i := range g.count() {
		if e := g.Entry(i); !e.unused() {
			e[attributes] &^= legacyBootable
		}
	}
	g.Entry(number - 1)[attributes] |= legacyBootable
}

// entrySectors returns the number of sectors that the entries occupy.
func (g *GPT) entrySectors() uint64 {
	return (uint64(len(g.entries)) + uint64(g.Sector) - 1) / uint64(g.Sector)
}

// Resize adapts the header to a disk of size bytes: the backup will be at the end of the disk.
func (g *GPT) Resize(size int64) {
	last := uint64(size/g.Sector) - 1
	g.put64(gptAlternate, last)
	g.put64(gptLastUsable, last-g.entrySectors()-1)
}

// Write writes the table and verifies it. It first writes the backup. Once the backup is on stable storage, it writes the primary
// table, and last the size of the disk in the protective MBR.
func (g *GPT) Write(dev blockdev.Device) error {
	binary.LittleEndian.PutUint32(g.header[gptEntriesCRC:], crc32.ChecksumIEEE(g.entries))
	mine, other := g64(g.header, gptMyLBA), g64(g.header, gptAlternate)
	where := g64(g.header, gptEntriesLBA)

	backup := &GPT{Sector: g.Sector, header: bytes.Clone(g.header), entries: g.entries}
	backup.put64(gptMyLBA, other)
	backup.put64(gptAlternate, mine)
	backup.put64(gptEntriesLBA, other-g.entrySectors())
	if err := backup.writeCopy(dev, other, other-g.entrySectors()); err != nil {
		return fmt.Errorf("writing the backup partition table: %w", err)
	}
	if err := g.writeCopy(dev, mine, where); err != nil {
		return fmt.Errorf("writing the partition table: %w", err)
	}

	mbr := blockdev.ReadAt(dev, 0, int(g.Sector))
	if len(mbr) < int(g.Sector) {
		return errors.New("reading the first sector: the sector is cut short")
	}

	for i := range 4 {
		e := mbr[446+16*i:][:16]
		// Keep the other entries of a hybrid MBR: only the protective entry depends on the size of the disk.
		if e[4] == 0xee && g32(e, 8) == 1 {
			binary.LittleEndian.PutUint32(e[12:], uint32(min(other, 0xffffffff)))
		}
	}
	if _, err := dev.WriteAt(mbr, 0); err != nil {
		return fmt.Errorf("writing the protective MBR: %w", err)
	}
	if err := dev.Sync(); err != nil {
		return err
	}
	if err := CheckTables(dev, g); err != nil {
		return fmt.Errorf("reading the partition table back: %w", err)
	}
	return nil
}

func (g *GPT) writeCopy(dev blockdev.Device, lba, entries uint64) error {
	binary.LittleEndian.PutUint32(g.header[gptCRC:], 0)
	binary.LittleEndian.PutUint32(g.header[gptCRC:], crc32.ChecksumIEEE(g.header))
	table := make([]byte, g.entrySectors()*uint64(g.Sector))
	copy(table, g.entries)
	if _, err := dev.WriteAt(table, int64(entries)*g.Sector); err != nil {
		return err
	}
	sector := make([]byte, g.Sector)
	copy(sector, g.header)
	if _, err := dev.WriteAt(sector, int64(lba)*g.Sector); err != nil {
		return err
	}
	return dev.Sync()
}

// NewGPT returns a GPT for a disk of size bytes, with 128 unused entries of 128 bytes.
func NewGPT(size int64, sector int) *GPT {
	g := &GPT{Sector: int64(sector), header: make([]byte, 92), entries: make([]byte, 128*128)}
	copy(g.header, "EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")

	// crypto/rand.Read never fails: it crashes the program instead.
	id := g.header[gptDiskGUID:][:16]
	_, _ = rand.Read(id)
	id[7], id[8] = id[7]&0x0f|0x40, id[8]&0x3f|0x80 // version 4, in the GUID's mixed byte order

	g.put64(gptMyLBA, 1)
	g.put64(gptEntriesLBA, 2)
	binary.LittleEndian.PutUint32(g.header[gptCount:], 128)
	binary.LittleEndian.PutUint32(g.header[gptEntrySize:], 128)
	g.put64(gptFirstUsable, 2+g.entrySectors())
	g.Resize(size)
	return g
}

// ProtectiveMBR returns the first sector of a disk with a GPT. It contains one partition of type 0xee that covers the disk
// (UEFI specification 2.10, §5.2.3).
func ProtectiveMBR(dev blockdev.Device) []byte {
	mbr := blockdev.Aligned(dev.SectorSize())
	e := mbr[446:][:16]
	copy(e, "\x00\x00\x02\x00\xee\xff\xff\xff")
	binary.LittleEndian.PutUint32(e[8:], 1)
	binary.LittleEndian.PutUint32(e[12:], uint32(min(dev.Size()/int64(dev.SectorSize())-1, 0xffffffff)))
	mbr[510], mbr[511] = 0x55, 0xaa
	return mbr
}

// ParseGUID is the reverse of FormatGUID.
func ParseGUID(text string) ([]byte, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != 16 {
		return nil, fmt.Errorf("invalid GUID %q", text)
	}
	slices.Reverse(b[:4])
	slices.Reverse(b[4:6])
	slices.Reverse(b[6:8])
	return b, nil
}

// DecodeUTF16 decodes the little-endian UTF-16 in b up to the first zero unit. ended reports whether b contains a zero unit, and
// rest is what follows that unit.
func DecodeUTF16(b []byte) (text string, rest []byte, ended bool) {
	var units []uint16
	for len(b) >= 2 && !ended {
		unit := binary.LittleEndian.Uint16(b)
		b = b[2:]
		if ended = unit == 0; !ended {
			units = append(units, unit)
		}
	}
	return string(utf16.Decode(units)), b, ended
}

// CheckTables returns nil if both copies of the table on dev and the protective MBR match g.
func CheckTables(dev blockdev.Device, g *GPT) error {
	last := dev.Size()/g.Sector - 1
	for _, lba := range []int64{1, last} {
		on, err := ReadGPTAt(dev, dev.Size(), dev.SectorSize(), lba)
		if err != nil {
			return fmt.Errorf("partition table at sector %d: %w", lba, err)
		}
		if other := int64(g64(on.header, gptAlternate)); !slices.Equal(on.entries, g.entries) || other != last+1-lba {
			return fmt.Errorf("the partition table at sector %d differs from the expected table", lba)
		}
	}

	mbr := blockdev.ReadAt(dev, 0, 512)
	if len(mbr) < 512 {
		return errors.New("the first sector is cut short")
	}

	for i := range 4 {
		if e := mbr[446+16*i:][:16]; e[4] == 0xee && g32(e, 8) == 1 && g32(e, 12) != uint32(min(last, 0xffffffff)) {
			return errors.New("the protective MBR does not cover the whole disk")
		}
	}
	return nil
}

// Span describes a partition: its position in bytes and its names.
type Span struct {
	Number      int
	Start, Size int64
	Name        string // name in the GPT; "" = none
	Kind        string // partition type: a GUID in a GPT, a number such as "0x83" in an MBR
	UUID        string // PARTUUID in the format of blkid
}

// ErrNoTable means that a disk has neither a GPT nor an MBR.
var ErrNoTable = errors.New("the disk has no partition table")
