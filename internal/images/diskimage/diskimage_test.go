package diskimage

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// gpt returns a disk of size bytes with a GPT of two partitions: FAT from 1 MiB, ext4 from 2 MiB to
// 4 MiB.
func gpt(size, sector int) []byte {
	b := make([]byte, size)
	h := b[sector : 2*sector]
	copy(h, "EFI PART")
	binary.LittleEndian.PutUint32(h[12:], 92)
	binary.LittleEndian.PutUint64(h[72:], 2)
	binary.LittleEndian.PutUint32(h[80:], 128)
	binary.LittleEndian.PutUint32(h[84:], 128)
	for n, span := range [][2]int{{1 << 20, 2 << 20}, {2 << 20, 4 << 20}} {
		e := b[2*sector+128*n:]
		e[0], e[16] = 1, 1
		binary.LittleEndian.PutUint64(e[32:], uint64(span[0]/sector))
		binary.LittleEndian.PutUint64(e[40:], uint64(span[1]/sector-1))
	}
	binary.LittleEndian.PutUint32(h[16:], crc32.ChecksumIEEE(h[:92]))
	copy(b[1<<20+0x52:], "FAT32   ")
	copy(b[2<<20+0x438:], "\x53\xef")
	return b
}

// describeFile describes a file, reading it from its beginning.
func describeFile(ctx context.Context, file io.Reader, most int64) (d Description, err error) {
	c, err := Open(file)
	if err != nil {
		return d, err
	}
	defer c.Close()
	return describe(ctx, c, nil, most)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

const noFeatures = "unknown boot loader; neither cloud-init nor Ignition was found"

// TestFeatures: what an image boots and is configured by is told from names in it, wherever they are.
func TestFeatures(t *testing.T) {
	const mib = 1 << 20
	for want, names := range map[string]map[int]string{
		noFeatures: {3 * mib: "GRUB", 1000: "cloud-init"},
		"boots by UEFI, GRUB; cloud-init": {
			0x180: "GRUB ", mib + 4096: "BOOTX64 EFI", 3*mib - 5: "cloud-init-generator", 3 * mib / 2: "cloud-init-ds-identify",
		},
		"boots by UEFI (arm64); Ignition":                                       {mib + 4096: "BOOTAA64EFI", 4*mib - 18: "ignition.firstboot"},
		"boots by syslinux; neither cloud-init nor Ignition was found":          {mib + 512: "ldlinux.sys", mib + 900: "LDLINUX SYS"},
		"boots by UEFI; cloud-init, Ignition":                                   {mib + 1: "BOOTX64 EFI", 2*mib - 10: "flatcar.first_boot", 9000: "cloud-init-generator"},
		"unknown boot loader; neither cloud-init nor Ignition was found (none)": nil,
	} {
		image := gpt(4*mib, 512)
		for at, name := range names {
			copy(image[at:], name)
		}
		for _, size := range []int{1 << 20, 4096, 61} { // of a read
			d, err := describeFile(t.Context(), chunks{bytes.NewReader(image), size}, maxSize)
			require.NoError(t, err)
			require.Equal(t, "GPT, 2 partitions (FAT, ext4); "+strings.TrimSuffix(want, " (none)"), d.Contents, size)
		}
	}
}

// TestBoots: a loader is listed by the firmware that starts it. Code in the boot sector of an image with another loader may
// be a loader for BIOS; without any loader that is known, nothing is.
func TestBoots(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		names map[int]string
		want  []string
	}{
		"none":               {nil, nil},
		"code":               {map[int]string{0: "\xeb\x63"}, nil},
		"UEFI":               {map[int]string{mib: "BOOTX64 EFI"}, []string{"uefi-x86_64"}},
		"UEFI and code":      {map[int]string{0: "\xeb\x63", mib: "BOOTX64 EFI"}, []string{"bios", "uefi-x86_64"}},
		"UEFI of two":        {map[int]string{mib: "BOOTX64 EFI", mib + 32: "BOOTAA64EFI"}, []string{"uefi-aarch64", "uefi-x86_64"}},
		"GRUB":               {map[int]string{0x180: "GRUB"}, []string{"bios"}},
		"syslinux":           {map[int]string{mib + 512: "ldlinux.sys", mib + 900: "LDLINUX SYS"}, []string{"bios"}},
		"behind a partition": {map[int]string{3 * mib: "GRUB"}, nil},
	} {
		image := gpt(4*mib, 512)
		for at, name := range c.names {
			copy(image[at:], name)
		}
		d, err := describeFile(t.Context(), bytes.NewReader(image), maxSize)
		require.NoError(t, err)
		require.Equal(t, c.want, d.Boots, name)
	}
}

