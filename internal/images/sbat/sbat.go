// Package sbat reads the generation numbers of UEFI programs (Secure Boot Advanced Targeting) and compares them
// with minimum generations. The format is described in SBAT.md in the sources of shim,
// https://github.com/rhboot/shim/blob/main/SBAT.md.
package sbat

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/pe"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// A Component is a line of the section .sbat of a program.
type Component struct {
	Name       string
	Generation int    // grows when a vulnerability is fixed; 1 to 65535
	Version    string // version of the package that contains the component, for operators
}

// A Program holds what the headers and the section .sbat of a UEFI program contain.
type Program struct {
	Components []Component // without the line of the format itself; empty without a section .sbat
	Signed     bool        // the program has a table of signatures, which are not verified
}

// String returns a line for operators, such as "shim 4, shim.debian 1 (15.8), signed".
func (p Program) String() string {
	var names []string
	for _, c := range p.Components {
		names = append(names, fmt.Sprintf("%s %d", c.Name, c.Generation))
	}
	text := cmp.Or(strings.Join(names, ", "), "no SBAT generations")
	if n := len(p.Components); n > 0 && p.Components[n-1].Version != "" {
		text += " (" + p.Components[n-1].Version + ")"
	}
	if p.Signed {
		return text + ", signed"
	}
	return text + ", not signed"
}

// generation returns the generation of a component, and whether the program has that component.
func (p Program) generation(name string) (int, bool) {
	i := slices.IndexFunc(p.Components, func(c Component) bool { return c.Name == name })
	if i < 0 {
		return 0, false
	}
	return p.Components[i].Generation, true
}

// ErrNotUEFI means that the first bytes of a file are not those of a UEFI program.
var ErrNotUEFI = errors.New("not a UEFI program")

const (
	section    = ".sbat"
	maxSection = 64 << 10 // bytes; the sections of shim and GRUB have a few hundred
	maxHeaders = 64 << 10 // bytes from the PE signature to the end of the table of sections
	fields     = 6        // number in a line: name, generation, vendor, package, version, URL
)

// Read reads the generations of a UEFI program. If r is not a UEFI program, the error wraps ErrNotUEFI; if the program
// or its section .sbat is malformed, it does not. Read reads only the headers and that section, because the server
// calls it for each request of a loader, and debug/pe would read thousands of symbols of shim.
func Read(r io.ReaderAt) (Program, error) {
	dos := make([]byte, 64)
	if n, err := r.ReadAt(dos, 0); err != nil && !errors.Is(err, io.EOF) {
		return Program{}, err
	} else if n < len(dos) || string(dos[:2]) != "MZ" {
		return Program{}, ErrNotUEFI
	}

	at := int64(binary.LittleEndian.Uint32(dos[60:]))
	p, s, err := readHeaders(bufio.NewReader(io.NewSectionReader(r, at, maxHeaders)))
	if err != nil {
		return Program{}, fmt.Errorf("reading the headers of a UEFI program: %w", err)
	}
	if s == nil {
		return p, nil
	}

	size := s.SizeOfRawData // padded to the file alignment
	if s.VirtualSize > 0 {
		size = min(size, s.VirtualSize)
	}
	if size > maxSection {
		return p, fmt.Errorf("section %s has %d bytes, more than %d", section, size, maxSection)
	}
	b := make([]byte, size)
	if n, err := r.ReadAt(b, int64(s.PointerToRawData)); n < len(b) {
		return p, fmt.Errorf("reading section %s: %w", section, err)
	}
	p.Components, err = parse(b)
	return p, err
}

// readHeaders reads the headers of a program, beginning with its PE signature. found is the header of the section
// .sbat, or nil if there is none. Of p, only Signed is set.
func readHeaders(r io.Reader) (p Program, found *pe.SectionHeader32, err error) {
	var signature [4]byte
	var h pe.FileHeader
	if err := read(r, &signature, &h); err != nil {
		return p, nil, err
	}
	if string(signature[:]) != "PE\x00\x00" {
		return p, nil, errors.New("no PE signature")
	}
	optional := make([]byte, h.SizeOfOptionalHeader)
	if err := read(r, optional); err != nil {
		return p, nil, err
	}

	for range h.NumberOfSections {
		var s pe.SectionHeader32
		if err := read(r, &s); err != nil {
			return p, nil, err
		}
		if name := bytes.TrimRight(s.Name[:], "\x00"); string(name) == section && found == nil {
			found = &s
		}
	}
	return Program{Signed: signed(optional)}, found, nil
}

