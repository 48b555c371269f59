package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/action"
)

// find returns the only one of parts that s selects.
func find(s action.Partition, r io.ReaderAt, parts []span) (span, error) {
	var found []span
	there := make([]string, 0, len(parts))
	for _, p := range parts {
		fs := io.NewSectionReader(r, p.start, p.size)
		kind := probeFS(fs, p.size)
		label, uuid := fsNames(fs, kind)
		there = append(there, fmt.Sprintf("%d (%s PARTLABEL=%q LABEL=%q)", p.number, kind, p.name, label))
		match := false

		switch s.By {
		case action.ByNumber:
			match = strconv.Itoa(p.number) == s.Value
		case action.ByLabel:
			match = label == s.Value
		case action.ByUUID:
			match = strings.EqualFold(uuid, s.Value)
		case action.ByName:
			match = p.name == s.Value
		case action.ByGUID:
			match = strings.EqualFold(p.uuid, s.Value)
		case action.ByType:
			match = strings.EqualFold(p.kind, s.Value)
		}
		if match {
			found = append(found, p)
		}
	}

	switch {
	case len(found) == 0:
		return span{}, fmt.Errorf("finding the partition %s: there is none; there are: %s", s, strings.Join(there, ", "))
	case len(found) > 1:
		return span{}, fmt.Errorf("finding the partition %s: partitions %d and %d both match", s, found[0].number,
			found[1].number)
	}
	return found[0], nil
}

// partition returns the bound disk and the number of the partition that variable's path or
// PARTITION selects; 0 if neither does.
func (t *attempt) partition(ctx context.Context, variable string) (disk action.Disk, number int, err error) {
	sel, err := action.ParsePartition(t.env[action.PartitionVariable])
	if err != nil {
		return disk, 0, err
	}
	if disk, number, err = t.target(ctx, variable); err != nil || sel.By == "" {
		return disk, number, err
	}
	disk, dev, err := t.openDisk(ctx, *t.bound)
	if err != nil {
		return disk, 0, err
	}
	defer func() { _ = dev.Close() }() // opened only for reading
	table, err := readTable(dev, dev.Size(), dev.SectorSize())
	if err != nil {
		return disk, 0, fmt.Errorf("reading %s: %w", disk.Path, err)
	}

	p, err := find(sel, dev, table.parts)
	if err != nil {
		return disk, 0, fmt.Errorf("reading %s: %w", disk.Path, err)
	}

	t.logf("%s is partition %d of %s", sel, p.number, disk.Path)
	return disk, p.number, nil
}

// fsNames returns the label and the UUID of the file system of type kind in r, in the form of
// blkid(8); "" if it has none.
func fsNames(r io.ReaderAt, kind string) (label, uuid string) {
	text := func(at int64, n int) string {
		b, _, _ := bytes.Cut(readAt(r, at, n), []byte{0})
		return string(b)
	}
	uuidAt := func(at int64) string {
		if b := readAt(r, at, 16); len(b) == 16 && !allZero(b) {
			return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
		}
		return ""
	}

	switch kind {
	case "ext4":
		return text(1024+120, 16), uuidAt(1024 + 104)
	case "xfs":
		return text(108, 12), uuidAt(32)
	case "btrfs":
		return text(0x1012b, 256), uuidAt(0x10020)
	case "vfat":
		return fatNames(r)
	}

	return "", ""
}

// fatNames reads a FAT's label from its root directory. The boot sector has a copy, which not every
// program updates.
func fatNames(r io.ReaderAt) (label, uuid string) {
	b := readAt(r, 0, 512)
	if len(b) < 512 {
		return "", ""
	}

	le16 := func(at int) int64 { return int64(b[at]) | int64(b[at+1])<<8 }
	sector, reserved, tables := le16(11), le16(14), int64(b[16])
	id, name := 39, 43
	root, n := (reserved+tables*le16(22))*sector, int(le16(17)*32)

	if le16(22) == 0 { // FAT32: the root directory is a chain of clusters; the label is in the first
		id, name = 67, 71
		cluster := int64(b[13]) * sector
		root, n = (reserved+tables*int64(g32(b, 36)))*sector+(int64(g32(b, 44))-2)*cluster, int(cluster)
	}

	label = string(b[name : name+11])
	entries := readAt(r, root, min(n, mib))
	for at := 0; at+32 <= len(entries) && entries[at] != 0; at += 32 {
		if entries[at] != 0xe5 && entries[at+11]&0x3f == 0x08 {
			label = string(entries[at : at+11])
			break
		}
	}
	if label = strings.TrimRight(label, " \x00"); label == "NO NAME" {
		label = ""
	}

	v := g32(b, id)
	return label, fmt.Sprintf("%04X-%04X", v>>16, v&0xffff)
}

// errNotYet means that a partition is missing but may still appear: after a table is written, the
// device nodes appear one by one.
var errNotYet = errors.New("it is not there")
