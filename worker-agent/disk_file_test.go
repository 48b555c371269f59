package agent

import (
	"errors"
	"io"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The disks of these tests are sparse files of up to hundreds of MiB. The race detector slows down
// every byte in Go's heap: the helpers here keep the bytes in the page cache.

// mapFile maps the contents of a file; later changes of the file are visible in the slice. Writes
// to the slice change the file.
func mapFile(t *testing.T, file string) []byte {
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

// newFile creates a file of size zero bytes without allocating them.
func newFile(t *testing.T, file string, size int64) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, size)); err != nil {
		t.Fatal(err)
	}
}

// copyData copies n bytes from offset off of the file from to offset at of the file to, without
// holes.
func copyData(t *testing.T, from string, off, n int64, to string, at int64) {
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

// oldData returns n bytes of old disk contents. The bytes cannot be written to.
func oldData(n int) []byte { return everOldData()[:n:n] }

var everOldData = sync.OnceValue(func() []byte {
	b, err := unix.Mmap(-1, 0, 96*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
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
