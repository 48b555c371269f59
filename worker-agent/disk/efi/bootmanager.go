// Package efi reads and changes the firmware's boot entries.
package efi

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// BootManager is the firmware's list of boot entries.
type BootManager struct {
	vars    Variables
	log     func(format string, args ...any)
	entries []efiEntry // sorted by number
	order   []uint16
	next    int // -1 = none
	deleted []string
}

type efiEntry struct {
	number uint16
	option loadOption
	bad    error // why the entry cannot be parsed; such an entry is listed but never changed
}

// bootName matches the name of a boot entry's variable, such as Boot0003. Its hexadecimal digits are capitals.
var bootName = regexp.MustCompile(`^Boot([0-9A-F]{4})$`)

func bootVariable(n uint16) string { return fmt.Sprintf("Boot%04X", n) }

// ReadBootManager reads the boot entries. names are the names of the firmware's variables. log gets a line for each change and each
// unreadable entry.
func ReadBootManager(vars Variables, names []string, log func(format string, args ...any)) (*BootManager, error) {
	b := &BootManager{vars: vars, log: log}
	return b, b.read(names)
}

// read reads the entries, BootOrder and BootNext.
func (b *BootManager) read(names []string) error {
	b.entries, b.order, b.next = nil, nil, -1
	for _, name := range names {
		m := bootName.FindStringSubmatch(name)
		if m == nil {
			continue
		}

		n, err := strconv.ParseUint(m[1], 16, 16)
		if err != nil {
			continue
		}

		value, err := b.vars.Get(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}

		e := efiEntry{number: uint16(n)}
		if e.option, e.bad = parseLoadOption(value); e.bad != nil {
			b.log("%s cannot be parsed, so it is not changed: %v", name, e.bad)
		}

		b.entries = append(b.entries, e)
	}

	slices.SortFunc(b.entries, func(x, y efiEntry) int { return int(x.number) - int(y.number) })
	order, err := b.numbers("BootOrder")
	if err != nil {
		return err
	}

	b.order = order
	next, err := b.numbers("BootNext")
	if err != nil {
		return err
	}
	if len(next) == 1 {
		b.next = int(next[0])
	}
	return nil
}

// numbers returns the boot entry numbers in a variable; if the variable is missing, there are none.
func (b *BootManager) numbers(name string) ([]uint16, error) {
	value, err := b.vars.Get(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(value)%2 != 0 {
		err = fmt.Errorf("the value has %d bytes; must be an even number", len(value))
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	out := make([]uint16, 0, len(value)/2)
	for at := 0; at < len(value); at += 2 {
		out = append(out, binary.LittleEndian.Uint16(value[at:]))
	}
	return out, nil
}

// put writes a list of boot entry numbers to a variable and reads it back. It does nothing if the variable already holds the list.
func (b *BootManager) put(name string, list []uint16) error {
	value := make([]byte, 0, 2*len(list))
	for _, n := range list {
		value = binary.LittleEndian.AppendUint16(value, n)
	}
	if now, err := b.vars.Get(name); err == nil && bytes.Equal(now, value) {
		return nil
	}

	if len(value) == 0 {
		// An empty value would delete the variable (UEFI specification §8.2.2): delete it explicitly.
		if err := b.vars.Delete(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("deleting %s: %w", name, err)
		}
		return nil
	}
	if err := b.vars.Set(name, value); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}

	back, err := b.vars.Get(name)
	if err != nil || !bytes.Equal(back, value) {
		return errors.Join(fmt.Errorf("reading %s back: the firmware did not store the written value", name), err)
	}
	return nil
}

// DeleteLabels deletes the entries whose description is in labels.
func (b *BootManager) DeleteLabels(labels []string) error {
	if len(labels) == 0 {
		return nil
	}
	return b.delete(func(e efiEntry) bool { return slices.Contains(labels, e.option.description) })
}

// DeleteStale deletes each entry whose loader is on a partition that does not exist. The keys of there are the PARTUUIDs of all
// partitions that exist.
func (b *BootManager) DeleteStale(there map[string]bool) error {
	return b.delete(func(e efiEntry) bool { return e.option.disk != "" && !there[e.option.disk] })
}

// delete deletes the entries for which the given function returns true. It first removes each entry from BootOrder, so that after
// an interruption the next attempt still finds the entry.
func (b *BootManager) delete(which func(efiEntry) bool) error {
	for _, e := range slices.Clone(b.entries) {
		if e.bad != nil || !which(e) {
			continue
		}

		name := bootVariable(e.number)
		if slices.Contains(b.order, e.number) {
			order := slices.DeleteFunc(slices.Clone(b.order), func(n uint16) bool { return n == e.number })
			if err := b.put("BootOrder", order); err != nil {
				return err
			}
			b.order = order
		}

		if b.next == int(e.number) {
			if err := b.vars.Delete("BootNext"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("deleting BootNext: %w", err)
			}
			b.next = -1
		}
		if err := b.vars.Delete(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("deleting %s: %w", name, err)
		}
		if _, err := b.vars.Get(name); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("deleting %s: the firmware still has it", name)
		}

		b.entries = slices.DeleteFunc(b.entries, func(x efiEntry) bool { return x.number == e.number })
		b.deleted = append(b.deleted, name)
		b.log("deleted %s %q", name, e.option.description)
	}
	return nil
}

