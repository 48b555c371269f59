package agent

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
)

// gpt is a GUID partition table (UEFI specification 2.10, §5.3). Bytes that the agent does not
// change stay as they were.
type gpt struct {
	sector  int64
	header  []byte // the primary header, HeaderSize bytes
	entries []byte
}

// Offsets in the header.
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

// basicData is the partition type of a FAT file system other than an ESP:
// EBD0A0A2-B9E5-4433-87C0-68B6B72699C7, in the table's byte order.
var basicData = []byte{0xa2, 0xa0, 0xd0, 0xeb, 0xe5, 0xb9, 0x33, 0x44, 0x87, 0xc0, 0x68, 0xb6, 0xb7, 0x26, 0x99, 0xc7}

// readGPT reads the primary table of a disk of size bytes. It returns errNoTable if there is none.
func readGPT(r io.ReaderAt, size int64, sector int) (*gpt, error) {
	return readGPTAt(r, size, sector, 1)
}

// readAnyGPT reads the primary table or, if a program was interrupted while writing it, the backup
// at the end of the disk; torn reports which. The primary header is one sector, and it is written
// last: it identifies the backup that belongs to it.
func readAnyGPT(r io.ReaderAt, size int64, sector int) (g *gpt, torn bool, err error) {
	g, err = readGPT(r, size, sector)
	if err == nil || errors.Is(err, errNoTable) {
		return g, false, err
	}

	b := readAt(r, int64(sector), sector)
	backup, e := readGPTAt(r, size, sector, size/int64(sector)-1)
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

// readGPTAt reads the table with its header at sector lba.
func readGPTAt(r io.ReaderAt, size int64, sector int, lba int64) (*gpt, error) {
	s := int64(sector)
	b := readAt(r, lba*s, sector)
	if len(b) < sector || string(b[:8]) != "EFI PART" {
		return nil, errNoTable
	}

	g := &gpt{sector: s}
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
		return nil, fmt.Errorf("reading the partition table: the header at sector %d gives its own position as %d", lba,
			g64(b, gptMyLBA))
	}

	count, each := g32(b, gptCount), g32(b, gptEntrySize)
	if each < 128 || each > 4096 || count == 0 || count > 1024 {
		return nil, fmt.Errorf("reading the partition table: invalid table of %d entries of %d bytes", count, each)
	}

	at := g64(b, gptEntriesLBA)
	if at > uint64(size/s) {
		return nil, errors.New("reading the partition table: its entries lie beyond the end of the disk")
	}

	g.entries = readAt(r, int64(at)*s, int(count*each))
	if len(g.entries) < int(count*each) || crc32.ChecksumIEEE(g.entries) != g32(b, gptEntriesCRC) {
		return nil, errors.New("reading the partition table: the entries' checksum is wrong")
	}

	for i := range g.count() {
		if e := g.entry(i); !e.unused() && (e.last() < e.first() || e.last() >= uint64(size/s)) {
			return nil, fmt.Errorf("reading the partition table: partition %d lies outside of the disk", i+1)
		}
	}
	return g, nil
}

func g32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func g64(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }

func (g *gpt) put64(at int, v uint64) { binary.LittleEndian.PutUint64(g.header[at:], v) }

func (g *gpt) count() int { return int(g32(g.header, gptCount)) }

func (g *gpt) entry(i int) gptEntry {
	n := int(g32(g.header, gptEntrySize))
	return g.entries[i*n : (i+1)*n]
}

// gptEntry is the slice of a table that holds one partition.
type gptEntry []byte

func (e gptEntry) unused() bool  { return allZero(e[:16]) }
func (e gptEntry) first() uint64 { return g64(e, 32) }
func (e gptEntry) last() uint64  { return g64(e, 40) }

func (e gptEntry) name() string {
	name, _, _ := utf16Text(e[56:128])
	return name
}

// spans lists the partitions.
func (g *gpt) spans() []span {
	var parts []span
	for i := range g.count() {
		if e := g.entry(i); !e.unused() {
			parts = append(parts, span{
				number: i + 1, start: int64(e.first()) * g.sector, size: int64(e.last()-e.first()+1) * g.sector,
				name: e.name(), kind: guid(e[:16]), uuid: guid(e[16:32]),
			})
		}
	}
	return parts
}

