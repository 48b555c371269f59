package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/ingotmetal/ingot/action"
	"golang.org/x/sys/unix"
)

// BlockDisks are the machine's real disks.
type BlockDisks struct {
	// Sys is where sysfs is mounted; "" means /sys.
	Sys string
}

// Disks implements Disks.
func (b BlockDisks) Disks(context.Context) ([]action.Disk, error) {
	return listDisks(cmp.Or(b.Sys, "/sys"))
}

// Open implements Disks. It refuses anything but a block device: on devtmpfs a
// mistyped name would become a file in memory.
func (BlockDisks) Open(path string) (Device, error) {
	// O_EXCL on a block device means that neither a mount nor another opener
	// of this kind holds it.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}

	d := &blockDevice{file: f}
	if err := d.measure(); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}

	// Where direct I/O is not to be had, the page cache does.
	if direct, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0); err == nil {
		d.direct = direct
	}
	return d, nil
}

// blockDevice is a disk, opened twice: the kernel keeps direct and cached I/O
// of one device coherent.
type blockDevice struct {
	file, direct *os.File
	size         int64
	sector       int
}

func (d *blockDevice) measure() error {
	st, err := d.file.Stat()
	if err != nil {
		return err
	}
	if st.Mode()&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return errors.New("it is not a block device")
	}

	var size uint64
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, d.file.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size))); e != 0 {
		return fmt.Errorf("asking for its size: %w", e)
	}

	d.size = int64(size)
	if d.sector, err = unix.IoctlGetInt(int(d.file.Fd()), unix.BLKSSZGET); err != nil {
		return fmt.Errorf("asking for its sector size: %w", err)
	}
	return nil
}

func (d *blockDevice) Size() int64     { return d.size }
func (d *blockDevice) SectorSize() int { return d.sector }

// suits reports whether I/O of p at off can be direct.
func (d *blockDevice) suits(p []byte, off int64) bool {
	return d.direct != nil && len(p) > 0 && len(p)%pageSize == 0 && off%pageSize == 0 &&
		uintptr(unsafe.Pointer(unsafe.SliceData(p)))%pageSize == 0
}

// ReadAt implements io.ReaderAt.
func (d *blockDevice) ReadAt(p []byte, off int64) (int, error) {
	if d.suits(p, off) {
		n, err := d.direct.ReadAt(p, off)
		if !errors.Is(err, unix.EINVAL) {
			return n, err
		}
	}
	return d.file.ReadAt(p, off)
}

// WriteAt implements io.WriterAt.
func (d *blockDevice) WriteAt(p []byte, off int64) (int, error) {
	if d.suits(p, off) {
		n, err := d.direct.WriteAt(p, off)
		if !errors.Is(err, unix.EINVAL) {
			return n, err
		}
	}
	return d.file.WriteAt(p, off)
}

// Zero implements Device: BLKZEROOUT promises zeros, by the device's own
// command where it has one, and writes them where not.
func (d *blockDevice) Zero(off, n int64) error {
	if s := int64(d.sector); off%s == 0 && n%s == 0 {
		span := [2]uint64{uint64(off), uint64(n)}
		_, _, e := unix.Syscall(unix.SYS_IOCTL, d.file.Fd(), unix.BLKZEROOUT, uintptr(unsafe.Pointer(&span)))
		if e == 0 {
			return nil
		}
		if e != unix.EOPNOTSUPP && e != unix.ENOTTY && e != unix.EINVAL {
			return e
		}
	}
	return zeroByWriting(d, off, n)
}

func (d *blockDevice) Sync() error { return d.file.Sync() }

// Reread implements Device. A program that looks at a new partition at this
// moment makes the disk busy, for milliseconds.
func (d *blockDevice) Reread() error {
	var err error
	for range 20 {
		if err = unix.IoctlSetInt(int(d.file.Fd()), unix.BLKRRPART, 0); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if errors.Is(err, unix.EINVAL) {
		return nil // a disk without partitions
	}
	return err
}

func (d *blockDevice) Close() error {
	if d.direct != nil {
		_ = d.direct.Close() // what it wrote has been synced through file
	}
	return d.file.Close()
}
