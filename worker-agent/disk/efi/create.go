package efi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// A Loader is a program on a partition of a GPT, which a boot entry starts.
type Loader struct {
	Partition parttable.Span
	Sector    int64  // size of the disk's sectors, in bytes
	File      string // path on the partition; slashes count as backslashes
}

// Create makes an active boot entry with the description label that starts the loader, and adds it to the end of BootOrder. If the entry
// exists, Create changes nothing; if it starts another loader, it gets the new one. Create returns an error if several entries have the
// description.
func (b *BootManager) Create(label string, l Loader) error {
	option, err := l.option(label)
	if err != nil {
		return fmt.Errorf("creating the boot entry %q: %w", label, err)
	}
	parsed, err := parseLoadOption(option)
	if err != nil {
		return fmt.Errorf("creating the boot entry %q: %w", label, err)
	}

	number, at := 0, -1
	for i, e := range b.entries { // sorted by number
		if e.bad == nil && e.option.description == label {
			if at >= 0 {
				return fmt.Errorf("creating the boot entry %q: entries %04X and %04X both have this description: delete one of them", label,
					b.entries[at].number, e.number)
			}
			at = i
		}
		if int(e.number) == number {
			number++
		}
	}
	if at >= 0 {
		number = int(b.entries[at].number)
	}
	if number > 0xffff {
		return fmt.Errorf("creating the boot entry %q: all numbers are in use", label)
	}

	entry := efiEntry{number: uint16(number), option: parsed}
	if at < 0 || b.entries[at].option != parsed {
		if err := b.store(entry, option); err != nil {
			return err
		}
	}
	if slices.Contains(b.order, entry.number) {
		return nil
	}
	order := append(slices.Clone(b.order), entry.number)
	if err := b.put("BootOrder", order); err != nil {
		return err
	}
	b.order = order
	return nil
}

// store writes a boot entry and reads it back.
func (b *BootManager) store(e efiEntry, option []byte) error {
	name := bootVariable(e.number)
	if err := b.vars.Set(name, option); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	back, err := b.vars.Get(name)
	if err != nil || !bytes.Equal(back, option) {
		return errors.Join(fmt.Errorf("reading %s back: the firmware did not store the written value", name), err)
	}
	b.entries = slices.DeleteFunc(b.entries, func(x efiEntry) bool { return x.number == e.number })
	b.entries = append(b.entries, e)
	slices.SortFunc(b.entries, func(x, y efiEntry) int { return int(x.number) - int(y.number) })
	b.log("created %s %q: %s on partition %s", name, e.option.description, e.option.file, e.option.disk)
	return nil
}

// option encodes a load option (UEFI specification 2.10, §3.1.3) for the loader.
func (l Loader) option(label string) ([]byte, error) {
	signature, err := parttable.ParseGUID(l.Partition.UUID)
	if err != nil {
		return nil, fmt.Errorf("partition %d is not in a GPT, so UEFI firmware may not find it", l.Partition.Number)
	}
	le := binary.LittleEndian
	drive := le.AppendUint32(nil, uint32(l.Partition.Number))
	drive = le.AppendUint64(drive, uint64(l.Partition.Start/l.Sector))
	drive = le.AppendUint64(drive, uint64(l.Partition.Size/l.Sector))
	drive = append(append(drive, signature...), formatGPT, signatureGUID)
	path := slices.Concat(
		pathNode(pathMedia, pathHardDrive, drive),
		pathNode(pathMedia, pathFile, appendUTF16(nil, strings.ReplaceAll(l.File, "/", `\`))),
		pathNode(pathEnd, pathEndWhole, nil),
	)

	b := le.AppendUint32(nil, loadActive)
	b = le.AppendUint16(b, uint16(len(path)))
	return append(appendUTF16(b, label), path...), nil
}

func pathNode(kind, sub byte, data []byte) []byte {
	return append(binary.LittleEndian.AppendUint16([]byte{kind, sub}, uint16(4+len(data))), data...)
}

// appendUTF16 appends text, which ends with a zero.
func appendUTF16(b []byte, text string) []byte {
	for _, unit := range append(utf16.Encode([]rune(text)), 0) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return b
}
