package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"unicode/utf16"
)

// EDK II's variable store follows the header of its firmware volume: first the store's header, then
// the variables.
const (
	nvStoreGUID = "\x78\x2c\xf3\xaa\x7b\x94\x9a\x43\xa1\x80\x2e\x14\x4e\xc3\x77\x92" // authenticated variables
	nvStore     = 28                                                                 // bytes in the store's header
	nvVariable  = 60                                                                 // bytes in the header of a variable
	nvStart     = 0x55aa
	nvAdded     = 0x3f // complete and valid; further bits are cleared when it is replaced or deleted
	nvDeleted   = 0x3d
	nvMoving    = 0x3e // being replaced: it is valid until the new one is
	// nonvolatile, at boot and at run time
	nvAttributes = 7
)

// efiGlobal is the vendor GUID of boot entries: 8be4df61-93ca-11d2-aa0d-00e098032b8c.
const efiGlobal = "\x61\xdf\xe4\x8b\xca\x93\xd2\x11\xaa\x0d\x00\xe0\x98\x03\x2b\x8c"

// nvVar is a valid variable in the store.
type nvVar struct {
	at    int // offset of its header
	name  string
	value []byte
}

// nvram reads the firmware's variable store of a UEFI machine. It returns the whole file, its
// variables, and the offset for a new one.
func (m *Machine) nvram() (all []byte, vars []nvVar, end int, err error) {
	if all, err = os.ReadFile(m.path("vars.fd")); err != nil {
		return nil, nil, 0, err
	}
	at := bytes.Index(all, []byte(nvStoreGUID))
	if at < 0 || at+nvStore > len(all) {
		return nil, nil, 0, errors.New("reading the firmware's memory: there is no store of variables")
	}
	limit := at + int(binary.LittleEndian.Uint32(all[at+16:]))
	if limit > len(all) {
		return nil, nil, 0, errors.New("reading the firmware's memory: its store is cut short")
	}
	at += nvStore
	for at+nvVariable <= limit && binary.LittleEndian.Uint16(all[at:]) == nvStart {
		name, value := int(binary.LittleEndian.Uint32(all[at+36:])), int(binary.LittleEndian.Uint32(all[at+40:]))
		data := at + nvVariable + name
		if name > limit || value > limit || data+value > limit {
			return nil, nil, 0, fmt.Errorf("reading the firmware's memory: a variable at %#x that does not end", at)
		}
		if s := all[at+2]; (s == nvAdded || s == nvMoving) && string(all[at+44:at+60]) == efiGlobal {
			vars = append(vars, nvVar{at, fromUTF16(all[at+nvVariable : data]), all[data : data+value]})
		}
		at = (data + value + 3) &^ 3
	}
	return all, vars, at, nil
}

var bootEntry = regexp.MustCompile(`^Boot[0-9A-F]{4}$`)

// BootEntries returns the names of the boot entries in the firmware of a UEFI machine, by their
// variable, such as Boot0003.
func (m *Machine) BootEntries() (map[string]string, error) {
	_, vars, _, err := m.nvram()
	entries := map[string]string{}
	for _, v := range vars {
		if bootEntry.MatchString(v.name) && len(v.value) > 6 {
			entries[v.name] = fromUTF16(v.value[6:])
		}
	}
	return entries, err
}

// AddBootEntry adds a boot entry for the first partition of the disk to the firmware of a UEFI
// machine, at the end of its boot order, like the installer of an operating system. It returns the
// variable of the entry. The machine must be off.
func (m *Machine) AddBootEntry(label string) (string, error) {
	if m.on() {
		return "", fmt.Errorf("adding a boot entry to %q: it is on", m.spec.Name)
	}
	all, vars, end, err := m.nvram()
	if err != nil {
		return "", err
	}
	path, err := m.firstPartition()
	if err != nil {
		return "", fmt.Errorf("adding a boot entry to %q: %w", m.spec.Name, err)
	}
	var name string
	used := map[string]bool{}
	var order []byte
	for _, v := range vars {
		used[v.name] = true
		if v.name == "BootOrder" {
			order = v.value
			all[v.at+2] = nvDeleted
		}
	}
	number := uint16(0x40)
	for name = "Boot0040"; used[name]; name = fmt.Sprintf("Boot%04X", number) {
		number++
	}
	file := toUTF16(`\EFI\BOOT\BOOTX64.EFI`)
	path = append(path, 4, 4, byte(4+len(file)), 0)
	path = append(append(path, file...), 0x7f, 0xff, 4, 0)
	option := binary.LittleEndian.AppendUint32(nil, 1) // active
	option = binary.LittleEndian.AppendUint16(option, uint16(len(path)))
	option = append(append(option, toUTF16(label)...), path...)
	for _, v := range []nvVar{
		{name: name, value: option},
		{name: "BootOrder", value: binary.LittleEndian.AppendUint16(bytes.Clone(order), number)},
	} {
		b := v.bytes()
		if end+len(b) > len(all) || bytes.Count(all[end:end+len(b)], []byte{0xff}) < len(b) {
			return "", fmt.Errorf("adding a boot entry to %q: the firmware's memory is full", m.spec.Name)
		}
		copy(all[end:], b)
		end = (end + len(b) + 3) &^ 3
	}
	return name, os.WriteFile(m.path("vars.fd"), all, 0o644)
}

// bytes encodes the variable for the store.
func (v nvVar) bytes() []byte {
	name := toUTF16(v.name)
	b := make([]byte, nvVariable)
	binary.LittleEndian.PutUint16(b, nvStart)
	b[2] = nvAdded
	binary.LittleEndian.PutUint32(b[4:], nvAttributes)
	binary.LittleEndian.PutUint32(b[36:], uint32(len(name)))
	binary.LittleEndian.PutUint32(b[40:], uint32(len(v.value)))
	copy(b[44:], efiGlobal)
	return append(append(b, name...), v.value...)
}

// firstPartition returns the device path of the first partition in the disk's GPT (UEFI
// specification, hard drive media).
func (m *Machine) firstPartition() ([]byte, error) {
	const sector = 512
	f, err := os.Open(m.DiskPath())
	if err != nil {
		return nil, err
	}
	defer f.Close() // opened only for reading
	b := make([]byte, 2*sector)
	if _, err := f.ReadAt(b, sector); err != nil {
		return nil, err
	}
	e := b[sector:]
	first, last := binary.LittleEndian.Uint64(e[32:]), binary.LittleEndian.Uint64(e[40:])
	if string(b[:8]) != "EFI PART" || first == 0 {
		return nil, errors.New("its disk has no first partition")
	}
	node := []byte{4, 1, 42, 0, 1, 0, 0, 0}
	node = binary.LittleEndian.AppendUint64(node, first)
	node = binary.LittleEndian.AppendUint64(node, last-first+1)
	node = append(node, e[16:32]...) // the partition's own GUID
	return append(node, 2, 2), nil   // of a GPT, by its GUID
}

// toUTF16 encodes text as UEFI does, with a zero at its end.
func toUTF16(text string) []byte {
	var b []byte
	for _, u := range utf16.Encode([]rune(text + "\x00")) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

// fromUTF16 decodes text up to its zero.
func fromUTF16(b []byte) string {
	var text []uint16
	for ; len(b) >= 2 && (b[0] != 0 || b[1] != 0); b = b[2:] {
		text = append(text, binary.LittleEndian.Uint16(b))
	}
	return string(utf16.Decode(text))
}
