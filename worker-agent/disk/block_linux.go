package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"golang.org/x/sys/unix"
)

// BlockDisks finds and opens the machine's real disks.
type BlockDisks struct {
	// Sys is the directory on which sysfs is mounted; "" = /sys.
	Sys string
}

// Disks implements Disks.
func (b BlockDisks) Disks(context.Context) ([]action.Disk, error) {
	return List(cmp.Or(b.Sys, "/sys"))
}

// Open implements Disks. It returns an error if path is not a block device but, for example, a regular file that was created in
// devtmpfs.
func (BlockDisks) Open(path string) (blockdev.Device, error) {
	// With O_EXCL, opening a block device fails if it is mounted or another process has it open with O_EXCL.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}

	d := &blockDevice{file: f}
	if err := d.measure(); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}

	// If direct I/O is not possible, all reads and writes go through the page cache.
	if direct, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0); err == nil {
		d.direct = direct
	}
	return d, nil
}

// blockDevice is a disk that is opened twice, for cached and for direct I/O. The kernel keeps both coherent.
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
		return errors.New("not a block device")
	}

	var size uint64
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, d.file.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size))); e != 0 {
		return fmt.Errorf("reading the device's size: %w", e)
	}

	d.size = int64(size)
	if d.sector, err = unix.IoctlGetInt(int(d.file.Fd()), unix.BLKSSZGET); err != nil {
		return fmt.Errorf("reading the device's sector size: %w", err)
	}
	return nil
}

func (d *blockDevice) Size() int64     { return d.size }
func (d *blockDevice) SectorSize() int { return d.sector }

// suits reports whether direct I/O is possible for p at off. Partitions need not begin at a multiple of the page size.
func (d *blockDevice) suits(p []byte, off int64) bool {
	return d.direct != nil && len(p) > 0 && len(p)%blockdev.PageSize == 0 && off%int64(d.sector) == 0 &&
		uintptr(unsafe.Pointer(unsafe.SliceData(p)))%blockdev.PageSize == 0
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

// Zero implements Device. BLKZEROOUT guarantees that the span reads as zero: it uses the device's own command if there is one, and
// otherwise writes zeros.
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
	return blockdev.WriteZeros(d, off, n)
}

func (d *blockDevice) Sync() error { return d.file.Sync() }

// Reread implements Device. It retries for 2 s, because a program such as udev may open a new partition, which makes the disk busy
// for milliseconds.
func (d *blockDevice) Reread() error {
	var err error
	for range 20 {
		if err = unix.IoctlSetInt(int(d.file.Fd()), unix.BLKRRPART, 0); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if errors.Is(err, unix.EINVAL) {
		return nil // the disk does not support partitions
	}
	return err
}

func (d *blockDevice) Close() error {
	if d.direct != nil {
		_ = d.direct.Close() // Sync has already synced everything that was written through direct
	}
	return d.file.Close()
}
