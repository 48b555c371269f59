package filesys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"golang.org/x/sys/unix"
)

// HostFilesystems mounts the file systems on the machine's real disks.
type HostFilesystems struct {
	// Sys is the directory on which sysfs is mounted; "" = /sys.
	Sys string
	// Load loads a kernel module; nil = the kernel has all modules built in.
	Load func(module string) error
	// Children is locked while a program runs. PID 1 also locks it while it reaps orphans: otherwise PID 1 could take the program's
	// exit code. nil = another process reaps orphans.
	Children sync.Locker
}

// Partitions implements Filesystems.
func (h HostFilesystems) Partitions(_ context.Context, path string) ([]Partition, error) {
	numbers, err := filepath.Glob(filepath.Join(cmp.Or(h.Sys, "/sys"), "block", filepath.Base(path), "*", "partition"))
	if err != nil {
		return nil, err
	}

	var parts []Partition
	for _, file := range numbers {
		dir := filepath.Dir(file)
		n, err := strconv.Atoi(blockdev.Attribute(file))
		if err != nil {
			continue
		}
		sectors, err := strconv.ParseInt(blockdev.Attribute(dir, "size"), 10, 64)
		if err != nil {
			continue
		}
		parts = append(parts, Partition{Number: n, Path: "/dev/" + filepath.Base(dir), Size: sectors * 512})
	}

	return parts, nil
}

// Mount implements Filesystems.
func (h HostFilesystems) Mount(_ context.Context, device, fstype string, readOnly bool) (string, func() error, error) {
	if h.Load != nil {
		if err := h.Load(fstype); err != nil {
			return "", nil, err
		}
	}

	dir, err := os.MkdirTemp("", "mnt")
	if err != nil {
		return "", nil, err
	}

	var flags uintptr = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	options := ""
	if readOnly {
		flags |= unix.MS_RDONLY
		switch fstype {
		case "ext4":
			options = "noload" // a read-only mount must not replay the journal
		case "xfs":
			options = "norecovery,nouuid"
		}
	} else if fstype == "xfs" {
		options = "nouuid"
	}

	if err := unix.Mount(device, dir, fstype, flags, options); err != nil {
		_ = os.Remove(dir) // the directory is empty and exists only in memory
		return "", nil, fmt.Errorf("mounting %s as %s: %w", device, fstype, err)
	}
	return dir, func() error {
		var errs []error
		if !readOnly {
			if d, err := os.Open(dir); err == nil {
				errs = append(errs, unix.Syncfs(int(d.Fd())), d.Close())
			}
		}

		// Do not use MNT_DETACH: all data is certainly written only once an ordinary unmount has succeeded.
		return errors.Join(append(errs, unix.Unmount(dir, 0), os.Remove(dir))...)
	}, nil
}
