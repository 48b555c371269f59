package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/action"
)

// EFIVariables are the firmware's global variables (UEFI specification 2.10,
// §3.3), by their names without the vendor's GUID.
type EFIVariables interface {
	// Names lists them. fs.ErrNotExist: the machine was not booted by UEFI.
	Names() ([]string, error)
	// Get returns a variable's value. fs.ErrNotExist: there is none.
	Get(name string) ([]byte, error)
	// Set writes a non-volatile variable with boot and runtime access.
	Set(name string, value []byte) error
	Delete(name string) error
}

// efiBoot lists and changes the firmware's boot entries.
//
//	DELETE_LABEL  delete the entries of these descriptions, one on each line
//	DELETE_STALE  true: delete the entries whose loader is on a partition that no disk of this machine has
//	BOOT_ORDER    these entries first, then the others as they were; numbers (0003) or descriptions, one on each line or
//	              separated by commas
//	BOOT_NEXT     start this entry once, next time
//	REQUIRED      true: a machine that was not booted by UEFI is a failure; else nothing is done on one
//
// Without any of these, it only lists the entries. Changes are read back; running it again changes
// nothing. Output: firmware, entries (JSON), deleted, order, next.
func (t *attempt) efiBoot(ctx context.Context) error {
	required, err := action.Bool(t.env, "REQUIRED", false)
	stale, e := action.Bool(t.env, "DELETE_STALE", false)
	if err := errors.Join(err, e); err != nil {
		return err
	}

	var names []string
	err = fs.ErrNotExist
	vars := t.agent.cfg.EFI
	if vars != nil {
		names, err = vars.Names()
	}

	if errors.Is(err, fs.ErrNotExist) {
		t.output["firmware"] = "bios"
		if required {
			return errors.New("listing the boot entries: this machine was not booted by UEFI, and REQUIRED is set")
		}
		t.logf("this machine was not booted by UEFI: it has no boot entries, nothing is done")
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing the boot entries: %w", err)
	}

	t.output["firmware"] = "uefi"
	b := &bootManager{vars: vars, log: t.logf}
	if err := b.read(names); err != nil {
		return err
	}

	steps := []func() error{
		func() error { return b.deleteLabels(lines(t.env["DELETE_LABEL"], "\n")) },
		func() error {
			if !stale {
				return nil
			}
			there, err := t.partitionsOfAll(ctx)
			if err != nil {
				return fmt.Errorf("finding stale boot entries: %w: nothing was deleted", err)
			}
			return b.deleteStale(there)
		},
		func() error { return b.setOrder(lines(t.env["BOOT_ORDER"], ",\n")) },
		func() error { return b.setNext(strings.TrimSpace(t.env["BOOT_NEXT"])) },
	}

	for i, step := range steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
		t.progress(int64(i+1), int64(len(steps)), "boot entries")
	}
	return b.report(t.output)
}

// lines splits text at any of seps and drops blank lines.
func lines(text, seps string) []string {
	var out []string
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(seps, r) }) {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// partitionsOfAll returns the PARTUUIDs of all partitions on all disks of the machine. A disk that
// cannot be read is an error: an entry is stale only if its partition is known to be gone.
func (t *attempt) partitionsOfAll(ctx context.Context) (map[string]bool, error) {
	disks, err := t.agent.cfg.Disks.Disks(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing disks: %w", err)
	}

	there := map[string]bool{}
	for _, d := range disks {
		dev, err := t.agent.cfg.Disks.Open(d.Path)
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", d.Path, err)
		}

		_, unreadable := dev.ReadAt(make([]byte, 2*dev.SectorSize()), 0)
		table, err := readTable(dev, dev.Size(), dev.SectorSize())
		_ = dev.Close() // opened only for reading
		if unreadable != nil {
			return nil, fmt.Errorf("reading %s: %w", d.Path, unreadable)
		}
		if errors.Is(err, errNoTable) && !damaged(err) {
			continue
		}
		if err != nil || table.kind == "damaged gpt" {
			return nil, errors.Join(fmt.Errorf("reading the partition table of %s: it is damaged", d.Path), err)
		}

		for _, p := range table.parts {
			there[p.uuid] = true
		}
	}

	return there, nil
}

