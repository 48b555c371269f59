package disktest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// NewGPT writes a GPT to the disk in file. It uses the start, size and name of each part; the first part is partition 1.
func NewGPT(t *testing.T, file string, parts ...parttable.Span) {
	t.Helper()
	writeGPT(t, file, 512, parts)
}

func writeGPT(t *testing.T, file string, sector int, parts []parttable.Span) {
	t.Helper()
	dev, err := disk.FileDisks{{Disk: action.Disk{SectorSize: sector}, File: file}}.Open("")
	if err != nil {
		t.Fatal(err)
	}
	g := parttable.NewGPT(dev.Size(), sector)
	for i, p := range parts {
		g.Entry(i).Set(parttable.BasicData, uint64(p.Start/g.Sector), uint64((p.Start+p.Size)/g.Sector-1), p.Name)
	}
	if err := errors.Join(blockdev.WriteVerified(dev, parttable.ProtectiveMBR(dev), 0), g.Write(dev), dev.Close()); err != nil {
		t.Fatal(err)
	}
}

// ReadSpans returns the partitions of the disk in file.
func ReadSpans(t *testing.T, file string) []parttable.Span {
	t.Helper()
	b := MapFile(t, file)
	table, err := parttable.Read(bytes.NewReader(b), int64(len(b)), 512)
	if err != nil {
		t.Fatal(err)
	}
	return table.Parts
}

// GptImage returns a disk image of 12 MiB with one partition from 1 MiB to 9 MiB.
func GptImage(t *testing.T, sector int64) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image")
	NewFile(t, file, 12*blockdev.MiB)
	writeGPT(t, file, int(sector), []parttable.Span{{Start: blockdev.MiB, Size: 8 * blockdev.MiB, Name: "root"}})
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// WriteMBR writes a table with one entry at byte off: an MBR, or a table within an extended partition.
func WriteMBR(t *testing.T, file string, off int64, kind byte, start, n int64) {
	t.Helper()
	b := make([]byte, 512)
	b[510], b[511] = 0x55, 0xaa
	b[446+4] = kind
	binary.LittleEndian.PutUint32(b[446+8:], uint32(start))
	binary.LittleEndian.PutUint32(b[446+12:], uint32(n))
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
