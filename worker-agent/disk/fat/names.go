package fat

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// Names returns the label and the serial number of a FAT volume. It reads the label from the root directory, because not every
// program updates the copy of the label in the boot sector.
func Names(r io.ReaderAt) (label, uuid string) {
	b := blockdev.ReadAt(r, 0, 512)
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
		root, n = (reserved+tables*int64(binary.LittleEndian.Uint32(b[36:])))*sector+(int64(binary.LittleEndian.Uint32(b[44:]))-2)*cluster, int(
			cluster,
		)
	}

	label = string(b[name : name+11])
	entries := blockdev.ReadAt(r, root, min(n, blockdev.MiB))
	for at := 0; at+32 <= len(entries) && entries[at] != 0; at += 32 {
		if entries[at] != 0xe5 && entries[at+11]&0x3f == 0x08 {
			label = string(entries[at : at+11])
			break
		}
	}
	if label = strings.TrimRight(label, " \x00"); label == "NO NAME" {
		label = ""
	}

	v := binary.LittleEndian.Uint32(b[id:])
	return label, fmt.Sprintf("%04X-%04X", v>>16, v&0xffff)
}
