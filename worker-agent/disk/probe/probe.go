// Package probe recognizes the contents of a disk or a partition by their signatures.
package probe

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// signature is a sequence of bytes at a fixed offset that identifies a format.
type signature struct {
	name  string
	at    int64
	magic string
}

// fsSignatures are the signatures of the formats that FileSystem recognizes, the more specific ones first.
var fsSignatures = []signature{
	{"LUKS", 0, "LUKS\xba\xbe"},
	{"Ceph", 0, "bluestore block device\n"}, // an OSD that uses the whole device; most OSDs are on an LVM volume
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

// FileSystem returns the type of the file system, volume or RAID in the first size bytes of r, or "" if it is unknown.
func FileSystem(r io.ReaderAt, size int64) string {
	for _, s := range fsSignatures {
		if s.at+int64(len(s.magic)) <= size && string(blockdev.ReadAt(r, s.at, len(s.magic))) == s.magic {
			if s.name == "ext" {
				return "ext4" // the ext4 driver also mounts ext2 and ext3
			}
			return s.name
		}
	}

	// md 1.0 and md 0.90 have their superblock near the end.
	for _, at := range []int64{size&^0xfff - 0x2000, size&^0xffff - 0x10000} {
		if at > 0 && string(blockdev.ReadAt(r, at, 4)) == "\xfc\x4e\x2b\xa9" {
			return "md"
		}
	}

	// ZFS: check the uberblocks of the first label, in either byte order.
	for at := int64(0x20000); at < 0x40000 && at+8 <= size; at += 0x400 {
		b := blockdev.ReadAt(r, at, 8)
		if len(b) == 8 && (binary.LittleEndian.Uint64(b) == 0x00bab10c || binary.BigEndian.Uint64(b) == 0x00bab10c) {
			return "zfs"
		}
	}
	return ""
}

// Signatures describes the contents of the disk r. It returns "gpt" or "mbr" and the type of each partition ("1:vfat", "2:ext4"),
// or only the type of the whole disk, or only "data". blank means that nothing was recognized, and that the first and the last MiB
// contain only zeros.
func Signatures(r io.ReaderAt, size int64, sector int) (names []string, blank bool) {
	table, err := parttable.Read(r, size, sector)
	if table != nil {
		names = append(names, table.Kind)
		for _, p := range table.Parts {
			what := cmp.Or(FileSystem(io.NewSectionReader(r, p.Start, p.Size), p.Size), "data")
			names = append(names, fmt.Sprintf("%d:%s", p.Number, what))
		}
	}

	whole := FileSystem(r, size)
	if whole != "" && table == nil {
		names = append(names, whole)
	}
	if len(names) > 0 {
		return names, false
	}

	end := min(int64(blockdev.MiB), size)
	head, tail := blockdev.ReadAt(r, 0, int(end)), blockdev.ReadAt(r, size-end, int(end))
	switch {
	case err != nil && !errors.Is(err, parttable.ErrNoTable):
		return nil, false
	case int64(len(head)) < end || int64(len(tail)) < end:
		return nil, false
	case blockdev.AllZero(head) && blockdev.AllZero(tail):
		return nil, true
	}
	return []string{"data"}, false
}
