package diskimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

// Layout is what a disk must have so that the partition table of a disk image is valid on it.
type Layout struct {
	// SectorSize is the size in bytes of the logical sectors in which the table counts: 512 or 4096. On a disk with
	// other sectors, firmware does not find a GPT (UEFI 2.10, 5.3.2). An MBR that was made in a file counts in 512.
	// SectorSize is 0 if no table can be read, or if there is a GPT for both sizes.
	SectorSize int
	// End is the offset in bytes of the end of the last partition; 0 if there is no table.
	End int64
}

// table is a partition table.
type table struct {
	name     string // GPT or MBR; "" if there is none
	sector   int    // same as Layout.SectorSize
	parts    []partition
	features features
}

// partition is a byte range of the image.
type partition struct {
	start, end int64
	head       []byte // its first bytes, at most HeadSize
}

// maxParts limits how many partitions of a GPT are read.
const maxParts = 32

func (t table) String() string {
	var kinds []string
	for _, p := range t.parts {
		if k := Identify(p.head); k.FileSystem {
			kinds = append(kinds, k.Name)
		}
	}

	text := fmt.Sprintf("%s, %d partitions", t.name, len(t.parts))
	if len(t.parts) == 1 {
		text = t.name + ", 1 partition"
	}
	if len(kinds) > 0 {
		text += " (" + strings.Join(kinds, ", ") + ")"
	}
	return text
}

// look reads a content to its end, stores the first bytes of each partition and the features that it finds, and returns
// the size. If the size exceeds most (in bytes), the error is a *Refusal.
func (t *table) look(content io.Reader, most int64) (size int64, err error) {
	keep := func(b []byte) {
		t.features.scan(b)
		for i := range t.parts {
			p := &t.parts[i]
			from := max(p.start+int64(len(p.head))-size, 0)
			if want := HeadSize - len(p.head); want > 0 && from < int64(len(b)) && size+from == p.start+int64(len(p.head)) {
				p.head = append(p.head, b[from:min(from+int64(want), int64(len(b)))]...)
			}
		}
		size += int64(len(b))
	}

	buf := make([]byte, 1<<20)
	for {
		n, err := content.Read(buf)
		if keep(buf[:n]); size > most {
			return size, refuse("store an image that grows to its disk when it first boots", "the image is larger than %d GiB",
				most>>30)
		}
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return size, err
		}
	}
}

// ReadLayout reads the partition table in the first HeadSize bytes of a disk image.
func ReadLayout(head []byte) Layout { return readTable(head).layout() }

// readTable reads the partition table from the first bytes of a disk.
func readTable(head []byte) table {
	small, is512 := readGPT(head, 512)
	large, is4096 := readGPT(head, 4096)
	switch {
	case is512 && is4096:
		small.sector = 0
		return small
	case is512:
		return small
	case is4096:
		return large
	}
	return readMBR(head)
}

// layout returns what a disk must have so that the table is valid on it.
func (t table) layout() Layout {
	l := Layout{SectorSize: t.sector}
	for _, p := range t.parts {
		l.End = max(l.End, p.end)
	}
	return l
}

func readGPT(head []byte, sector int) (t table, ok bool) {
	if len(head) < 3*sector || string(head[sector:sector+8]) != "EFI PART" {
		return t, false
	}

	h := head[sector : 2*sector]
	entries, count, size := binary.LittleEndian.Uint64(h[72:]), binary.LittleEndian.Uint32(h[80:]),
		binary.LittleEndian.Uint32(h[84:])
	length, sum := binary.LittleEndian.Uint32(h[12:]), binary.LittleEndian.Uint32(h[16:])
	if length < 92 || int(length) > sector || size < 128 || size > 4096 || count > 1024 || entries > HeadSize {
		return t, false
	}

	plain := append([]byte{}, h[:length]...)
	copy(plain[16:20], make([]byte, 4))
	if crc32.ChecksumIEEE(plain) != sum {
		return t, false
	}

	t.name, t.sector = "GPT", sector
	for n := range int(count) {
		at := int(entries)*sector + n*int(size)
		if at+128 > len(head) || len(t.parts) == maxParts {
			break
		}

		e := head[at : at+128]
		if [16]byte(e[:16]) == ([16]byte{}) {
			continue
		}

		first, last := binary.LittleEndian.Uint64(e[32:]), binary.LittleEndian.Uint64(e[40:])
		if first > last || last > 1<<50 {
			continue
		}

		t.parts = append(t.parts, partition{start: int64(first) * int64(sector), end: (int64(last) + 1) * int64(sector)})
	}

	return t, true
}

// readMBR reads the four partition entries of a boot sector. If program code of a file system is in their place,
// readMBR returns an empty table.
func readMBR(head []byte) (t table) {
	if len(head) < 512 || head[510] != 0x55 || head[511] != 0xaa {
		return t
	}

	for n := range 4 {
		e := head[446+16*n : 462+16*n]
		start, count := int64(binary.LittleEndian.Uint32(e[8:])), int64(binary.LittleEndian.Uint32(e[12:]))
		switch {
		case e[0] != 0 && e[0] != 0x80:
			return table{} // program code in the boot sector of a file system
		case e[4] == 0 || count == 0:
			continue
		}

		p := partition{start: start * 512, end: (start + count) * 512}
		if e[4] == 0xee { // the protective entry of a GPT that cannot be read; the entry covers the whole disk, whatever its size
			p.end = 0
		} else {
			t.sector = 512
		}

		t.parts = append(t.parts, p)
	}
	if len(t.parts) > 0 {
		t.name = "MBR"
	}
	return t
}
