package diskimage

import (
	"bytes"
	"fmt"
)

// Formats of image files.
const (
	Raw   = "raw"
	Gzip  = "gz"
	Zstd  = "zst"
	XZ    = "xz"
	Bzip2 = "bz2"
	// Only the server reads Qcow2, with OpenQcow2. The server converts such images, so agents get Zstd instead.
	Qcow2 = "qcow2"
)

// maxSize limits the size of an image's content in bytes. Without it, a file of a few megabytes could decompress
// to petabytes that the server would have to read.
const maxSize = 2 << 40

// maxWindow limits the memory in bytes that the agent may need to decompress an image. It is enough for zstd
// --long=27 and xz -9.
const maxWindow = 128 << 20

// A Refusal is the error for a file that cannot be written to a disk.
type Refusal struct {
	What   string // what the file is, or what is wrong with it
	Remedy string // what the operator can do
}

func (r *Refusal) Error() string { return r.What + ": " + r.Remedy }

func refuse(remedy, format string, args ...any) error {
	return &Refusal{What: fmt.Sprintf(format, args...), Remedy: remedy}
}

// againRemedy tells the user what to do about a damaged file.
const againRemedy = "get the file again, compare its digest with the publisher's, and store it again (ingot image add)"

// qcow2Start is the magic number at the beginning of a qcow2 file.
const qcow2Start = "QFI\xfb"

// Format returns the format of a file. head is its first 8 or more bytes, or the whole file if it is shorter.
func Format(head []byte) string {
	starts := func(s string) bool { return bytes.HasPrefix(head, []byte(s)) }
	switch {
	case starts("\x1f\x8b"):
		return Gzip
	case starts("\x28\xb5\x2f\xfd"), len(head) >= 4 && head[0]&0xf0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18":
		return Zstd // the second pattern is a skippable frame, with which a zstd file may begin
	case starts("\xfd7zXZ\x00"):
		return XZ
	case starts("BZh"):
		return Bzip2
	case starts(qcow2Start):
		return Qcow2
	}
	return Raw
}
