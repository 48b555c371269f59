package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/ingotmetal/ingot/action"
)

// mib is 2^20 bytes.
const mib = 1 << 20

// Device is an open disk.
type Device interface {
	io.ReaderAt
	io.WriterAt
	// Zero makes n bytes at off read as zero, with the device's own command if it has one.
	Zero(off, n int64) error
	// Sync returns when all written data is on stable storage.
	Sync() error
	// Size in bytes.
	Size() int64
	// SectorSize is the logical sector size in bytes.
	SectorSize() int
	// Reread makes the kernel read the partition table again.
	Reread() error
	Close() error
}

// Partition is a partition of a disk that the kernel knows.
type Partition struct {
	Number int
	Path   string // path of its device node
	Size   int64  // bytes
}

// target returns the bound disk, if path, an environment variable's value, names it. The disk is
// found by its identity, never by its name. partition is 0 for the whole disk.
//
// Call it right before the first write, so that the disk is looked up again.
func (t *attempt) target(ctx context.Context, variable string) (disk action.Disk, partition int, err error) {
	if t.bound == nil {
		return disk, 0, errors.New("finding the disk: none is bound to this run")
	}
	path := t.env[variable]
	if partition, err = t.partitionOf(path); err != nil {
		return disk, 0, fmt.Errorf("finding the disk %s=%q: %w", variable, path, err)
	}
	disk, err = t.lookUp(ctx, *t.bound)
	return disk, partition, err
}

// present returns an error if the bound disk is missing. It runs before any other step of an action
// that writes.
func (t *attempt) present(ctx context.Context) error {
	if t.bound == nil {
		return errors.New("finding the disk: none is bound to this run")
	}
	_, err := t.lookUp(ctx, *t.bound)
	return err
}

// diskNames returns the paths by which the action calls the bound disk.
func (t *attempt) diskNames() []string {
	switch {
	case t.alias != "":
		return []string{t.alias}
	case t.bound != nil:
		return append([]string{t.bound.Path}, t.bound.ByID...)
	}
	return nil
}

// partitionOf returns the number of the bound disk's partition that path names, or 0 if path names
// the whole disk.
func (t *attempt) partitionOf(path string) (int, error) {
	if path == "" {
		return 0, nil
	}
	for _, name := range t.diskNames() {
		if n, ok := action.PartitionOf(path, name); ok {
			return n, nil
		}
	}
	return 0, fmt.Errorf("it is not the disk bound to this run (%s)", describe(*t.bound))
}

// identify returns the disk that matches bound. Serial number, WWN and size must agree. A disk
// without serial number and WWN is identified by path and size.
func identify(bound action.Disk, disks []action.Disk) (action.Disk, error) {
	var found []action.Disk
	for _, d := range disks {
		switch {
		case bound.Serial == "" && bound.WWN == "":
			if d.Path != bound.Path || d.Serial != "" || d.WWN != "" {
				continue
			}
		case bound.Serial != "" && d.Serial != bound.Serial, bound.WWN != "" && d.WWN != bound.WWN:
			continue
		}
		if d.Size != bound.Size {
			return d, fmt.Errorf("finding the disk %s: %s has %d bytes, not %d", describe(bound), d.Path, d.Size, bound.Size)
		}
		found = append(found, d)
	}

	switch {
	case len(found) == 0:
		there := make([]string, 0, len(disks))
		for _, d := range disks {
			there = append(there, d.Path+" "+describe(d))
		}
		return action.Disk{}, fmt.Errorf("finding the disk %s: it is not there; there are: %s", describe(bound),
			strings.Join(there, "; "))

	case len(found) > 1:
		return action.Disk{}, fmt.Errorf("finding the disk %s: %s and %s both match", describe(bound), found[0].Path,
			found[1].Path)
	case found[0].ReadOnly:
		return action.Disk{}, fmt.Errorf("finding the disk %s: %s is read-only", describe(bound), found[0].Path)
	}

	return found[0], nil
}

func describe(d action.Disk) string {
	var s []string
	if d.Serial != "" {
		s = append(s, "serial "+d.Serial)
	}
	if d.WWN != "" {
		s = append(s, "WWN "+d.WWN)
	}
	if len(s) == 0 {
		s = append(s, d.Path)
	}
	return strings.Join(append(s, fmt.Sprintf("%d bytes", d.Size)), ", ")
}

// open opens the whole bound disk for writing. variable names the disk: action.CheckDevice has refused a partition.
func (t *attempt) open(ctx context.Context, variable string) (action.Disk, Device, error) {
	if disk, _, err := t.target(ctx, variable); err != nil {
		return disk, nil, err
	}
	return t.openDisk(ctx, *t.bound)
}

// openDisk opens the disk that matches want for writing.
func (t *attempt) openDisk(ctx context.Context, want action.Disk) (action.Disk, Device, error) {
	disk, err := t.lookUp(ctx, want)
	if err != nil {
		return disk, nil, err
	}

	dev, err := t.agent.cfg.Disks.Open(disk.Path)
	if err != nil {
		return disk, nil, fmt.Errorf("opening %s: %w", disk.Path, err)
	}

	if dev.Size() != disk.Size {
		_ = dev.Close() // nothing was written
		return disk, nil, fmt.Errorf("opening %s: it has %d bytes, not %d", disk.Path, dev.Size(), disk.Size)
	}

	// Between the look-up and opening, the name may have passed to another disk. Look up again:
	// while the device is open, the name cannot change.
	if again, err := t.lookUp(ctx, want); err != nil || again.Path != disk.Path {
		_ = dev.Close() // nothing was written
		if err == nil {
			err = fmt.Errorf("the disk is now %s", again.Path)
		}
		return disk, nil, fmt.Errorf("opening %s: %w", disk.Path, err)
	}

	t.logf("disk %s (%s)", disk.Path, describe(disk))
	return disk, dev, nil
}

