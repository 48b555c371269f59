package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// Partitions implements agent.Filesystems without loop devices: it copies each partition to a file
// next to the file of the disk.
func (s simulated) Partitions(_ context.Context, path string) ([]filesys.Partition, error) {
	found, err := s.disks.Partitions(path)
	if err != nil {
		return nil, err
	}

	var parts []filesys.Partition
	for _, f := range found {
		p := simulatedPartition{f}
		if err := p.load(); err != nil {
			return nil, err
		}
		parts = append(parts, filesys.Partition{Number: p.Number, Path: p.path(), Size: p.Size})
	}
	return parts, nil
}

// Mount implements agent.Filesystems without a mount: debugfs(8) extracts the file system to a
// directory, and at the unmount mke2fs(8) builds the file system again from that directory.
func (s simulated) Mount(ctx context.Context, device, fstype string, readOnly bool) (string, func() error, error) {
	if fstype != "ext4" {
		return "", nil, fmt.Errorf("mounting %s: a simulated machine has no driver for file system %s", device, fstype)
	}

	found, err := s.find(device)
	if err != nil {
		return "", nil, fmt.Errorf("mounting %s: %w", device, err)
	}

	dir, err := os.MkdirTemp(filepath.Dir(device), filepath.Base(device)+".mnt-")
	if err != nil {
		return "", nil, err
	}
	if out, err := exec.CommandContext(ctx, "debugfs", "-R", "rdump / "+dir, device).CombinedOutput(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("reading %s: %w: %s", device, err, out), os.RemoveAll(dir))
	}
	return dir, func() error {
		var err error
		if !readOnly {
			err = found.rebuild(dir)
		}
		return errors.Join(err, os.RemoveAll(dir))
	}, nil
}

// Grow implements agent.Grower with resize2fs(8), if it is installed.
func (s simulated) Grow(ctx context.Context, device, fstype string, _ int64) error {
	if fstype != "ext4" {
		return fmt.Errorf("a simulated machine has no driver for file system %s: %w", fstype, errors.ErrUnsupported)
	}
	found, err := s.find(device)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "resize2fs", "-f", device).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("resize2fs: %w: %s", err, out)
	}
	return found.store()
}

// find returns the partition whose copy is the file called device.
func (s simulated) find(device string) (simulatedPartition, error) {
	for _, d := range s.disks {
		parts, err := s.disks.Partitions(d.Path)
		if err != nil {
			continue // if the disk cannot be read, none of its partitions was copied
		}
		for _, f := range parts {
			if p := (simulatedPartition{f}); p.path() == device {
				return p, nil
			}
		}
	}
	return simulatedPartition{}, errors.New("no simulated disk has this partition")
}

// simulatedPartition is a partition with a copy in a file next to the file of the disk.
type simulatedPartition struct{ disk.FilePartition }

// path returns the path of the copy.
func (p simulatedPartition) path() string { return fmt.Sprintf("%s.p%d", p.File, p.Number) }

// load writes the content of the partition to the copy.
func (p simulatedPartition) load() error {
	disk, err := os.Open(p.File)
	if err != nil {
		return err
	}
	// Ignore the error: the file was only read.
	defer func() { _ = disk.Close() }()
	copied, err := os.Create(p.path())
	if err != nil {
		return err
	}
	_, err = io.Copy(copied, io.NewSectionReader(disk, p.Start, p.Size))
	return errors.Join(err, copied.Close())
}

// rebuild creates a new file system with the files in dir and the old label, and writes it to the partition.
func (p simulatedPartition) rebuild(dir string) error {
	old, err := os.Open(p.path())
	if err != nil {
		return err
	}

	label := make([]byte, 16) // s_volume_name
	_, err = old.ReadAt(label, 1024+120)
	if err := errors.Join(err, old.Close()); err != nil {
		return err
	}

	// Remove lost+found, because mke2fs creates it.
	if err := os.RemoveAll(filepath.Join(dir, "lost+found")); err != nil {
		return err
	}
	if out, err := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum_seed",
		"-L", strings.TrimRight(string(label), "\x00"), "-d", dir, p.path()).CombinedOutput(); err != nil {
		return fmt.Errorf("writing %s: %w: %s", p.path(), err, out)
	}
	return p.store()
}

// store writes the copy back to the partition.
func (p simulatedPartition) store() error {
	made, err := os.Open(p.path())
	if err != nil {
		return err
	}
	// Ignore the error: the file was only read.
	defer func() { _ = made.Close() }()
	disk, err := os.OpenFile(p.File, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(disk, p.Start), io.LimitReader(made, p.Size))
	return errors.Join(err, disk.Sync(), disk.Close())
}
