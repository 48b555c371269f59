package efi

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// loadOption contains the parts of an EFI_LOAD_OPTION (UEFI specification 2.10, §3.1.3) that the agent needs.
type loadOption struct {
	active      bool
	description string
	// disk is the PARTUUID of the partition with the entry's loader; "" if the entry names no partition.
	disk string
	file string // path of the loader on that partition, or ""
}

// Bits and device path types of the UEFI specification.
const (
	loadActive = 1 // LOAD_OPTION_ACTIVE

	pathMedia     = 0x04 // §10.3.5
	pathHardDrive = 0x01
	pathFile      = 0x04
	pathEnd       = 0x7f // §10.3.1
	pathEndWhole  = 0xff
	pathEndOne    = 0x01

	hardDriveLength = 42
	formatGPT       = 2
	signatureMBR    = 1
	signatureGUID   = 2
)

// parseLoadOption returns an error for anything that the specification does not allow, because an entry that was misread might be
// deleted.
func parseLoadOption(b []byte) (loadOption, error) {
	var o loadOption
	if len(b) < 8 {
		return o, errors.New("reading a load option: the option is cut short")
	}

	o.active = binary.LittleEndian.Uint32(b)&loadActive != 0
	length := int(binary.LittleEndian.Uint16(b[4:]))
	text, rest, ended := parttable.DecodeUTF16(b[6:])
	if !ended {
		return o, errors.New("reading a load option: the end of the description is missing")
	}

	o.description = text
	if length > len(rest) {
		return o, fmt.Errorf("reading a load option: the device path has %d bytes, but only %d are left", length, len(rest))
	}
	return o, o.parsePath(rest[:length])
}

// parsePath parses the packed device paths of a boot entry. The first path locates the loader.
func (o *loadOption) parsePath(p []byte) error {
	first := true
	ended := len(p) == 0
	for len(p) > 0 {
		if len(p) < 4 {
			return errors.New("reading a device path: the path is cut short")
		}

		kind, sub, n := p[0], p[1], int(binary.LittleEndian.Uint16(p[2:]))
		if n < 4 || n > len(p) {
			return fmt.Errorf("reading a device path: a node has %d bytes, but only %d are left", n, len(p))
		}

		node := p[4:n]
		p = p[n:]
		ended = false

		switch {
		case kind == pathEnd:
			if len(node) != 0 || sub != pathEndWhole && sub != pathEndOne {
				return fmt.Errorf("reading a device path: invalid end node of subtype %#x with %d bytes", sub, len(node))
			}
			first, ended = false, sub == pathEndWhole
		case kind == pathMedia && sub == pathHardDrive:
			if n != hardDriveLength {
				return fmt.Errorf("reading a device path: a hard drive node has %d bytes instead of %d", n, hardDriveLength)
			}
			if first && o.disk == "" {
				o.disk = partitionOfNode(node)
			}

		case kind == pathMedia && sub == pathFile:
			if len(node)%2 != 0 {
				return fmt.Errorf("reading a device path: invalid file name of %d bytes", len(node))
			}
			if first {
				name, _, _ := parttable.DecodeUTF16(node)
				o.file += name
			}
		}
	}
	if !ended {
		return errors.New("reading a device path: the end node is missing")
	}
	return nil
}

// partitionOfNode returns the PARTUUID in a hard drive node whose header was removed. The node consists of the partition's number,
// start and size, 16 bytes of signature, a byte for the type of the table, and a byte for the type of the signature.
func partitionOfNode(node []byte) string {
	signature := node[20:36]
	switch node[37] {
	case signatureGUID:
		return parttable.FormatGUID(signature)
	case signatureMBR:
		return fmt.Sprintf("%08x-%02x", binary.LittleEndian.Uint32(signature), binary.LittleEndian.Uint32(node))
	}
	return ""
}
