// Package filesys gives access to the file systems of the machine: it mounts them, writes files into them, extracts archives
// into them and runs their programs.
package filesys

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

// Commander is an optional part of a Filesystems: it can run programs of an installed system.
type Commander interface {
	// RunInside runs a program with its arguments below root, a folder that is / for it. What the
	// program has started ends with it. log gets its output, line by line. exit is its exit code; an
	// error without one has exit 0.
	RunInside(ctx context.Context, root string, words, env []string, log func(line string)) (exit int, err error)
}

// Partition is a partition of a disk that the kernel knows.
type Partition struct {
	Number int
	Path   string // path of its device node
	Size   int64  // bytes
}

// Programs is an optional part of a Filesystems: it can run the programs of the agent's system that
// make file systems, arrays and logical volumes.
type Programs interface {
	// Has returns an error with a remedy if the system does not have program.
	Has(program string) error
	// Run runs program. log gets its output, line by line. exit is its exit code; an error without
	// one has exit 0.
	Run(ctx context.Context, program string, args []string, log func(line string)) (exit int, err error)
	// Volume returns the active array or logical volume with this name in the kernel.
	Volume(name string) (Volume, bool)
	// BootCode returns the code of SYSLINUX for the boot sector of a disk with a table of this kind,
	// gpt or mbr.
	BootCode(table string) ([]byte, error)
}

// A Volume is an active array or logical volume.
type Volume struct {
	Partition
	Level   string // of an array, such as raid1
	Members int    // of an array, without spares
}

// Grower is an optional part of a Filesystems: it can enlarge file systems.
type Grower interface {
	// Grow enlarges the file system of type fstype at device to the device's size in bytes.
	// errors.ErrUnsupported means that nothing was changed and that the installed system has to
	// grow it.
	Grow(ctx context.Context, device, fstype string, size int64) error
}

// Filesystems gives access to the file systems on a disk's partitions.
type Filesystems interface {
	// Partitions lists the partitions of the disk at path.
	Partitions(ctx context.Context, path string) ([]Partition, error)
	// Mount mounts the file system of type fstype at device and returns the directory. unmount
	// writes out everything; an error of unmount is a failed write.
	Mount(ctx context.Context, device, fstype string, readOnly bool) (dir string, unmount func() error, err error)
}

// TypeOf returns the type of the file system on p.
func TypeOf(p Partition) string {
	f, err := os.Open(p.Path)
	if err != nil {
		return ""
	}
	// Opened only for reading.
	defer func() { _ = f.Close() }()
	return probe.FileSystem(f, p.Size)
}

// UseMounted calls do with the file system on part. When it returns, the file system is unmounted and
// everything that do wrote is on the disk.
func UseMounted(ctx context.Context, files Filesystems, part Partition, fstype string, readOnly bool,
	do func(root Tree) error,
) error {
	dir, unmount, err := files.Mount(ctx, part.Path, fstype, readOnly)
	if err != nil {
		return err
	}
	root, err := openTree(dir)
	if err == nil {
		err = do(root)
		root.close()
	}
	if e := unmount(); e != nil {
		err = errors.Join(err, fmt.Errorf("unmounting %s: %w", part.Path, e))
	}
	return err
}