// damaged reports whether err means a damaged table, and not a missing one.
func damaged(err error) bool {
	var both interface{ Unwrap() []error }
	if !errors.As(err, &both) {
		return false
	}
	return slices.ContainsFunc(both.Unwrap(), func(e error) bool { return !errors.Is(e, errNoTable) })
}

// bootManager is the firmware's list of boot entries.
type bootManager struct {
	vars    EFIVariables
	log     func(format string, args ...any)
	entries []efiEntry // by number
	order   []uint16
	next    int // -1: none
	deleted []string
}

type efiEntry struct {
	number uint16
	option loadOption
	bad    error // why the entry cannot be read; it is listed and never changed
}

// bootName matches the variable of a boot entry, such as Boot0003; its hexadecimal digits are
// capitals.
var bootName = regexp.MustCompile(`^Boot([0-9A-F]{4})$`)

func bootVariable(n uint16) string { return fmt.Sprintf("Boot%04X", n) }

// read reads the entries, BootOrder and BootNext.
func (b *bootManager) read(names []string) error {
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
			b.log("%s cannot be read and is left alone: %v", name, e.bad)
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

// numbers reads a variable that contains a list of entries; a missing variable is an empty list.
func (b *bootManager) numbers(name string) ([]uint16, error) {
	value, err := b.vars.Get(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(value)%2 != 0 {
		err = fmt.Errorf("it has %d bytes", len(value))
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

// put writes a list of entries and reads it back.
func (b *bootManager) put(name string, list []uint16) error {
	value := make([]byte, 0, 2*len(list))
	for _, n := range list {
		value = binary.LittleEndian.AppendUint16(value, n)
	}
	if now, err := b.vars.Get(name); err == nil && bytes.Equal(now, value) {
		return nil
	}

	if len(value) == 0 {
		// Writing an empty value deletes a variable (UEFI specification §8.2.2).
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
		return errors.Join(fmt.Errorf("reading %s back: the firmware did not keep what was written", name), err)
	}
	return nil
}

func (b *bootManager) deleteLabels(labels []string) error {
	if len(labels) == 0 {
		return nil
	}
	return b.delete(func(e efiEntry) bool { return slices.Contains(labels, e.option.description) })
}

func (b *bootManager) deleteStale(there map[string]bool) error {
	return b.delete(func(e efiEntry) bool { return e.option.disk != "" && !there[e.option.disk] })
}

// delete deletes the entries for which which returns true. Each is removed from BootOrder first: if
// the action is interrupted, the next attempt still finds the entry.
func (b *bootManager) delete(which func(efiEntry) bool) error {
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
		b.log("%s %q is deleted", name, e.option.description)
	}
	return nil
}

// find returns the entry with that number or description.
func (b *bootManager) find(what string) (uint16, error) {
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
		return 0, fmt.Errorf("finding the boot entry %q: there is none; there are: %s", what, strings.Join(there, ", "))
	case len(found) > 1:
		return 0, fmt.Errorf("finding the boot entry %q: %04X and %04X both have that description", what, found[0], found[1])
	}
	return found[0], nil
}

func (b *bootManager) setOrder(want []string) error {
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

func (b *bootManager) setNext(want string) error {
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
	b.log("the next boot is %s", bootVariable(n))
	return nil
}

// maxEFIOutput bounds the list in a report, bytes.
const maxEFIOutput = 32 << 10

// report adds the boot entries as they are now to output.
func (b *bootManager) report(output map[string]string) error {
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
			fmt.Sprintf("%04X", e.number), short(clean(e.option.description)), e.option.active, e.option.disk,
			short(clean(e.option.file)), "",
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
