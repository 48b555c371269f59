// Package fakeloader makes UEFI programs with the section .sbat, for tests.
package fakeloader

import "encoding/binary"

// Format is the first line of a section .sbat.
const Format = "sbat,1,SBAT Version,sbat,1,https://github.com/rhboot/shim/blob/main/SBAT.md\n"

// Line returns a line of a section .sbat with the given start, such as "shim,4".
func Line(start string) string { return start + ",Vendor,package,1.2-3,https://example.com\n" }

// Program returns a UEFI program for x64 whose only section is .sbat with the given text, or which has no section.
// If signed, it has a table of signatures, with one that is empty.
func Program(text string, signed bool) []byte {
	const (
		headers, align = 0x200, 0x200
		pe             = 0x40        // where the PE header is, behind the DOS header
		optional       = pe + 4 + 20 // the optional header, behind the COFF header
		directories    = optional + 112
		table          = optional + 240 // of sections
	)
	raw := (len(text) + align - 1) / align * align
	b := make([]byte, headers+raw)
	put16 := func(at, v int) { binary.LittleEndian.PutUint16(b[at:], uint16(v)) }
	put32 := func(at, v int) { binary.LittleEndian.PutUint32(b[at:], uint32(v)) }

	copy(b, "MZ")
	put32(0x3c, pe)
	copy(b[pe:], "PE\x00\x00")
	put16(pe+4, 0x8664) // AMD64
	put16(pe+4+16, 240) // size of the optional header
	put16(optional, 0x20b)
	put32(optional+108, 16) // directories
	if text != "" {
		put16(pe+4+2, 1) // sections
		copy(b[table:], ".sbat")
		put32(table+8, len(text))
		put32(table+12, 0x1000)
		put32(table+16, raw)
		put32(table+20, headers)
		copy(b[headers:], text)
	}
	if signed {
		put32(directories+4*8, len(b))
		put32(directories+4*8+4, 8)
		b = append(b, 8, 0, 0, 0, 0, 2, 2, 0) // length, revision, type
	}
	return b
}