// find returns the number of a boot entry. what is the number or the description of that entry.
func (b *BootManager) find(what string) (uint16, error) {
	digits := strings.TrimPrefix(what, "Boot")
	if n, err := strconv.ParseUint(digits, 16, 16); err == nil && len(digits) == 4 {
		if slices.ContainsFunc(b.entries, func(e efiEntry) bool { return e.number == uint16(n) }) {
			return uint16(n), nil
		}
	}

	var found []uint16
	there := make([]string, 0, len(b.entries))
	for _, e := range b.entries {
		there = append(there, fmt.Sprintf("%04X %q", e.number, e.option.description))
		if e.bad == nil && e.option.description == what {
			found = append(found, e.number)
		}
	}

	switch {
	case len(found) == 0:
		return 0, fmt.Errorf("finding the boot entry %q: not found among: %s", what, strings.Join(there, ", "))
	case len(found) > 1:
		return 0, fmt.Errorf("finding the boot entry %q: entries %04X and %04X both have this description", what, found[0], found[1])
	}
	return found[0], nil
}

// SetOrder moves the entries in want (numbers or descriptions) to the beginning of BootOrder.
func (b *BootManager) SetOrder(want []string) error {
	if len(want) == 0 {
		return nil
	}

	var order []uint16
	for _, w := range want {
		n, err := b.find(w)
		if err != nil {
			return err
		}
		if !slices.Contains(order, n) {
			order = append(order, n)
		}
	}

	for _, n := range b.order {
		if !slices.Contains(order, n) {
			order = append(order, n)
		}
	}
	if err := b.put("BootOrder", order); err != nil {
		return err
	}

	b.order = order
	return nil
}

// SetNext makes the firmware boot the entry want at the next boot only; "" changes nothing.
func (b *BootManager) SetNext(want string) error {
	if want == "" {
		return nil
	}
	n, err := b.find(want)
	if err != nil {
		return err
	}
	if err := b.put("BootNext", []uint16{n}); err != nil {
		return err
	}
	b.next = int(n)
	b.log("the next boot starts %s", bootVariable(n))
	return nil
}

// maxEFIText is the size limit of a label and of a path in a report, in bytes.
const maxEFIText = 64

// maxEFIOutput is the size limit of the list of entries in a report, in bytes.
const maxEFIOutput = 32 << 10

// Report adds the current boot entries, their order and the deleted entries to output.
func (b *BootManager) Report(output map[string]string) error {
	type shown struct {
		Number    string `json:"number"`
		Label     string `json:"label"`
		Active    bool   `json:"active"`
		Partition string `json:"partition,omitempty"`
		File      string `json:"file,omitempty"`
		Error     string `json:"error,omitempty"`
	}

	all := make([]shown, 0, len(b.entries))
	for _, e := range b.entries {
		s := shown{
			fmt.Sprintf("%04X", e.number), plaintext.Head(plaintext.Words(e.option.description), maxEFIText), e.option.active, e.option.disk,
			plaintext.Head(plaintext.Words(e.option.file), maxEFIText), "",
		}
		if e.bad != nil {
			s.Error = e.bad.Error()
		}
		all = append(all, s)
		b.log("%s %q %s %s", bootVariable(e.number), s.Label, s.Partition, s.File)
	}

	text, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encoding the boot entries: %w", err)
	}
	if len(text) > maxEFIOutput {
		text = fmt.Appendf(nil, `"%d entries, too many for a report"`, len(all))
	}

	var order []string
	for _, n := range b.order {
		order = append(order, fmt.Sprintf("%04X", n))
	}
	output["entries"], output["order"], output["deleted"] = string(text), strings.Join(order, ","),
		strings.Join(b.deleted, ",")
	if b.next >= 0 {
		output["next"] = fmt.Sprintf("%04X", b.next)
	}
	return nil
}