// A disk image with a table for each sector size can be read from either disk.
func TestTablesOfBothSectorSizes(t *testing.T) {
	both := gpt(4<<20, 4096)
	small := gpt(4<<20, 512)
	copy(both[512:1024], small[512:1024])
	binary.LittleEndian.PutUint64(both[512+72:], 64)
	copy(both[64*512:], small[1024:1024+128*128])
	binary.LittleEndian.PutUint32(both[512+16:], 0)
	binary.LittleEndian.PutUint32(both[512+16:], crc32.ChecksumIEEE(both[512:512+92]))
	require.Equal(t, Layout{0, 4 << 20}, ReadLayout(both))
}

// chunks returns at most so many bytes in a read.
type chunks struct {
	io.Reader
	size int
}

func (c chunks) Read(p []byte) (int, error) { return c.Reader.Read(p[:min(len(p), c.size)]) }

func TestDescribe(t *testing.T) {
	part := func(at int, text string) []byte {
		b := make([]byte, 128<<10)
		copy(b[at:], text)
		return b
	}
	for name, c := range map[string]struct {
		content []byte
		want    Description
		refused string
	}{
		"GPT":       {content: gpt(4<<20, 512), want: Description{Contents: "GPT, 2 partitions (FAT, ext4); " + noFeatures, Layout: Layout{512, 4 << 20}}},
		"GPT, 4096": {content: gpt(4<<20, 4096), want: Description{Contents: "GPT, 2 partitions (FAT, ext4); " + noFeatures, Layout: Layout{4096, 4 << 20}}},
		"GPT, cut": {
			content: gpt(3<<20, 512),
			refused: "the image is cut short: partition 2 ends at byte 4194304, but the image ends at byte 3145728",
		},
		"a bare XFS": {
			content: part(0, "XFSB"),
			want: Description{
				Contents: "XFS file system, no partition table",
				Warning:  "the image has no partition table: most machines do not boot from such a disk",
			},
		},
		"a kernel":          {content: part(0x202, "HdrS"), want: Description{Contents: "a Linux kernel", Installer: true}},
		"nothing":           {content: nil, refused: "the image is empty"},
		"a VHD":             {content: part(0, "conectix"), refused: "this is a VHD image, not a disk image"},
		"a page of someone": {content: []byte("\xef\xbb\xbf <!-- x --> <html lang=en>"), refused: "this is a web page"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, format := range []string{Raw, Gzip} {
				file := c.content
				if format == Gzip {
					var out bytes.Buffer
					w := gzip.NewWriter(&out)
					_, err := w.Write(file)
					require.NoError(t, errors.Join(err, w.Close()))
					file = out.Bytes()
				}
				d, err := describeFile(t.Context(), bytes.NewReader(file), maxSize)
				if c.refused != "" {
					var r *Refusal
					require.ErrorAs(t, err, &r)
					require.Contains(t, r.What, c.refused)
					require.NotEmpty(t, r.Remedy)
					continue
				}
				require.NoError(t, err)
				want := c.want
				want.Format, want.Size, want.SHA256 = format, int64(len(c.content)), digest(c.content)
				require.Equal(t, want, d)
			}
		})
	}
}

// Installers use files of every kind, including XML. Only a web page that was saved in place of the
// file is refused.
func TestDescribeInstallerRefusesOnlyWebPages(t *testing.T) {
	const declaration = `<?xml version="1.0" encoding="UTF-8"?>` + "\n"
	for _, file := range []string{
		declaration + "<!DOCTYPE profile>\n<profile xmlns=\"http://www.suse.com/1.0/yast2ns\"/>",
		declaration + "<unattend xmlns=\"urn:schemas-microsoft-com:unattend\"/>",
		"<unattend/>", "#cloud-config\n", "\x1f\x8b\x08",
	} {
		_, err := DescribeInstaller([]byte(file))
		require.NoError(t, err, file)
	}
	for _, file := range []string{"<!doctype html>", declaration + "<!DOCTYPE html PUBLIC>", declaration + "<!-- x -->\n<html>", "\n<head>"} {
		_, err := DescribeInstaller([]byte(file))
		require.ErrorContains(t, err, "this is a web page", file)
	}
	_, err := describeFile(t.Context(), strings.NewReader(declaration+"<Error/>"), maxSize)
	require.ErrorContains(t, err, "this is an XML document")
}

