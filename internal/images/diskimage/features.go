package diskimage

import (
	"bytes"
	"slices"
	"strings"
)

// A feature is a property that an image has if the text name occurs in it.
type feature struct {
	text string // for operators
	name string // text to search for, as it is stored in directories or in the boot sector
	boot bool   // search only the boot sector
	form string // how firmware starts this loader, as in Description.Boots; "" for a program that reads metadata at the first boot
}

// knownFeatures are found by file names in directories, which ext4, XFS, btrfs and FAT store unchanged. They are
// not found in a compressed file system. UEFI firmware starts its loader from a disk without a boot entry (UEFI 2.10, 3.5.1.1).
var knownFeatures = []feature{
	{text: "UEFI", name: "BOOTX64 EFI", form: "uefi-x86_64"}, // FAT: 8 and 3 characters
	{text: "UEFI (arm64)", name: "BOOTAA64EFI", form: "uefi-aarch64"},
	{text: "GRUB", name: "GRUB", boot: true, form: "bios"},
	{text: "syslinux", name: "ldlinux.sys", form: "bios"},
	{text: "syslinux", name: "LDLINUX SYS", form: "bios"},
	{text: "cloud-init", name: "cloud-init-generator"},
	{text: "cloud-init", name: "cloud-init-ds-identify"}, // without systemd
	{text: "Ignition", name: "ignition.firstboot"},       // CoreOS
	{text: "Ignition", name: "flatcar.first_boot"},
}

// features searches an image for knownFeatures in a single pass.
type features struct {
	found map[feature]bool
	tail  []byte // end of the last read, because a name may be split between two reads
	read  int64  // number of bytes that were searched; the whole boot sector comes with the first read
	code  bool   // the boot sector has program code
}

// hasBootCode reports whether the boot sector at the beginning of a disk has program code.
func hasBootCode(head []byte) bool {
	return slices.ContainsFunc(head[:min(len(head), 440)], func(b byte) bool { return b != 0 })
}

// boots returns the forms (see feature.form) of the loaders that were found. If there is a UEFI loader, program code in
// the boot sector counts as a BIOS loader, even if that code is unknown.
func (f *features) boots() []string {
	var out []string
	for _, x := range knownFeatures {
		if x.form != "" && f.found[x] {
			out = append(out, x.form)
		}
	}
	if len(out) > 0 && f.code {
		out = append(out, "bios")
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// scan searches the next bytes of the image.
func (f *features) scan(b []byte) {
	if f.found == nil {
		f.found = map[feature]bool{}
	}
	const longest = 32
	text := append(f.tail, b[:min(len(b), longest)]...)
	for _, x := range knownFeatures {
		name := []byte(x.name)
		switch {
		case f.found[x]:
		case x.boot:
			f.found[x] = f.read == 0 && bytes.Contains(b[:min(len(b), 446)], name) // only before the partition table
		default:
			f.found[x] = bytes.Contains(b, name) || bytes.Contains(text, name)
		}
	}
	f.read += int64(len(b))
	f.tail = append(f.tail, b[max(0, len(b)-longest):]...)
	f.tail = append(f.tail[:0], f.tail[max(0, len(f.tail)-longest):]...)
}

// list returns the texts of the loaders that were found, or of the other features, each text once.
func (f *features) list(loaders bool) string {
	var out []string
	for _, x := range knownFeatures {
		if f.found[x] && (x.form != "") == loaders && !slices.Contains(out, x.text) {
			out = append(out, x.text)
		}
	}
	return strings.Join(out, ", ")
}

// String returns the features as text for the operator, such as "boots by UEFI, GRUB; cloud-init".
func (f *features) String() string {
	text := "unknown boot loader"
	if loaders := f.list(true); loaders != "" {
		text = "boots by " + loaders
	}
	if c := f.list(false); c != "" {
		return text + "; " + c
	}
	return text + "; neither cloud-init nor Ignition was found"
}
