package action

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Units of a Storage, in bytes.
const (
	storageSector = 512
	storageAlign  = 1 << 20
	// gptEntries is the size of all entries in a GPT that rootio writes: 128 entries of 128 bytes.
	gptEntries = 128 * 128
	// maxStorage limits sizes, so that the sum of two sizes does not overflow.
	maxStorage = int64(1) << 60
)

// labelTypes maps labels to types of partitions. A partition with any other label has the type linuxType.
var labelTypes = map[string]string{
	"SWAP": "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F",
	"BIOS": "21686148-6449-6E6F-744E-656564454649",
	"EFI":  "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
}

const linuxType = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"

// A PlacedPartition is a partition with its position and size in bytes. If the size of the disk is not known, Size 0 means that the
// partition takes the rest of the disk.
type PlacedPartition struct {
	Number      int
	Label, Type string
	Start, Size int64
}

// Layout returns the positions of d's partitions on a disk, and all problems of the partitions. size is the size of the disk and
// sector the size of its sectors, in bytes. If size is 0, it is not known, and Layout checks only what does not depend on it. A
// partition without a start begins at the next MiB after the previous partition.
func (d StorageDisk) Layout(size, sector int64) ([]PlacedPartition, []StorageProblem) {
	var ps storageProblems
	entries := (gptEntries + sector - 1) / sector
	first, end := (2+entries)*sector, maxStorage
	if size > 0 {
		end = size - (1+entries)*sector
	}

	var out []PlacedPartition
	next, numbers := int64(storageAlign), d.numbers()
	for i, p := range d.Partitions {
		field := fmt.Sprintf("partitions[%d]", i)
		p.check(&ps, field)
		placed := PlacedPartition{Number: numbers[i], Label: p.Label, Type: p.kind(), Start: next, Size: p.Size * storageSector}

		switch {
		case placed.Number < 1 || placed.Number > 128:
			ps.add(field+".number", "use 1–128", "invalid partition number %d", placed.Number)
		case slices.Index(numbers, placed.Number) < i:
			ps.add(field+".number", "give each partition a different number", "another partition has the number %d already", placed.Number)
		}
		if !within(p.Start) || !within(p.Size) {
			ps.add(field, "give both in sectors of 512 bytes", "start %d or size %d is out of range", p.Start, p.Size)
			continue
		}
		if p.Start > 0 {
			placed.Start = p.Start * storageSector
		}
		if placed.Start < first {
			ps.add(field+".start", fmt.Sprintf("begin at sector %d or later, or leave it out", first/storageSector),
				"sector %d belongs to the partition table", p.Start)
		}
		if placed.Start%sector != 0 || placed.Size%sector != 0 {
			ps.add(field, fmt.Sprintf("use a start and a size that are multiples of %d", sector/storageSector),
				"this disk has sectors of %d bytes", sector)
		}

		switch {
		case p.Size == 0 && i+1 < len(d.Partitions):
			ps.add(field+".size", "give a size, or put this partition at the end", "only the last partition takes the rest of the disk")
		case p.Size == 0 && size > 0:
			placed.Size = max(0, end&^(storageAlign-1)-placed.Start)
		}
		if stop := placed.Start + max(placed.Size, sector); stop > end {
			ps.add(field, "make the partitions smaller, or choose a larger disk",
				"the partition ends at byte %d, but the disk has room only up to byte %d", stop, end)
		}
		next = (placed.Start + placed.Size + storageAlign - 1) &^ (storageAlign - 1)
		out = append(out, placed)
	}

	checkOverlap(&ps, out)
	return out, ps
}

func within(sectors int64) bool { return sectors >= 0 && sectors < maxStorage/storageSector/2 }

func checkOverlap(ps *storageProblems, parts []PlacedPartition) {
	sorted := slices.SortedStableFunc(slices.Values(parts), func(a, b PlacedPartition) int { return cmp.Compare(a.Start, b.Start) })
	for i, p := range sorted {
		if i+1 < len(sorted) && (p.Size == 0 || p.Start+p.Size > sorted[i+1].Start) {
			ps.add("partitions", "correct start or size of one of them", "partitions %d and %d overlap", p.Number, sorted[i+1].Number)
		}
	}
}

// check checks the label and the type of p.
func (p StoragePartition) check(ps *storageProblems, field string) {
	upper := strings.ToUpper(p.Label)
	switch {
	case p.Label == "" || len(utf16.Encode([]rune(p.Label))) > 36 || strings.ContainsFunc(p.Label, unicode.IsControl):
		ps.add(field+".label", "use up to 36 printable characters", "invalid label %q", p.Label)
	case p.TypeGUID == "" && labelTypes[upper] != "" && p.Label != upper:
		ps.add(field+".label", "write "+upper+", or give type_guid",
			"unknown label %q: the partition would not get the type of %s", p.Label, upper)
	}
	if p.TypeGUID != "" && !guidForm.MatchString(p.TypeGUID) {
		ps.add(field+".type_guid", "write it as "+linuxType, "invalid type %q", p.TypeGUID)
	}
}

// kind returns the type of the partition as a GUID in upper case: TypeGUID if it is set, otherwise the type for the label.
func (p StoragePartition) kind() string {
	return strings.ToUpper(cmp.Or(p.TypeGUID, labelTypes[p.Label], linuxType))
}
