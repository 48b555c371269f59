// Package blockdev reads and writes an open disk: aligned buffers, verified writes, zeros, and the search for bad sectors.
package blockdev

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"unsafe"
)

// MiB is 2^20 bytes.
const MiB = 1 << 20

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

// WriteBlocks writes p at off. If p is long and contains only zeros, it uses the device's Zero.
func WriteBlocks(dev Device, p []byte, off int64) error {
	if len(p) >= MiB && AllZero(p) {
		return dev.Zero(off, int64(len(p)))
	}

	// Direct I/O needs whole pages; a remainder goes through the page cache.
	whole := len(p) &^ (PageSize - 1)
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

// WriteVerified writes p at off, syncs the device, and compares p with the bytes that it reads back.
func WriteVerified(dev Device, p []byte, off int64) error {
	if err := WriteBlocks(dev, p, off); err != nil {
		return err
	}
	if err := dev.Sync(); err != nil {
		return err
	}

	back := Aligned(len(p))
	if _, err := dev.ReadAt(back, off); err != nil {
		return fmt.Errorf("reading back at byte %d: %w", off, err)
	}
	if !bytes.Equal(back, p) {
		return fmt.Errorf("reading back at byte %d: the disk returned different bytes than were written", off)
	}
	return nil
}

// zeros returns a MiB of zero bytes; it must not be changed.
var zeros = sync.OnceValue(func() []byte { return Aligned(MiB) })

// WriteZeros writes n zero bytes at off; it does not use a command of the device.
func WriteZeros(w io.WriterAt, off, n int64) error {
	for n > 0 {
		k, err := w.WriteAt(zeros()[:min(n, MiB)], off)
		if err != nil {
			return err
		}
		off, n = off+int64(k), n-int64(k)
	}
	return nil
}

// PageSize is the largest alignment that direct I/O requires.
const PageSize = 4096

// Aligned returns n zero bytes at an address that is a multiple of PageSize.
func Aligned(n int) []byte {
	b := make([]byte, n+PageSize)
	skip := 0
	if over := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % PageSize); over != 0 {
		skip = PageSize - over
	}
	return b[skip : skip+n : skip+n]
}

// AllZero reports whether b contains only zero bytes. It checks that the first byte is zero and that each byte equals the previous one.
func AllZero(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

// ReadAt returns n bytes at off, fewer at the end of r, or nil if they cannot be read.
func ReadAt(r io.ReaderAt, off int64, n int) []byte {
	if off < 0 {
		return nil
	}
	b := make([]byte, n)
	k, err := r.ReadAt(b, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return b[:k]
}
