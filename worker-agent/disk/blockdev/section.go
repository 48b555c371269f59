package blockdev

import (
	"fmt"
	"io"
)

// section is a part of a device, such as a partition.
type section struct {
	Device
	start, size int64 // bytes
}

// NewSection returns the size bytes of dev from the offset start as a Device of its own. Reads and writes outside of the section fail.
// Closing the section closes dev.
func NewSection(dev Device, start, size int64) Device { return section{dev, start, size} }

func (s section) Size() int64 { return s.size }

func (s section) check(off, n int64) error {
	if off < 0 || n < 0 || off > s.size-n {
		return fmt.Errorf("accessing %d bytes at byte %d: the partition has only %d bytes", n, off, s.size)
	}
	return nil
}

func (s section) ReadAt(p []byte, off int64) (int, error) {
	if off >= s.size {
		return 0, io.EOF
	}
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	return s.Device.ReadAt(p, s.start+off)
}

func (s section) WriteAt(p []byte, off int64) (int, error) {
	if err := s.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	return s.Device.WriteAt(p, s.start+off)
}

// Zero implements Device.
func (s section) Zero(off, n int64) error {
	if err := s.check(off, n); err != nil {
		return err
	}
	return s.Device.Zero(s.start+off, n)
}
