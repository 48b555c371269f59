package diskimage

import (
	"bytes"
	"regexp"
)

// HeadSize is how many bytes of a content Identify needs, from the beginning of the content.
const HeadSize = 128 << 10

// A Kind describes a content, as detected from its first bytes.
type Kind struct {
	Name string // "ext4", "ISO 9660 image"; "" if unknown
	// FileSystem means that the content is a file system, or something else that fills a whole partition.
	FileSystem bool
	// Installer means that the content is a file for booting an installer, not a disk image.
	Installer bool
	// Archive means that the content is a tar archive, which is extracted into a file system.
	Archive bool
	// Remedy tells the operator what to do instead of writing the content to a disk; "" if it may be written.
	Remedy string

	webPage bool
}

// Refusal returns why a content of this kind cannot be written to a disk, or nil if it can.
func (k Kind) Refusal() error {
	if k.Remedy == "" {
		return nil
	}
	return refuse(k.Remedy, "this is %s, not a disk image", k.Name)
}

const (
	qcow2Remedy   = "store the uncompressed qcow2 file, which the server converts: ingot image add NAME FILE, or NAME URL"
	convertRemedy = "convert the image first: qemu-img convert -O raw FILE disk.raw"
	unpackRemedy  = "unpack the file first, and store the disk image from it"
	archiveRemedy = "a disk image is needed, with a partition table and a boot loader: take the distribution's raw (\"cloud\") image; " +
		"the action archive2disk extracts an archive into a file system"
	installerRemedy = "take the distribution's disk image (raw or \"cloud\" image); " +
		"to store a file that an installer boots or fetches, use ingot image add --installer"
	decodeRemedy = "decompress the file once, so that one compression is left"
)

// signature identifies a kind: a content with this text at this offset is of the kind.
type signature struct {
	at   int
	text string
	Kind
}

// signatures returns the signatures in the order in which Identify compares them. Contents of other kinds may also
// begin with a boot sector, so signatures at larger offsets come first.
func signatures() []signature {
	fs := func(name string) Kind { return Kind{Name: name, FileSystem: true} }
	convert := func(name string) Kind { return Kind{Name: name, Remedy: convertRemedy} }
	unpack := func(name string) Kind { return Kind{Name: name, Remedy: unpackRemedy} }
	twice := func(name string) Kind { return Kind{Name: name + " data, compressed twice", Remedy: decodeRemedy} }
	installer := func(name string) Kind { return Kind{Name: name, Installer: true, Remedy: installerRemedy} }
	return []signature{
		{0x8001, "CD001", installer("an ISO 9660 image")},
		{0, qcow2Start, Kind{Name: "a qcow2 image", Remedy: qcow2Remedy}},
		{0, "KDMV", convert("a VMDK image")},
		{0, "# Disk DescriptorFile", convert("a VMDK descriptor")},
		{0, "vhdxfile", convert("a VHDX image")},
		{0, "conectix", convert("a VHD image")},
		{0x40, "\x7f\x10\xda\xbe", convert("a VDI image")},
		{0, "PK\x03\x04", unpack("a zip archive")},
		{0, "7z\xbc\xaf\x27\x1c", unpack("a 7z archive")},
		{0, "Rar!\x1a\x07", unpack("a rar archive")},
		{0, "\x04\x22\x4d\x18", unpack("lz4 data")},
		{0, "LZIP", unpack("lzip data")},
		{0, "\x1f\x8b\x08", twice("gzip")},
		{0, "\x28\xb5\x2f\xfd", twice("zstd")},
		{0, "\xfd7zXZ\x00", twice("xz")},
		{0, "BZh", twice("bzip2")},
		{257, "ustar", Kind{Name: "a tar archive", Archive: true, Remedy: archiveRemedy}},
		{0, "!<arch>\n", Kind{Name: "a package or ar archive", Remedy: archiveRemedy}},
		{0, "070701", installer("an initramfs (cpio archive)")},
		{0, "070702", installer("an initramfs (cpio archive)")},
		{0x202, "HdrS", installer("a Linux kernel")},
		{0x38, "ARM\x64", installer("a Linux kernel")},
		{0, "\x7fELF", installer("an ELF program")},
		{0, "hsqs", installer("a squashfs image")},
		{0x438, "\x53\xef", fs("ext4")}, // also ext2 and ext3
		{0, "XFSB", fs("XFS")},
		{0x10040, "_BHRfS_M", fs("btrfs")},
		{0x400, "\x10\x20\xf5\xf2", fs("F2FS")},
		{3, "NTFS    ", fs("NTFS")},
		{3, "EXFAT   ", fs("exFAT")},
		{0x36, "FAT1", fs("FAT")},
		{0x52, "FAT32", fs("FAT")},
		{0x218, "LVM2 001", fs("LVM")},
		{0, "LUKS\xba\xbe", fs("LUKS")},
		{0xff6, "SWAPSPACE2", fs("swap")},
		{0x1000, "\xfc\x4e\x2b\xa9", fs("Linux RAID")},
	}
}

var (
	webPage     = regexp.MustCompile(`(?is)^\x{FEFF}?\s*(<\?xml\b[^>]*>\s*)?(<!--.*-->\s*)?<(!doctype\s+html|html|head)\b`)
	xmlDocument = regexp.MustCompile(`(?i)^\x{FEFF}?\s*<(\?xml|!doctype)\b`)
)

// Identify returns the kind of a content. head is its first HeadSize bytes, or the whole content if it is shorter.
func Identify(head []byte) Kind {
	const remedy = "a web page or an address was saved instead of the image: fetch the image itself"
	switch text := head[:min(len(head), 512)]; {
	case webPage.Match(text):
		return Kind{Name: "a web page", webPage: true, Remedy: remedy}
	case xmlDocument.Match(text):
		return Kind{Name: "an XML document", Remedy: remedy}
	}

	for _, s := range signatures() {
		if len(head) >= s.at && bytes.HasPrefix(head[s.at:], []byte(s.text)) {
			return s.Kind
		}
	}
	return Kind{}
}