// A frame with a single segment has no window size: the decoder keeps the whole segment in memory.
func TestLargeZstdSegmentIsNotDamaged(t *testing.T) {
	for name, header := range map[string]string{
		"segment": "\xe0\x00\x00\x00\x10\x00\x00\x00\x00", // content of 256 MiB
		"window":  "\x00\x90",                             // of 256 MiB
	} {
		file := "\x28\xb5\x2f\xfd" + header + strings.Repeat("\x03\x00\x10\x00", 8)
		_, err := describeFile(t.Context(), strings.NewReader(file), maxSize)
		require.ErrorContains(t, err, "needs more than 128 MiB of memory", name)
	}
}

// A few bytes may decompress to more than any disk can hold.
// The limit counts what an image unpacks to, in every format and whatever the content is.
func TestS20ImageLargerThanADiskIsRefused(t *testing.T) {
	require.EqualValues(t, 2<<40, maxSize, "the limit of docs/security.md")
	kernel := make([]byte, 4<<20)
	copy(kernel[0x202:], "HdrS")
	var archive bytes.Buffer
	packed := tar.NewWriter(&archive)
	require.NoError(t, packed.WriteHeader(&tar.Header{Name: "a", Size: 4 << 20}))
	_, err := packed.Write(make([]byte, 4<<20))
	require.NoError(t, errors.Join(err, packed.Close()))
	for name, content := range map[string][]byte{
		"GPT": gpt(4<<20, 512), "zeros": make([]byte, 4<<20), "kernel": kernel, "archive": archive.Bytes(),
	} {
		var gz, zst bytes.Buffer
		g := gzip.NewWriter(&gz)
		_, err := g.Write(content)
		require.NoError(t, errors.Join(err, g.Close()))
		z, err := zstd.NewWriter(&zst)
		require.NoError(t, err)
		_, err = z.Write(content)
		require.NoError(t, errors.Join(err, z.Close()))
		for format, file := range map[string][]byte{Raw: content, Gzip: gz.Bytes(), Zstd: zst.Bytes()} {
			d, err := describeFile(t.Context(), bytes.NewReader(file), int64(len(content)))
			require.NoError(t, err, "%s as %s", name, format)
			require.Equal(t, format, d.Format)
			_, err = describeFile(t.Context(), bytes.NewReader(file), int64(len(content))-1)
			var r *Refusal
			require.ErrorAs(t, err, &r, "%s as %s", name, format)
			require.Contains(t, r.What, "larger than")
		}
	}
}

// An error of the file's reader or of the caller is not a Refusal.
func TestReadErrorIsNotARefusal(t *testing.T) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(gpt(4<<20, 512))
	require.NoError(t, errors.Join(err, w.Close()))
	broken := errors.New("the disk is broken")
	for _, file := range [][]byte{out.Bytes()[:out.Len()/2], gpt(4<<20, 512)[:3<<20]} {
		_, err = describeFile(t.Context(), io.MultiReader(bytes.NewReader(file), failing{broken}), maxSize)
		require.ErrorIs(t, err, broken)
		var r *Refusal
		require.False(t, errors.As(err, &r), "%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = describeFile(ctx, bytes.NewReader(out.Bytes()), maxSize)
	require.ErrorIs(t, err, context.Canceled)
}

func TestEndWith(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	r := EndWith(ctx, strings.NewReader("ab"))
	p := make([]byte, 1)
	n, err := r.Read(p)
	require.NoError(t, err)
	require.Equal(t, "a", string(p[:n]))

	stopped := errors.New("the run was stopped")
	cancel(stopped)
	n, err = r.Read(p)
	require.ErrorIs(t, err, stopped)
	require.Zero(t, n)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func FuzzDescribe(f *testing.F) {
	f.Add(gpt(2<<20+4096, 512)[:64<<10])
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Add([]byte("\x28\xb5\x2f\xfd\x00"))
	f.Add([]byte("\xfd7zXZ\x00\x00"))
	f.Add([]byte("BZh91AY"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if len(file) > 64<<10 {
			return
		}
		// Limit the output: a few bytes may decompress to gigabytes.
		c, err := Open(bytes.NewReader(file))
		if err == nil {
			_, _ = io.CopyN(io.Discard, c, 1<<20) // any input must neither panic nor hang
			_ = c.Close()
		}
		_ = Identify(file)
		for _, p := range readTable(file).parts {
			if p.start < 0 || p.end < 0 {
				t.Fatalf("partition %d to %d", p.start, p.end)
			}
		}
		if c != nil && c.Format == Raw {
			_, _ = describeFile(t.Context(), bytes.NewReader(file), maxSize)
		}
	})
}
