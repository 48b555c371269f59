package disk

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

// FileDisks are files that serve as disks in tests and in simulated machines. The zero value has no disks.
type FileDisks []FileDisk

// FileDisk is a disk in a file. The size of the file is used instead of Disk.Size; SectorSize 0 means 512.
type FileDisk struct {
	action.Disk
	File string
}

// Disks implements Disks.
func (f FileDisks) Disks(context.Context) ([]action.Disk, error) {
	disks := make([]action.Disk, 0, len(f))
	for _, d := range f {
		st, err := os.Stat(d.File)
		if err != nil {
			return nil, err
		}
		d.Size = st.Size()
		disks = append(disks, d.Disk)
	}
	return disks, nil
}

// Open implements Disks.
func (f FileDisks) Open(path string) (blockdev.Device, error) {
	disk, err := f.find(path)
	if err != nil {
		return nil, err
	}

	file, err := os.OpenFile(disk.File, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	st, err := file.Stat()
	if err != nil {
		_ = file.Close() // the error of Stat is returned
		return nil, err
	}
	return &fileDevice{File: file, size: st.Size(), sector: cmp.Or(disk.SectorSize, 512)}, nil
}

// find returns the disk at path.
func (f FileDisks) find(path string) (FileDisk, error) {
	for _, d := range f {
		if d.Path == path {
			return d, nil
		}
	}
	return FileDisk{}, os.ErrNotExist
}

// FilePartition is a partition of a FileDisk.
type FilePartition struct {
	File        string // the disk's file
	Number      int
	Start, Size int64 // bytes
}

// Partitions lists the partitions of the disk at path.
func (f FileDisks) Partitions(path string) ([]FilePartition, error) {
	disk, err := f.find(path)
	if err != nil {
		return nil, err
	}
	dev, err := f.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dev.Close() }() // opened only for reading
	table, err := parttable.Read(dev, dev.Size(), dev.SectorSize())
	if err != nil {
		return nil, fmt.Errorf("reading the partition table of %s: %w", path, err)
	}

	var parts []FilePartition
	for _, p := range table.Parts {
		parts = append(parts, FilePartition{File: disk.File, Number: p.Number, Start: p.Start, Size: p.Size})
	}
	return parts, nil
}

// fileDevice is the blockdev.Device of a FileDisk.
type fileDevice struct {
	*os.File
	size   int64
	sector int // bytes
}

func (d *fileDevice) Size() int64 { return d.size }

func (d *fileDevice) SectorSize() int { return d.sector }

func (d *fileDevice) Reread() error { return nil }

// WriteAt returns an error instead of extending the file: a disk does not grow.
func (d *fileDevice) WriteAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > d.size {
		return 0, fmt.Errorf("writing %d bytes at %d: no space left on a disk of %d bytes", len(p), off, d.size)
	}
	return d.File.WriteAt(p, off)
}

func (d *fileDevice) Zero(off, n int64) error { return blockdev.WriteZeros(d, off, n) }

// Facts returns the disks with the signatures of their contents.
func (f FileDisks) Facts(ctx context.Context) ([]action.Disk, error) {
	disks, err := f.Disks(ctx)
	for i := range disks {
		file, err := os.Open(f[i].File)
		if err != nil {
			return disks, err
		}
		disks[i].Signatures, disks[i].Blank = probe.Signatures(file, disks[i].Size, cmp.Or(disks[i].SectorSize, 512))
		_ = file.Close() // opened only for reading
	}
	return disks, err
}
