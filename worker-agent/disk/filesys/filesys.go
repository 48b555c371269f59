// Package filesys mounts the file systems of the machine, writes files into them, extracts archives into them, and runs their
// programs.
package filesys

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

// Commander is an optional interface of a Filesystems that can run programs of an installed system.
type Commander interface {
	// RunInside runs the program words[0] with its arguments, chrooted into root. All processes that the program has started end with it.
	// log gets the output, line by line. exit is the program's exit code; it is 0 for an error without an exit code.
	RunInside(ctx context.Context, root string, words, env []string, log func(line string)) (exit int, err error)
}

// Partition is a partition or another block device that the kernel has found.
type Partition struct {
	Number int
	Path   string // path of its device node
	Size   int64  // bytes
}

// Programs is an optional interface of a Filesystems. It runs programs of the agent's own system, which create file systems, arrays
// and logical volumes.
type Programs interface {
	// Has returns nil if the system contains program, and otherwise an error that tells the user what to do.
	Has(program string) error
	// Run runs program. log gets the output, line by line. exit is the program's exit code; it is 0 for an error without an exit code.
	Run(ctx context.Context, program string, args []string, log func(line string)) (exit int, err error)
	// Volume returns the active array or logical volume that has this name in the kernel.
	Volume(name string) (Volume, bool)
	// BootCode returns SYSLINUX's code for the boot sector of a disk with the given kind of partition table, gpt or mbr.
	BootCode(table string) ([]byte, error)
}

// A Volume is an active array or logical volume.
type Volume struct {
	Partition
	Level   string // RAID level of an array, such as raid1; "" for a volume
	Members int    // number of an array's devices without spares
}

// Grower is an optional interface of a Filesystems that can enlarge file systems.
type Grower interface {
	// Grow enlarges the file system of type fstype on device to size, the size of the device in bytes. If Grow returns
	// errors.ErrUnsupported, it has changed nothing, and the installed system has to enlarge the file system.
	Grow(ctx context.Context, device, fstype string, size int64) error
}

// Filesystems lists partitions and mounts their file systems.
type Filesystems interface {
	// Partitions lists the partitions of the disk at path.
	Partitions(ctx context.Context, path string) ([]Partition, error)
	// Mount mounts the file system of type fstype on device, and returns the directory on which it is mounted. unmount syncs and
	// unmounts the file system; if it returns an error, some data may not be on the disk.
	Mount(ctx context.Context, device, fstype string, readOnly bool) (dir string, unmount func() error, err error)
}

// TypeOf returns the type of the file system on p, or "" if it is unknown or cannot be read.
func TypeOf(p Partition) string {
	f, err := os.Open(p.Path)
	if err != nil {
		return ""
	}
	// Opened only for reading.
	defer func() { _ = f.Close() }()
	return probe.FileSystem(f, p.Size)
}

// UseMounted mounts the file system on part and calls do with its root. When it returns, the file system is unmounted and
// all data that do has written is on the disk.
func UseMounted(ctx context.Context, files Filesystems, part Partition, fstype string, readOnly bool,
	do func(root Tree) error,
) error {
	dir, unmount, err := files.Mount(ctx, part.Path, fstype, readOnly)
	if err != nil {
		return err
	}
	root, err := OpenTree(dir)
	if err == nil {
		err = do(root)
		root.Close()
	}
	if e := unmount(); e != nil {
		err = errors.Join(err, fmt.Errorf("unmounting %s: %w", part.Path, e))
	}
	return err
}