// closeDisk closes a disk that was written to. If closing fails and err is nil so far, it sets err.
func closeDisk(dev Device, path string, err *error) {
	if e := dev.Close(); e != nil && *err == nil {
		*err = fmt.Errorf("closing %s: %w", path, e)
	}
}

// lookUp lists the disks again and returns the one that matches want.
func (t *attempt) lookUp(ctx context.Context, want action.Disk) (action.Disk, error) {
	disks, err := t.agent.cfg.Disks.Disks(ctx)
	if err != nil {
		return action.Disk{}, fmt.Errorf("listing disks: %w", err)
	}
	disk, err := identify(want, disks)
	if err == nil && t.protects(disk) {
		return action.Disk{}, fmt.Errorf("finding the disk %s: the inventory protects it: it is never written",
			describe(want))
	}
	return disk, err
}

// protects reports whether the order protects d from writes.
func (t *attempt) protects(d action.Disk) bool {
	return slices.ContainsFunc(t.spared, func(id action.DiskID) bool { return id.Is(d) })
}

// FileDisks are files that replace disks in tests and in simulated machines. The zero value has no
// disks.
type FileDisks []FileDisk

// FileDisk is one disk in a file. Disk.Size is the file's size.
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
func (f FileDisks) Open(path string) (Device, error) {
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
		_ = file.Close() // the error of Stat or of the size is returned
		return nil, err
	}
	return &fileDevice{File: file, size: st.Size()}, nil
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
	table, err := readTable(dev, dev.Size(), dev.SectorSize())
	if err != nil {
		return nil, fmt.Errorf("reading the partition table of %s: %w", path, err)
	}

	var parts []FilePartition
	for _, p := range table.parts {
		parts = append(parts, FilePartition{File: disk.File, Number: p.number, Start: p.start, Size: p.size})
	}
	return parts, nil
}

// fileDevice is a file as a disk of 512-byte sectors.
type fileDevice struct {
	*os.File
	size int64
}

func (d *fileDevice) Size() int64     { return d.size }
func (d *fileDevice) SectorSize() int { return 512 }
func (d *fileDevice) Reread() error   { return nil }

// WriteAt returns an error instead of extending the file: a disk does not grow.
func (d *fileDevice) WriteAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > d.size {
		return 0, fmt.Errorf("writing %d bytes at %d: no space left on a disk of %d bytes", len(p), off, d.size)
	}
	return d.File.WriteAt(p, off)
}

func (d *fileDevice) Zero(off, n int64) error { return zeroByWriting(d, off, n) }

// writeBlocks writes p at off, and long runs of zeros with the device's Zero.
func writeBlocks(dev Device, p []byte, off int64) error {
	if len(p) >= mib && allZero(p) {
		return dev.Zero(off, int64(len(p)))
	}

	// Direct I/O needs whole pages; a shorter end goes through the page cache.
	whole := len(p) &^ (pageSize - 1)
	if whole > 0 {
		if _, err := dev.WriteAt(p[:whole], off); err != nil {
			return err
		}
	}
	if whole < len(p) {
		if _, err := dev.WriteAt(p[whole:], off+int64(whole)); err != nil {
			return err
		}
	}
	return nil
}

// writeVerified writes p at off, syncs the device and reads p back.
func writeVerified(dev Device, p []byte, off int64) error {
	if err := writeBlocks(dev, p, off); err != nil {
		return err
	}
	if err := dev.Sync(); err != nil {
		return err
	}

	back := aligned(len(p))
	if _, err := dev.ReadAt(back, off); err != nil {
		return fmt.Errorf("reading back at byte %d: %w", off, err)
	}
	if !bytes.Equal(back, p) {
		return fmt.Errorf("reading back at byte %d: the disk returned different bytes than were written", off)
	}
	return nil
}

// zeros returns a MiB of zero bytes; it must not be changed.
var zeros = sync.OnceValue(func() []byte { return aligned(mib) })

// zeroByWriting writes n zero bytes at off, without help of the device.
func zeroByWriting(w io.WriterAt, off, n int64) error {
	for n > 0 {
		k, err := w.WriteAt(zeros()[:min(n, mib)], off)
		if err != nil {
			return err
		}
		off, n = off+int64(k), n-int64(k)
	}
	return nil
}

// pageSize is the largest alignment that direct I/O requires.
const pageSize = 4096

// aligned returns n zero bytes at an address that is a multiple of pageSize.
func aligned(n int) []byte {
	b := make([]byte, n+pageSize)
	skip := 0
	if over := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % pageSize); over != 0 {
		skip = pageSize - over
	}
	return b[skip : skip+n : skip+n]
}

// allZero reports whether b contains only zero bytes: the first byte is zero, and each byte equals
// the one before it.
func allZero(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

// Facts lists the disks with their contents.
func (f FileDisks) Facts(ctx context.Context) ([]action.Disk, error) {
	disks, err := f.Disks(ctx)
	for i := range disks {
		file, err := os.Open(f[i].File)
		if err != nil {
			return disks, err
		}
		disks[i].Signatures, disks[i].Blank = Signatures(file, disks[i].Size, 512)
		_ = file.Close() // opened only for reading
	}
	return disks, err
}
