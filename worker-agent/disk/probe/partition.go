package probe

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/fat"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// FindPartition returns the only partition in parts that s selects. It returns an error if s selects none or several.
func FindPartition(s action.Partition, r io.ReaderAt, parts []parttable.Span) (parttable.Span, error) {
	var found []parttable.Span
	there := make([]string, 0, len(parts))
	for _, p := range parts {
		fs := io.NewSectionReader(r, p.Start, p.Size)
		kind := FileSystem(fs, p.Size)
		label, uuid := Names(fs, kind)
		there = append(there, fmt.Sprintf("%d (%s PARTLABEL=%q LABEL=%q)", p.Number, kind, p.Name, label))
		match := false

		switch s.By {
		case action.ByNumber:
			match = strconv.Itoa(p.Number) == s.Value
		case action.ByLabel:
			match = label == s.Value
		case action.ByUUID:
			match = strings.EqualFold(uuid, s.Value)
		case action.ByName:
			match = p.Name == s.Value
		case action.ByGUID:
			match = strings.EqualFold(p.UUID, s.Value)
		case action.ByType:
			match = strings.EqualFold(p.Kind, s.Value)
		}
		if match {
			found = append(found, p)
		}
	}

	switch {
	case len(found) == 0:
		return parttable.Span{}, fmt.Errorf("finding the partition %s: not found among: %s", s, strings.Join(there, ", "))
	case len(found) > 1:
		return parttable.Span{}, fmt.Errorf("finding the partition %s: partitions %d and %d both match", s, found[0].Number,
			found[1].Number)
	}
	return found[0], nil
}

// Names returns the label and the UUID of the file system in r, in the format of blkid(8); each is "" if the file system has none.
// kind is the type of the file system.
func Names(r io.ReaderAt, kind string) (label, uuid string) {
	text := func(at int64, n int) string {
		b, _, _ := bytes.Cut(blockdev.ReadAt(r, at, n), []byte{0})
		return string(b)
	}
	uuidAt := func(at int64) string {
		if b := blockdev.ReadAt(r, at, 16); len(b) == 16 && !blockdev.AllZero(b) {
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
		return fat.Names(r)
	}

	return "", ""
}
