package filesys

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ioctl requests of linux/fs/ext4/ext4.h, fs/xfs/libxfs/xfs_fs.h and linux/btrfs.h, as _IOW(group, number, size).
const (
	ext4Resize  = 1<<30 | 8<<16 | 'f'<<8 | 16    // EXT4_IOC_RESIZE_FS: u64, blocks
	xfsGrowData = 1<<30 | 16<<16 | 'X'<<8 | 110  // XFS_IOC_FSGROWFSDATA: u64 blocks, u32 imaxpct
	btrfsResize = 1<<30 | 4096<<16 | 0x94<<8 | 3 // BTRFS_IOC_RESIZE: s64 fd, char name[4088]
	btrfsGrow   = "1:max"                        // grow device 1 to its end
	btrfsName   = 8                              // offset of the name
	superblock  = 4096                           // number of bytes that readSuperblock reads
	ext4Magic   = "\x53\xef"                     // at offset 0x438
	xfsMagic    = "XFSB"                         // at offset 0
)

// Grow implements Grower. It mounts the file system, and makes the kernel grow it by an ioctl.
func (h HostFilesystems) Grow(ctx context.Context, device, fstype string, size int64) error {
	head, err := readSuperblock(device)
	if err != nil {
		return err
	}

	var request uintptr
	arg := make([]byte, 4096)
	le := binary.LittleEndian

	switch {
	case fstype == "ext4" && string(head[0x438:0x43a]) == ext4Magic:
		shift := 10 + le.Uint32(head[0x418:])
		if shift > 16 {
			return fmt.Errorf("reading the superblock: invalid block size of 2^%d bytes", shift)
		}
		request = ext4Resize
		le.PutUint64(arg, uint64(size>>shift))

	case fstype == "xfs" && string(head[:4]) == xfsMagic:
		block := binary.BigEndian.Uint32(head[4:])
		if block < 512 || block > 65536 {
			return fmt.Errorf("reading the superblock: invalid block size of %d bytes", block)
		}
		if want := uint64(size) / uint64(block); want <= binary.BigEndian.Uint64(head[8:]) {
			return nil
		}
		request = xfsGrowData
		le.PutUint64(arg, uint64(size)/uint64(block))
		le.PutUint32(arg[8:], uint32(head[127])) // sb_imax_pct, unchanged

	case fstype == "btrfs":
		request = btrfsResize
		copy(arg[btrfsName:], btrfsGrow)
	default:
		return fmt.Errorf("growing file system %q: %w", fstype, errors.ErrUnsupported)
	}

	dir, unmount, err := h.Mount(ctx, device, fstype, false)
	if err != nil {
		return err
	}

	err = resize(dir, request, arg)
	if e := unmount(); e != nil {
		return errors.Join(err, fmt.Errorf("unmounting %s: %w", device, e))
	}
	if err != nil || fstype != "ext4" {
		return err
	}

	// ext4 may not have grown although the ioctl has succeeded: compare the number of blocks.
	after, err := readSuperblock(device)
	if err != nil {
		return err
	}
	if bytes.Equal(after[0x404:0x408], head[0x404:0x408]) &&
		uint64(le.Uint32(head[0x404:])) < le.Uint64(arg)-le.Uint64(arg)/64 {
		return fmt.Errorf("the file system still has %d blocks: %w", le.Uint32(after[0x404:]), errors.ErrUnsupported)
	}
	return nil
}

// readSuperblock returns the beginning of the file system on device.
func readSuperblock(device string) ([]byte, error) {
	f, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	head := make([]byte, superblock)
	_, err = f.ReadAt(head, 0)
	return head, errors.Join(err, f.Close())
}

// resize calls the ioctl that grows the file system that is mounted on dir.
func resize(dir string, request uintptr, arg []byte) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}

	_, _, e := unix.Syscall(unix.SYS_IOCTL, d.Fd(), request, uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	if err := d.Close(); err != nil {
		return err
	}

	switch e {
	case 0:
		return nil
	case unix.ENOTTY, unix.EOPNOTSUPP, unix.EINVAL, unix.EPERM, unix.ENOSYS:
		// The file system has no space for a longer group table, or is marked as faulty. The kernel cannot correct that, but fsck and the
		// offline tool can.
		return fmt.Errorf("the kernel cannot grow the file system: %w: %w", e, errors.ErrUnsupported)
	}
	return e
}
