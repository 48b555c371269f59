package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
)

// makeFAT16 returns a FAT16 volume (Microsoft's FAT specification 1.03) of
// size bytes with files in its root directory, all of them by long names.
// The same input gives the same bytes: it holds no times.
//
// The volume has one sector per cluster, which makes 16 MiB of 512-byte and
// 32 MiB of 4096-byte sectors a FAT16: other sizes may be refused.
func makeFAT16(size int64, sector int, label string, files []seedFile) ([]byte, error) {
	const rootEntries = 512
	spc := 1
	if sector == 512 {
		spc = 2
	}
	total := int(size) / sector
	rootSectors := rootEntries * 32 / sector
	fatSectors := 1
	clusters := 0
	for range 16 { // the table's size and the number of clusters depend on each other
		clusters = (total - 1 - 2*fatSectors - rootSectors) / spc
		fatSectors = ((clusters+2)*2 + sector - 1) / sector
	}
	if clusters < 4085 || clusters > 65524 {
		return nil, fmt.Errorf("%d bytes in sectors of %d are no FAT16", size, sector)
	}
	v := make([]byte, size)
	put16 := func(at int, n int) { binary.LittleEndian.PutUint16(v[at:], uint16(n)) }
	put32 := func(at int, n uint32) { binary.LittleEndian.PutUint32(v[at:], n) }

	copy(v, "\xeb\x3c\x90INGOT   ")
	put16(11, sector)
	v[13] = byte(spc)
	put16(14, 1) // reserved sectors: this one
	v[16] = 2    // tables
	put16(17, rootEntries)
	if total < 65536 {
		put16(19, total)
	} else {
		put32(32, uint32(total))
	}
	v[21] = 0xf8 // fixed disk
	put16(22, fatSectors)
	put16(24, 63) // geometry, of which nobody asks any more
	put16(26, 255)
	v[36], v[38] = 0x80, 0x29
	put32(39, 0x1e507001) // serial number
	copy(v[43:54], fmt.Sprintf("%-11s", label))
	copy(v[54:62], "FAT16   ")
	put16(510, 0xaa55)

	fat, root := sector, (1+2*fatSectors)*sector
	data := root + rootSectors*sector
	put16(fat, 0xfff8)
	put16(fat+2, 0xffff)

	at := root
	copy(v[at:], fmt.Sprintf("%-11s", label))
	v[at+11] = 0x08
	at += 32
	next := 2
	for i, f := range files {
		first := 0
		need := (len(f.contents) + spc*sector - 1) / (spc * sector)
		if need > clusters+2-next {
			return nil, fmt.Errorf("%q has %d bytes, more than are free", f.name, len(f.contents))
		}
		if need > 0 {
			first = next
			copy(v[data+(first-2)*spc*sector:], f.contents)
			for k := range need {
				link := next + 1
				if k == need-1 {
					link = 0xffff
				}
				put16(fat+2*next, link)
				next++
			}
		}
		// The short name is never looked at, but it must be there and differ.
		short := strings.ToUpper(fmt.Sprintf("%.6s~%d", strings.ReplaceAll(f.name, "-", "_"), i+1))
		entries, err := directoryEntries(f.name, short)
		if err != nil {
			return nil, err
		}
		copy(v[at:], entries)
		at += len(entries)
		put16(at-32+24, 0x21) // a day, 1980-01-01: none would be invalid
		put16(at-32+26, first)
		put32(at-32+28, uint32(len(f.contents)))
	}
	copy(v[fat+fatSectors*sector:root], v[fat:fat+fatSectors*sector])
	return v, nil
}

// directoryEntries returns the entries of a file called long: the pieces of
// the long name, last one first, then the short one.
func directoryEntries(long, short string) ([]byte, error) {
	if len(short) > 8 {
		return nil, errors.New("a short name of more than 8 letters")
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
		letters = letters[:len(long)] // it fits: no end mark
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
