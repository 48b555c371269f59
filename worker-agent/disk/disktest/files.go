// Package disktest makes disks and their contents in files, for tests.
package disktest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"golang.org/x/sys/unix"
)

// Sparse creates a disk of size bytes that reads as zero. It returns the disk and the path of its file.
func Sparse(t *testing.T, size int64) (disk.FileDisks, *action.Disk, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	NewFile(t, file, size)
	d := action.Disk{Path: "/dev/sda", Serial: "S1", Size: size}
	return disk.FileDisks{{Disk: d, File: file}}, &d, file
}

// Put copies a file into another file, at offset off of that file, and leaves out the holes.
func Put(t *testing.T, from, to string, off int64) {
	t.Helper()
	st, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	CopyData(t, from, 0, st.Size(), to, off)
}

// Cut creates a file from the n bytes at offset off of another file, and returns the path of the new file.
func Cut(t *testing.T, from string, off, n int64) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "part")
	NewFile(t, to, n)
	CopyData(t, from, off, n, to, 0)
	return to
}

// MapFile maps a file into memory: later changes of the file are visible in the slice, and writes to the slice change the file.
func MapFile(t *testing.T, file string) []byte {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

// NewFile creates a file that has the given size but occupies no space, and reads as zero.
func NewFile(t *testing.T, file string, size int64) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, size)); err != nil {
		t.Fatal(err)
	}
}

// CopyData copies n bytes from one file, at offset off, into another file, at offset at. It leaves out holes.
func CopyData(t *testing.T, from string, off, n int64, to string, at int64) {
	t.Helper()
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for next, end := off, off+n; next < end; {
		data, err := src.Seek(next, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= end {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if next, err = src.Seek(data, unix.SEEK_HOLE); err != nil {
			t.Fatal(err)
		}
		next = min(next, end)
		_, e1 := src.Seek(data, io.SeekStart)
		_, e2 := dst.Seek(at+data-off, io.SeekStart)
		_, e3 := io.CopyN(dst, src, next-data) // copy_file_range(2)
		if err := errors.Join(e1, e2, e3); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(src.Close(), dst.Close()); err != nil {
		t.Fatal(err)
	}
}

// OldData returns n bytes that look like old disk contents. They must not be changed.
func OldData(n int) []byte { return everOldData()[:n:n] }

var everOldData = sync.OnceValue(func() []byte {
	b, err := unix.Mmap(-1, 0, 96*blockdev.MiB, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	for n := copy(b, "old data "); n < len(b); n += copy(b[n:], b[:n]) {
	}
	if err := unix.Mprotect(b, unix.PROT_READ); err != nil {
		panic(err)
	}
	return b
})

// WriteAt writes b to a file at off.
func WriteAt(t *testing.T, file string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(b, off)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// OldDisk creates a disk of size bytes that is filled with OldData. It returns the disk and the path of its file.
func OldDisk(t *testing.T, size int64) (disk.FileDisks, *action.Disk, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, OldData(int(size)), 0o600); err != nil {
		t.Fatal(err)
	}
	d := action.Disk{Path: "/dev/sda", Serial: "S1", Size: size}
	return disk.FileDisks{{Disk: d, File: file}}, &d, file
}
