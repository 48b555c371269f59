package disktest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf16"
)

// LoadOption encodes an EFI_LOAD_OPTION.
func LoadOption(label string, nodes ...[]byte) []byte {
	path := slices.Concat(nodes...)
	b := binary.LittleEndian.AppendUint32(nil, 1) // LOAD_OPTION_ACTIVE
	b = binary.LittleEndian.AppendUint16(b, uint16(len(path)))
	for _, c := range append(utf16.Encode([]rune(label)), 0) {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	return append(append(b, path...), "optional data"...)
}

// PathNode encodes a node of a device path (UEFI specification 2.10, §10.3).
func PathNode(kind, sub byte, data []byte) []byte {
	b := []byte{kind, sub, 0, 0}
	binary.LittleEndian.PutUint16(b[2:], uint16(4+len(data)))
	return append(b, data...)
}

// HardDrive returns the device path node of a partition, with the 16 bytes of its signature.
func HardDrive(number uint32, signature []byte, format, kind byte) []byte {
	d := make([]byte, 38)
	binary.LittleEndian.PutUint32(d, number)
	copy(d[20:], signature)
	d[36], d[37] = format, kind
	return PathNode(4, 1, d)
}

// FileNode encodes the device path node of a file.
func FileNode(name string) []byte {
	var d []byte
	for _, c := range append(utf16.Encode([]rune(name)), 0) {
		d = binary.LittleEndian.AppendUint16(d, c)
	}
	return PathNode(4, 4, d)
}

// PathEnd is the node that ends a device path.
var PathEnd = PathNode(0x7f, 0xff, nil)

// Firmware returns a folder that contains vars in the format of efivarfs.
func Firmware(t *testing.T, vars map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string][]byte{"Boot0001-00000000-0000-0000-0000-000000000000": []byte("another vendor's")}
	for name, b := range vars {
		files[name+"-8be4df61-93ca-11d2-aa0d-00e098032b8c"] = slices.Concat([]byte{7, 0, 0, 0}, b)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// BootNumbers encodes a list of boot entries.
func BootNumbers(n ...uint16) []byte {
	var b []byte
	for _, v := range n {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	return b
}
