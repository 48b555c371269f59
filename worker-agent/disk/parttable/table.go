package parttable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// Table is the part of a partition table that GPT and MBR have in common.
type Table struct {
	Kind  string // gpt, mbr, or "damaged gpt" if an MBR protects a GPT that cannot be read
	Parts []Span
}

// mbrSignature is the offset of the disk signature in an MBR.
const mbrSignature = 440

// Read reads the disk's GPT or, if there is none, its MBR. It returns ErrNoTable if there is neither.
func Read(r io.ReaderAt, size int64, sector int) (*Table, error) {
	g, err := readGPT(r, size, sector)
	if err == nil {
		return &Table{Kind: "gpt", Parts: g.Spans()}, nil
	}

	b := blockdev.ReadAt(r, 0, 512)
	if len(b) < 512 || !bytes.Equal(b[510:], []byte{0x55, 0xaa}) {
		return nil, errors.Join(ErrNoTable, err)
	}

	t := &Table{Kind: "mbr"}
	for i := range 4 {
		e := b[446+16*i:][:16]
		start, n := int64(binary.LittleEndian.Uint32(e[8:])), int64(binary.LittleEndian.Uint32(e[12:]))
		start, n = start*int64(sector), n*int64(sector)
		if e[0]&0x7f != 0 {
			return nil, ErrNoTable // the boot sector of a file system, not an MBR
		}
		if e[4] == 0 || n == 0 || start+n > size {
			continue
		}
		if e[4] == 0xee {
			return &Table{Kind: "damaged gpt"}, nil
		}

		t.Parts = append(t.Parts, Span{
			Number: i + 1, Start: start, Size: n, Kind: fmt.Sprintf("0x%02x", e[4]),
			UUID: fmt.Sprintf("%08x-%02x", g32(b, mbrSignature), i+1),
		})
	}
	if len(t.Parts) == 0 {
		return nil, ErrNoTable
	}
	return t, nil
}

// IsDamaged reports whether err means that a table is damaged, as opposed to missing.
func IsDamaged(err error) bool {
	var both interface{ Unwrap() []error }
	if !errors.As(err, &both) {
		return false
	}
	return slices.ContainsFunc(both.Unwrap(), func(e error) bool { return !errors.Is(e, ErrNoTable) })
}
