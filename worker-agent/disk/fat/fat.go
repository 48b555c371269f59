// Package fat makes FAT16 volumes, and reads the label and the serial number of FAT volumes.
package fat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
)

// rootEntries is the number of 32-byte entries in the root directory.
const rootEntries = 512

// fatVolume is a FAT16 volume in memory (Microsoft's FAT specification 1.03).
type fatVolume struct {
	bytes    []byte
	sector   int // sector size in bytes
	cluster  int // cluster size in bytes
	clusters int
	table    int // size of one file allocation table in bytes
	next     int // first free cluster
	entry    int // offset of the next free entry in the root directory
}

// Make16 returns a FAT16 volume of size bytes with files in its root directory. All files have long names. The volume contains no
// current time: the same input gives the same bytes.
//
// A cluster is one sector, or two sectors of 512 bytes. The volume therefore needs about 16 MiB with 512-byte sectors and 32 MiB with
// 4096-byte sectors. Make16 returns an error for a size with too few or too many clusters.
func Make16(size int64, sector int, label string, files []File) ([]byte, error) {
	v := &fatVolume{bytes: make([]byte, size), sector: sector, next: 2}
	if err := v.layOut(); err != nil {
		return nil, err
	}

	v.writeBootSector(label)

	v.put16(v.tableAt(), 0xfff8)
	v.put16(v.tableAt()+2, 0xffff)
	v.entry = v.rootAt()
	copy(v.bytes[v.entry:], fmt.Sprintf("%-11s", label))
	v.bytes[v.entry+11] = 0x08 // the entry is the volume label
	v.entry += 32

	for i, f := range files {
		if err := v.addFile(f, i+1); err != nil {
			return nil, err
		}
	}

	copy(v.bytes[v.tableAt()+v.table:v.rootAt()], v.bytes[v.tableAt():v.tableAt()+v.table])
	return v.bytes, nil
}

// layOut computes the sizes of the clusters and tables.
func (v *fatVolume) layOut() error {
	perCluster := 1
	if v.sector == 512 {
		perCluster = 2
	}

	v.cluster = perCluster * v.sector

	// The size of a table and the number of clusters depend on each other: compute both again and again until they fit.
	sectors := 1
	for range 16 {
		v.clusters = (len(v.bytes)/v.sector - 1 - 2*sectors - rootEntries*32/v.sector) / perCluster
		sectors = ((v.clusters+2)*2 + v.sector - 1) / v.sector
	}

	v.table = sectors * v.sector
	if v.clusters < 4085 || v.clusters > 65524 {
		return fmt.Errorf("making a FAT16 volume: %d bytes in sectors of %d bytes give an invalid number of clusters, %d", len(v.bytes), v.sector,
			v.clusters)
	}
	return nil
}

func (v *fatVolume) tableAt() int { return v.sector }
func (v *fatVolume) rootAt() int  { return v.sector + 2*v.table }
func (v *fatVolume) dataAt() int  { return v.rootAt() + rootEntries*32 }

func (v *fatVolume) put16(at, n int) { binary.LittleEndian.PutUint16(v.bytes[at:], uint16(n)) }
func (v *fatVolume) put32(at, n int) { binary.LittleEndian.PutUint32(v.bytes[at:], uint32(n)) }

func (v *fatVolume) writeBootSector(label string) {
	b := v.bytes
	copy(b, "\xeb\x3c\x90INGOT   ")
	v.put16(11, v.sector)
	b[13] = byte(v.cluster / v.sector)
	v.put16(14, 1) // number of reserved sectors; only the boot sector is reserved
	b[16] = 2      // number of allocation tables
	v.put16(17, rootEntries)

	if total := len(b) / v.sector; total < 65536 {
		v.put16(19, total)
	} else {
		v.put32(32, total)
	}

	b[21] = 0xf8 // fixed disk
	v.put16(22, v.table/v.sector)
	v.put16(24, 63) // geometry, which no system uses any more
	v.put16(26, 255)
	b[36], b[38] = 0x80, 0x29
	v.put32(39, 0x1e507001) // serial number
	copy(b[43:54], fmt.Sprintf("%-11s", label))
	copy(b[54:62], "FAT16   ")
	v.put16(510, 0xaa55)
}

// addFile adds f as file number n, from 1.
func (v *fatVolume) addFile(f File, n int) error {
	first, need := 0, (len(f.Contents)+v.cluster-1)/v.cluster
	if need > v.clusters+2-v.next {
		return fmt.Errorf("%q has %d bytes, more than the volume has free", f.Name, len(f.Contents))
	}

	if need > 0 {
		first = v.next
		copy(v.bytes[v.dataAt()+(first-2)*v.cluster:], f.Contents)
		for k := range need {
			link := v.next + 1
			if k == need-1 {
				link = 0xffff
			}
			v.put16(v.tableAt()+2*v.next, link)
			v.next++
		}
	}

	// No system reads the short name, but it must exist and be unique.
	short := strings.ToUpper(fmt.Sprintf("%.6s~%d", strings.ReplaceAll(f.Name, "-", "_"), n))
	entries, err := directoryEntries(f.Name, short)
	if err != nil {
		return err
	}

	copy(v.bytes[v.entry:], entries)
	v.entry += len(entries)
	v.put16(v.entry-32+24, 0x21) // 1980-01-01, because a missing date would be invalid
	v.put16(v.entry-32+26, first)
	v.put32(v.entry-32+28, len(f.Contents))
	return nil
}

// directoryEntries returns the directory entries of a file: the pieces of its long name, the last one first, then its short name.
func directoryEntries(long, short string) ([]byte, error) {
	if len(short) > 8 {
		return nil, errors.New("the short name has more than 8 letters")
	}

	name := fmt.Sprintf("%-11s", short)
	var sum byte
	for _, c := range []byte(name) {
		sum = sum>>1 | sum<<7
		sum += c
	}

	letters := append(utf16.Encode([]rune(long)), 0)
	for len(letters)%13 != 0 {
		letters = append(letters, 0xffff)
	}
	if len(long)%13 == 0 {
		letters = letters[:len(long)] // a name of this length has no end mark
	}

	var out []byte
	for n := len(letters) / 13; n > 0; n-- {
		e := make([]byte, 32)
		e[0] = byte(n)
		if n == len(letters)/13 {
			e[0] |= 0x40
		}

		e[11], e[13] = 0x0f, sum
		for i, c := range letters[(n-1)*13 : n*13] {
			at := 1 + 2*i
			switch {
			case i >= 11:
				at = 28 + 2*(i-11)
			case i >= 5:
				at = 14 + 2*(i-5)
			}

			binary.LittleEndian.PutUint16(e[at:], c)
		}

		out = append(out, e...)
	}

	e := make([]byte, 32)
	copy(e, name)
	e[11] = 0x20
	return append(out, e...), nil
}
