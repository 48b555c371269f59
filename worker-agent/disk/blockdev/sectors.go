package blockdev

import (
	"fmt"
)

// VerifyZero reads len(buf) bytes at off, or fewer if end comes first. It returns the number of bytes that it has read, or an error
// if one of them is not zero.
func VerifyZero(dev Device, buf []byte, off, end int64) (int64, error) {
	p := buf[:min(int64(len(buf)), end-off)]
	if _, err := dev.ReadAt(p, off); err != nil {
		sector, e := FindBadSector(dev, off, int64(len(p)), readSector)
		if e == nil {
			e = err
		}
		return 0, fmt.Errorf("sector %d cannot be read: %w", sector, e)
	}
	if !AllZero(p) {
		return 0, fmt.Errorf("not all bytes between %d and %d are zero: the disk did not keep what was written", off,
			off+int64(len(p)))
	}
	return int64(len(p)), nil
}

// FindBadSector calls do for each MiB of the n bytes at off and, if that fails, for each sector of that MiB. It returns the number and
// the error of the first sector that fails; if none fails, the error is nil.
func FindBadSector(dev Device, off, n int64, do func(dev Device, p []byte, off int64) error) (sector int64, err error) {
	size := int64(dev.SectorSize())
	buf := Aligned(MiB)
	for at := off; at < off+n; {
		k := min(MiB, off+n-at)
		if do(dev, buf[:k], at) != nil {
			for s := at; s < at+k; s += size {
				if err := do(dev, buf[:min(size, at+k-s)], s); err != nil {
					return s / size, err
				}
			}
		}

		at += k
	}

	return off / size, nil
}

// WriteZero overwrites len(p) bytes at off with zeros and syncs the device. Without the sync, a bad sector could stay hidden: a
// write that is too small for direct I/O goes to the page cache first.
func WriteZero(dev Device, p []byte, off int64) error {
	clear(p)
	if _, err := dev.WriteAt(p, off); err != nil {
		return err
	}
	return dev.Sync()
}

func readSector(dev Device, p []byte, off int64) error {
	_, err := dev.ReadAt(p, off)
	return err
}
