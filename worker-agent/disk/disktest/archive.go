package disktest

import (
	"archive/tar"
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Archive returns a tar archive with the given headers; the content of each regular file is its name.
func Archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		h.Uid, h.Gid, h.ModTime = os.Getuid(), os.Getgid(), time.Unix(1e9, 0)
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte(h.Name))
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

// RegularFile returns the header of a regular file.
func RegularFile(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }

// Symlink returns the header of a symbolic link.
func Symlink(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

// Hardlink returns the header of a hard link.
func Hardlink(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
}

// Folder returns the header of a folder.
func Folder(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }
