// Package filesystest provides file systems in directories, for tests.
package filesystest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// FakeFiles are directories that serve as mounted partitions.
type FakeFiles struct {
	Parts  []filesys.Partition
	Dirs   map[string]string // by Partition.Path
	Misses int               // number of calls for which Partitions returns none
	Mounts []string
	Stuck  bool
}

// Partitions implements filesys.Filesystems.
func (f *FakeFiles) Partitions(context.Context, string) ([]filesys.Partition, error) {
	if f.Misses > 0 {
		f.Misses--
		return nil, nil
	}
	return f.Parts, nil
}

// Mount implements filesys.Filesystems.
func (f *FakeFiles) Mount(_ context.Context, device, fstype string, readOnly bool) (string, func() error, error) {
	f.Mounts = append(f.Mounts, fstype)
	return f.Dirs[device], func() error {
		if f.Stuck && !readOnly {
			return errors.New("device or resource busy")
		}
		return nil
	}, nil
}

// ExtPartition returns partition n, a file with the signature of an ext file system.
func ExtPartition(t *testing.T, n int, size int64) filesys.Partition {
	t.Helper()
	b := make([]byte, 4096)
	b[0x438], b[0x439] = 0x53, 0xef
	file := filepath.Join(t.TempDir(), "part")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return filesys.Partition{Number: n, Path: file, Size: size}
}
