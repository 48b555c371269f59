package fat

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/filesystem/fat16"
)

// File is a file of the volume.
type File struct{ Name, Contents string }

// Check reads the files in the volume with go-diskfs, which shares no code with Make16. If the sector size is not 512 bytes, Check
// returns nil and checks nothing, because go-diskfs does not support other sector sizes.
func Check(volume []byte, sector int, files []File) error {
	if sector != 512 {
		return nil
	}
	vol, err := fat16.Read(memory{bytes.NewReader(volume)}, int64(len(volume)), 0, 512)
	if err != nil {
		return err
	}

	for _, f := range files {
		if f.Contents == "" {
			continue // go-diskfs cannot open empty files
		}

		b, err := vol.ReadFile("/" + f.Name)
		if err != nil {
			return fmt.Errorf("%q: %w", f.Name, err)
		}

		// go-diskfs v1.9 reads to the end of a file's last cluster. The size of the file is in its directory entry.
		st, err := vol.Stat(f.Name)
		if err != nil {
			return fmt.Errorf("%q: %w", f.Name, err)
		}
		if st.Size() != int64(len(f.Contents)) || string(b[:min(len(b), len(f.Contents))]) != f.Contents {
			return fmt.Errorf("the contents of %q differ from what was written", f.Name)
		}
	}

	return nil
}

// memory is a read-only file in memory, with the methods that go-diskfs needs.
type memory struct{ *bytes.Reader }

var _ backend.Storage = memory{}

func (memory) Close() error { return nil }

func (memory) Path() string { return "" }

func (memory) Sys() (*os.File, error) { return nil, backend.ErrNotSuitable }

func (memory) Writable() (backend.WritableFile, error) { return nil, backend.ErrIncorrectOpenMode }

func (m memory) Stat() (fs.FileInfo, error) { return memoryInfo(m.Size()), nil }

// memoryInfo is the fs.FileInfo of a memory; its value is the size in bytes.
type memoryInfo int64

func (memoryInfo) Name() string { return "" }

func (i memoryInfo) Size() int64 { return int64(i) }

func (memoryInfo) Mode() fs.FileMode { return 0o600 }

func (memoryInfo) ModTime() time.Time { return time.Time{} }

func (memoryInfo) IsDir() bool { return false }

func (memoryInfo) Sys() any { return nil }