func read(r io.Reader, values ...any) error {
	for _, v := range values {
		if err := binary.Read(r, binary.LittleEndian, v); err != nil {
			return err
		}
	}
	return nil
}

// signed reports whether an optional PE header refers to a table of signatures.
func signed(optional []byte) bool {
	var table pe.DataDirectory
	var count uint32
	switch h64, h32 := (pe.OptionalHeader64{}), (pe.OptionalHeader32{}); {
	case decode(optional, &h64) && h64.Magic == 0x20b:
		count, table = h64.NumberOfRvaAndSizes, h64.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_SECURITY]
	case decode(optional, &h32) && h32.Magic == 0x10b:
		count, table = h32.NumberOfRvaAndSizes, h32.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_SECURITY]
	}
	return count > pe.IMAGE_DIRECTORY_ENTRY_SECURITY && table.Size > 0
}

// decode decodes header from b. If b is too short, the missing bytes are zero.
func decode(b []byte, header any) bool {
	whole := make([]byte, binary.Size(header))
	copy(whole, b)
	_, err := binary.Decode(whole, binary.LittleEndian, header)
	return err == nil
}

// parse reads the lines of a section .sbat, which ends at its first zero byte. Commas separate the fields and
// cannot be quoted. The first line describes the format itself.
func parse(b []byte) ([]Component, error) {
	b, _, _ = bytes.Cut(b, []byte{0})
	text := strings.TrimPrefix(string(b), "\ufeff")
	var out []Component
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSuffix(line, "\r"); line == "" {
			continue
		}
		c, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("line %d of section %s: %w", i+1, section, err)
		}
		out = append(out, c)
	}

	if len(out) == 0 || out[0].Name != "sbat" || out[0].Generation != 1 {
		return nil, fmt.Errorf("section %s does not begin with \"sbat,1,\"", section)
	}
	return out[1:], nil
}

func parseLine(line string) (Component, error) {
	cells := strings.Split(line, ",")
	if len(cells) < fields {
		return Component{}, fmt.Errorf("%d fields instead of %d: %q", len(cells), fields, line)
	}
	if !validName(cells[0]) {
		return Component{}, fmt.Errorf("invalid component name %q", cells[0])
	}
	n, err := strconv.ParseUint(cells[1], 10, 16)
	if err != nil || n == 0 {
		return Component{}, fmt.Errorf("invalid generation %q of %s; must be a number from 1 to %d", cells[1], cells[0], math.MaxUint16)
	}
	if version := cells[4]; version != plaintext.ASCII(version, len(version)) {
		return Component{}, fmt.Errorf("invalid version %q of %s", version, cells[0])
	}
	return Component{Name: cells[0], Generation: int(n), Version: cells[4]}, nil
}

func validName(name string) bool {
	return name != "" && len(name) <= 128 && name == plaintext.ASCII(name, len(name)) && !strings.ContainsAny(name, " ,")
}

// A File is a UEFI program in a directory.
type File struct {
	Name    string
	Program Program
	Err     error // the program is malformed or cannot be read
}

// ReadDir reads the regular files in dir whose names end in .efi, sorted by name.
func ReadDir(dir string) ([]File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []File
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if st, err := os.Stat(path); filepath.Ext(path) != ".efi" || err != nil || !st.Mode().IsRegular() {
			continue
		}
		f := File{Name: e.Name()}
		f.Program, f.Err = readFile(path)
		out = append(out, f)
	}
	return out, nil
}

func readFile(path string) (Program, error) {
	f, err := os.Open(path)
	if err != nil {
		return Program{}, err
	}
	defer f.Close()
	return Read(f)
}
