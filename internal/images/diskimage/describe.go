package diskimage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
)

// A Description describes the content of a file.
type Description struct {
	Format string
	// Size (bytes) and SHA256 (hex digits) are those of the content. DescribeInstaller does not compute them. An
	// archive has no SHA256.
	Size   int64
	SHA256 string
	// Contents is a summary for operators: "GPT, 2 partitions (FAT, ext4); boots by UEFI; cloud-init".
	Contents string
	// Installer means that the content is a file for booting an installer, not a disk image.
	Installer bool
	// Archive means that the content is a tar archive, which is extracted into a file system.
	Archive bool
	Layout
	// Boots lists how firmware can start the disk image without a boot entry, sorted: bios, uefi-x86_64, uefi-aarch64.
	// It is empty if no known loader was found.
	Boots []string
	// Warning is the reason why a machine will probably not boot from the disk image; "" for none.
	Warning string
}

// Describe reads a content to its end and describes it. If the content is incomplete, larger than maxSize or not
// suitable for a disk, the error is a *Refusal. Describe sets Installer for kernels and similar files, which cannot be
// mistaken for disk images, and Archive for tar archives. An ISO image can be mistaken for a disk image, so it is
// refused; the operator must add it with --installer. Describe copies the content of a disk image to the writer to,
// unless to is nil.
func Describe(ctx context.Context, c *Content, to io.Writer) (Description, error) {
	return describe(ctx, c, to, maxSize)
}

func describe(ctx context.Context, c *Content, to io.Writer, most int64) (d Description, err error) {
	d.Format = c.Format
	in := EndWith(ctx, c)
	head := make([]byte, HeadSize)
	n, err := io.ReadFull(in, head)
	if head = head[:n]; err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return d, err
	}
	if n == 0 {
		return d, refuse(againRemedy, "the image is empty")
	}

	kind := Identify(head)
	meantForDisk := strings.Contains(kind.Name, "ISO") || c.Format == Qcow2
	d.Installer, d.Archive = kind.Installer && !meantForDisk, kind.Archive && !meantForDisk
	if !d.Installer && !d.Archive {
		if err := kind.Refusal(); err != nil {
			return d, err
		}
	}
	whole := io.MultiReader(bytes.NewReader(head), in)
	if d.Archive {
		return d, d.lookArchive(whole, most)
	}

	var t table
	if !d.Installer {
		t = readTable(head) // even a disk with a partition table may begin with the signature of a file system
		d.Layout = t.layout()
		t.features.code = hasBootCode(head)
	}
	sum := sha256.New()
	copies := []io.Writer{sum}
	if to != nil && !d.Installer {
		copies = append(copies, to)
	}
	if d.Size, err = t.look(io.TeeReader(whole, io.MultiWriter(copies...)), most); err != nil {
		return d, err
	}
	d.SHA256 = hex.EncodeToString(sum.Sum(nil))

	for i, p := range t.parts {
		if p.end > d.Size {
			return d, refuse(againRemedy, "the image is cut short: partition %d ends at byte %d, but the image ends at byte %d", i+1,
				p.end, d.Size)
		}
	}

	switch {
	case t.name != "":
		d.Contents = t.String() + "; " + t.features.String()
		d.Boots = t.features.boots()
	case kind.FileSystem:
		d.Contents = kind.Name + " file system, no partition table"
		d.Warning = "the image has no partition table: most machines do not boot from such a disk"
	case kind.Name != "":
		d.Contents = kind.Name
	default:
		d.Contents = "unknown"
		d.Warning = "the image contains neither a partition table nor a file system: " +
			"no machine boots from it unless it contains a boot loader"
	}

	return d, nil
}

// DescribeInstaller describes a file that an installer boots or fetches, from the file's first HeadSize bytes. It
// refuses only web pages: the files of an installer can be of any kind, and some cannot be decompressed alone.
func DescribeInstaller(head []byte) (Description, error) {
	d := Description{Format: Format(head), Installer: true}
	kind := Identify(head)
	if kind.webPage {
		return d, kind.Refusal()
	}
	if d.Format == Raw || d.Format == Qcow2 {
		d.Contents = kind.Name
	}
	return d, nil
}
