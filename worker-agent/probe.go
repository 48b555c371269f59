package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// signature is a sequence of bytes that a format has at a fixed offset. A negative offset counts
// from the end.
type signature struct {
	name  string
	at    int64
	magic string
}

// fsSignatures are the signatures of the formats that a disk or partition can hold, the more
// specific ones first.
var fsSignatures = []signature{
	{"LUKS", 0, "LUKS\xba\xbe"},
	{"Ceph", 0, "bluestore block device\n"}, // an OSD that has the device for itself; most lie in an LVM volume
	{"xfs", 0, "XFSB"},
	{"squashfs", 0, "hsqs"},
	{"btrfs", 0x10040, "_BHRfS_M"},
	{"ext", 0x438, "\x53\xef"},
	{"LVM", 0x218, "LVM2 001"},
	{"LVM", 0x018, "LVM2 001"},
	{"LVM", 0x418, "LVM2 001"},
	{"LVM", 0x618, "LVM2 001"},
	{"md", 0x1000, "\xfc\x4e\x2b\xa9"},
	{"md", 0, "\xfc\x4e\x2b\xa9"},
	{"swap", 0xff6, "SWAPSPACE2"},
	{"bcache", 0x1018, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf7\xf7\xb8\x82\x33\x91"},
	{"iso9660", 0x8001, "CD001"},
	{"ntfs", 3, "NTFS    "},
	{"exfat", 3, "EXFAT   "},
	{"vfat", 0x52, "FAT32   "},
	{"vfat", 0x36, "FAT16   "},
	{"vfat", 0x36, "FAT12   "},
	{"f2fs", 0x400, "\x10\x20\xf5\xf2"},
}

// probeFS returns the type of the file system, volume or RAID in the size bytes of r; "" if it is
// unknown.
func probeFS(r io.ReaderAt, size int64) string {
	for _, s := range fsSignatures {
		if s.at+int64(len(s.magic)) <= size && string(readAt(r, s.at, len(s.magic))) == s.magic {
			if s.name == "ext" {
				return "ext4" // the ext4 driver also mounts ext2 and ext3
			}
			return s.name
		}
	}

	// md 1.0 and 0.90 have their superblock near the end.
	for _, at := range []int64{size&^0xfff - 0x2000, size&^0xffff - 0x10000} {
		if at > 0 && string(readAt(r, at, 4)) == "\xfc\x4e\x2b\xa9" {
			return "md"
		}
	}

	// ZFS: the uberblocks of the first label, in either byte order.
	for at := int64(0x20000); at < 0x40000 && at+8 <= size; at += 0x400 {
		b := readAt(r, at, 8)
		if len(b) == 8 && (binary.LittleEndian.Uint64(b) == 0x00bab10c || binary.BigEndian.Uint64(b) == 0x00bab10c) {
			return "zfs"
		}
	}
	return ""
}

// Signatures returns the contents of the disk r: "gpt" or "mbr" and the type in each partition
// ("1:vfat", "2:ext4"), or the type on the whole disk. blank means that nothing was recognized and
// that 1 MiB at both ends reads as zero.
func Signatures(r io.ReaderAt, size int64, sector int) (names []string, blank bool) {
	table, err := readTable(r, size, sector)
	if table != nil {
		names = append(names, table.kind)
		for _, p := range table.parts {
			what := probeFS(io.NewSectionReader(r, p.start, p.size), p.size)
			if what == "" {
				what = "data"
			}
			names = append(names, fmt.Sprintf("%d:%s", p.number, what))
		}
	}

	whole := probeFS(r, size)
	if whole != "" && table == nil {
		names = append(names, whole)
	}
	if len(names) > 0 {
		return names, false
	}

	end := min(int64(mib), size)
	head, tail := readAt(r, 0, int(end)), readAt(r, size-end, int(end))
	switch {
	case err != nil && !errors.Is(err, errNoTable):
		return nil, false
	case int64(len(head)) < end || int64(len(tail)) < end:
		return nil, false
	case allZero(head) && allZero(tail):
		return nil, true
	}
	return []string{"data"}, false
}

// readAt returns n bytes at off, or fewer at the end of r.
func readAt(r io.ReaderAt, off int64, n int) []byte {
	if off < 0 {
		return nil
	}
	b := make([]byte, n)
	k, err := r.ReadAt(b, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return b[:k]
}

// span is the position of a partition in bytes, with its names.
type span struct {
	number      int
	start, size int64
	name        string // name in the GPT, or ""
	kind        string // type: GUID in a GPT, or "0x83"
	uuid        string // PARTUUID in the form of blkid
}

// partitionTable has the fields that GPT and MBR share.
type partitionTable struct {
	kind  string // gpt, mbr
	parts []span
}

// mbrSignature is the offset of the disk signature in an MBR.
const mbrSignature = 440

var errNoTable = errors.New("there is no partition table")

// readTable reads the disk's GPT or, without one, its MBR.
func readTable(r io.ReaderAt, size int64, sector int) (*partitionTable, error) {
	g, err := readGPT(r, size, sector)
	if err == nil {
		return &partitionTable{kind: "gpt", parts: g.spans()}, nil
	}

	b := readAt(r, 0, 512)
	if len(b) < 512 || !bytes.Equal(b[510:], []byte{0x55, 0xaa}) {
		return nil, errors.Join(errNoTable, err)
	}

	t := &partitionTable{kind: "mbr"}
	for i := range 4 {
		e := b[446+16*i:][:16]
		start, n := int64(binary.LittleEndian.Uint32(e[8:])), int64(binary.LittleEndian.Uint32(e[12:]))
		start, n = start*int64(sector), n*int64(sector)
		if e[0]&0x7f != 0 {
			return nil, errNoTable // the boot sector of a file system, not an MBR
		}
		if e[4] == 0 || n == 0 || start+n > size {
			continue
		}
		if e[4] == 0xee {
			return &partitionTable{kind: "damaged gpt"}, nil
		}

		t.parts = append(t.parts, span{
			number: i + 1, start: start, size: n, kind: fmt.Sprintf("0x%02x", e[4]),
			uuid: fmt.Sprintf("%08x-%02x", g32(b, mbrSignature), i+1),
		})
	}
	if len(t.parts) == 0 {
		return nil, errNoTable
	}
	return t, nil
}