// guid formats the GUID b, whose first three fields are little-endian.
func guid(b []byte) string {
	le := binary.LittleEndian
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", le.Uint32(b), le.Uint16(b[4:]), le.Uint16(b[6:]), b[8:10], b[10:16])
}

// set makes e a new partition from sector first to sector last.
func (e gptEntry) set(kind []byte, first, last uint64, name string) {
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

// entrySectors returns how many sectors the entries occupy.
func (g *gpt) entrySectors() uint64 {
	return (uint64(len(g.entries)) + uint64(g.sector) - 1) / uint64(g.sector)
}

// resize changes the table for a disk of size bytes: the backup moves to the end of the disk.
func (g *gpt) resize(size int64) {
	last := uint64(size/g.sector) - 1
	g.put64(gptAlternate, last)
	g.put64(gptLastUsable, last-g.entrySectors()-1)
}

// write writes the table and reads it back. The order is: the backup, the primary table once the
// backup is on stable storage, then the protective MBR for the whole disk.
func (g *gpt) write(dev Device) error {
	binary.LittleEndian.PutUint32(g.header[gptEntriesCRC:], crc32.ChecksumIEEE(g.entries))
	mine, other := g64(g.header, gptMyLBA), g64(g.header, gptAlternate)
	where := g64(g.header, gptEntriesLBA)

	backup := &gpt{sector: g.sector, header: bytes.Clone(g.header), entries: g.entries}
	backup.put64(gptMyLBA, other)
	backup.put64(gptAlternate, mine)
	backup.put64(gptEntriesLBA, other-g.entrySectors())
	if err := backup.writeCopy(dev, other, other-g.entrySectors()); err != nil {
		return fmt.Errorf("writing the backup partition table: %w", err)
	}
	if err := g.writeCopy(dev, mine, where); err != nil {
		return fmt.Errorf("writing the partition table: %w", err)
	}

	mbr := readAt(dev, 0, int(g.sector))
	if len(mbr) < int(g.sector) {
		return errors.New("reading the first sector: it is cut short")
	}

	for i := range 4 {
		e := mbr[446+16*i:][:16]
		// Keep the entries of a hybrid MBR: only the protective entry follows the size of the disk.
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
	if err := tablesAgree(dev, g); err != nil {
		return fmt.Errorf("reading the partition table back: %w", err)
	}
	return nil
}

func (g *gpt) writeCopy(dev Device, lba, entries uint64) error {
	binary.LittleEndian.PutUint32(g.header[gptCRC:], 0)
	binary.LittleEndian.PutUint32(g.header[gptCRC:], crc32.ChecksumIEEE(g.header))
	table := make([]byte, g.entrySectors()*uint64(g.sector))
	copy(table, g.entries)
	if _, err := dev.WriteAt(table, int64(entries)*g.sector); err != nil {
		return err
	}
	sector := make([]byte, g.sector)
	copy(sector, g.header)
	if _, err := dev.WriteAt(sector, int64(lba)*g.sector); err != nil {
		return err
	}
	return dev.Sync()
}

// newTable returns a GPT without partitions for a disk of size bytes: 128 entries of 128 bytes.
func newTable(size int64, sector int) *gpt {
	g := &gpt{sector: int64(sector), header: make([]byte, 92), entries: make([]byte, 128*128)}
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
	g.resize(size)
	return g
}

// protectiveMBR returns the first sector of a disk with a GPT: one partition of type 0xee that covers
// the disk (UEFI specification 2.10, §5.2.3).
func protectiveMBR(dev Device) []byte {
	mbr := aligned(dev.SectorSize())
	e := mbr[446:][:16]
	copy(e, "\x00\x00\x02\x00\xee\xff\xff\xff")
	binary.LittleEndian.PutUint32(e[8:], 1)
	binary.LittleEndian.PutUint32(e[12:], uint32(min(dev.Size()/int64(dev.SectorSize())-1, 0xffffffff)))
	mbr[510], mbr[511] = 0x55, 0xaa
	return mbr
}

// parseGUID is the reverse of guid.
func parseGUID(text string) ([]byte, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != 16 {
		return nil, fmt.Errorf("invalid GUID %q", text)
	}
	slices.Reverse(b[:4])
	slices.Reverse(b[4:6])
	slices.Reverse(b[6:8])
	return b, nil
}
