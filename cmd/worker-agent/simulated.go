package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	agent "github.com/ingotmetal/ingot/worker-agent"
)

// Partitions implements agent.Filesystems, without loop devices: each
// partition is a copy beside the disk's file.
func (s simulated) Partitions(_ context.Context, path string) ([]agent.Partition, error) {
	var parts []agent.Partition
	err := s.eachPartition(path, func(p simulatedPartition) error {
		disk, err := os.Open(p.disk)
		if err != nil {
			return err
		}
		// Only read from.
		defer func() { _ = disk.Close() }()
		copied, err := os.Create(p.path())
		if err != nil {
			return err
		}
		_, err = io.Copy(copied, io.NewSectionReader(disk, p.start, p.size))
		parts = append(parts, agent.Partition{Number: p.number, Path: p.path(), Size: p.size})
		return errors.Join(err, copied.Close())
	})
	return parts, err
}

// Mount implements agent.Filesystems, without mounts: debugfs(8) takes the
// file system apart into a directory, mke2fs(8) puts it together again.
func (s simulated) Mount(ctx context.Context, device, fstype string, readOnly bool) (string, func() error, error) {
	if fstype != "ext4" {
		return "", nil, fmt.Errorf("mounting %s: a simulated machine has no driver of %s", device, fstype)
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

// Grow implements agent.Grower, by resize2fs(8) where it is installed.
func (s simulated) Grow(ctx context.Context, device, fstype string, _ int64) error {
	if fstype != "ext4" {
		return fmt.Errorf("a simulated machine has no driver of %s: %w", fstype, errors.ErrUnsupported)
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

// find returns the partition whose copy is at device.
func (s simulated) find(device string) (found simulatedPartition, err error) {
	for _, d := range s.disks {
		err := s.eachPartition(d.Path, func(p simulatedPartition) error {
			if p.path() == device {
				found = p
			}
			return nil
		})
		if err == nil && found.disk != "" { // an unreadable disk has no such partition
			return found, nil
		}
	}
	return found, errors.New("there is no such partition")
}

// simulatedPartition is where a partition lies in the file of its disk.
type simulatedPartition struct {
	disk        string
	number      int
	start, size int64
}

// path is that of the partition's copy.
func (p simulatedPartition) path() string { return fmt.Sprintf("%s.p%d", p.disk, p.number) }

// eachPartition calls f with each partition of the disk at path.
func (s simulated) eachPartition(path string, f func(p simulatedPartition) error) error {
	for _, d := range s.disks {
		if d.Path != path {
			continue
		}

		disk, err := os.Open(d.File)
		if err != nil {
			return err
		}
		// Only read from.
		defer func() { _ = disk.Close() }()

		// The table at the beginning, of 512-byte sectors (UEFI specification
		// §5.3): an installation has just written it and read it back.
		head := make([]byte, 92)
		if _, err := disk.ReadAt(head, 512); err != nil {
			return err
		}

		le := binary.LittleEndian
		at, count, size := int64(le.Uint64(head[72:]))*512, int(le.Uint32(head[80:])), int(le.Uint32(head[84:]))
		if string(head[:8]) != "EFI PART" || count > 1024 || size < 128 || size > 4096 {
			return fmt.Errorf("reading the partition table of %s: there is none", path)
		}

		entries := make([]byte, count*size)
		if _, err := disk.ReadAt(entries, at); err != nil {
			return err
		}

		for n := range count {
			e := entries[n*size:]
			first, last := int64(le.Uint64(e[32:])), int64(le.Uint64(e[40:]))
			if first == 0 || last < first {
				continue
			}
			if err := f(simulatedPartition{
				disk: d.File, number: n + 1, start: first * 512,
				size: (last - first + 1) * 512,
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// rebuild makes a file system of dir and writes it to the disk.
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

	// mke2fs makes its own.
	if err := os.RemoveAll(filepath.Join(dir, "lost+found")); err != nil {
		return err
	}
	if out, err := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum_seed",
		"-L", strings.TrimRight(string(label), "\x00"), "-d", dir, p.path()).CombinedOutput(); err != nil {
		return fmt.Errorf("writing %s: %w: %s", p.path(), err, out)
	}
	return p.store()
}

// store writes the partition's copy to the disk.
func (p simulatedPartition) store() error {
	made, err := os.Open(p.path())
	if err != nil {
		return err
	}
	// Only read from.
	defer func() { _ = made.Close() }()
	disk, err := os.OpenFile(p.disk, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(disk, p.start), io.LimitReader(made, p.size))
	return errors.Join(err, disk.Sync(), disk.Close())
}
