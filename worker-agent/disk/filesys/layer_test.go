package filesys

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/stretchr/testify/require"
)

// addLayer extracts a layer into dir.
func addLayer(t testing.TB, dir string, archive []byte) error {
	root, err := OpenTree(dir)
	require.NoError(t, err)
	defer root.Close()
	return NewLayer(t.Context(), bytes.NewReader(archive)).ExtractInto(root, "/")
}

// namesIn returns all paths below dir.
func namesIn(t testing.TB, dir string) (names []string) {
	require.NoError(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, p); rel != "." {
			names = append(names, rel)
		}
		return err
	}))
	return names
}

func TestLayers(t *testing.T) {
	below := []tar.Header{
		disktest.Folder("a"), disktest.RegularFile("a/one"), disktest.RegularFile("a/b/two"), disktest.RegularFile("c"),
		disktest.Symlink("link", "a"),
	}
	for name, x := range map[string]struct {
		above []tar.Header
		want  []string
	}{
		"nothing":                    {nil, []string{"a", "a/b", "a/b/two", "a/one", "c", "link"}},
		"a file":                     {[]tar.Header{disktest.RegularFile("a/.wh.one")}, []string{"a", "a/b", "a/b/two", "c", "link"}},
		"a folder":                   {[]tar.Header{disktest.RegularFile(".wh.a")}, []string{"c", "link"}},
		"what is missing":            {[]tar.Header{disktest.RegularFile("x/.wh.y")}, []string{"a", "a/b", "a/b/two", "a/one", "c", "link", "x"}},
		"all but what it has":        {[]tar.Header{disktest.RegularFile("a/b/three"), disktest.RegularFile("a/.wh..wh..opq")}, []string{"a", "a/b", "a/b/three", "c", "link"}},
		"all, before what it has":    {[]tar.Header{disktest.RegularFile("a/.wh..wh..opq"), disktest.RegularFile("a/b/three")}, []string{"a", "a/b", "a/b/three", "c", "link"}},
		"through a link":             {[]tar.Header{disktest.RegularFile("link/.wh..wh..opq"), disktest.RegularFile("link/new")}, []string{"a", "a/new", "c", "link"}},
		"a file in place of folders": {[]tar.Header{disktest.RegularFile("a")}, []string{"a", "c", "link"}},
	} {
		root, outside := newOutside(t)
		require.NoError(t, addLayer(t, root, disktest.Archive(t, below...)), name)
		require.NoError(t, addLayer(t, root, disktest.Archive(t, x.above...)), name)
		require.Equal(t, x.want, namesIn(t, root), name)
		requireUntouched(t, outside, name)
	}
}

// No whiteout removes a file outside of the image, and no layer makes a device node (security S21).
func TestS67LayerStaysInItsImage(t *testing.T) {
	_, shape := newOutside(t)
	for name := range hostileLayers(t, shape) {
		root, outside := newOutside(t)
		err := addLayer(t, root, hostileLayers(t, outside)[name])
		requireUntouched(t, outside, name)
		if name != "whiteout through a link" && name != "opaque through a link" && name != "whiteout of a link" {
			require.Error(t, err, name)
		}
	}
}

// hostileLayers try to remove files outside of the image, or have device nodes.
func hostileLayers(t testing.TB, outside string) map[string][]byte {
	device := func(kind byte) tar.Header {
		e := disktest.RegularFile("dev/x")
		e.Typeflag = kind
		return e
	}
	return map[string][]byte{
		"character device":        disktest.Archive(t, device(tar.TypeChar)),
		"block device":            disktest.Archive(t, device(tar.TypeBlock)),
		"whiteout of the parent":  disktest.Archive(t, disktest.RegularFile(".wh...")),
		"whiteout of itself":      disktest.Archive(t, disktest.RegularFile(".wh..")),
		"whiteout without name":   disktest.Archive(t, disktest.RegularFile(".wh.")),
		"whiteout with dots":      disktest.Archive(t, disktest.RegularFile("../outside/.wh.victim")),
		"whiteout of a link":      disktest.Archive(t, disktest.Symlink("l", outside), disktest.RegularFile(".wh.l")),
		"whiteout through a link": disktest.Archive(t, disktest.Symlink("l", outside), disktest.Folder("d"), disktest.RegularFile("d/.wh.l")),
		"opaque through a link": disktest.Archive(t, disktest.Folder("d"), disktest.Symlink("d/l", outside), disktest.RegularFile("d/x"),
			disktest.RegularFile("d/.wh..wh..opq")),
	}
}

// FuzzLayer: whatever a layer contains, nothing outside of the image changes (security S21).
func FuzzLayer(f *testing.F) {
	_, outside := newOutside(f)
	for _, b := range hostileLayers(f, outside) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		if len(archive) > 64<<10 {
			t.Skip()
		}
		root, outside := newOutside(t)
		_ = addLayer(t, root, archive) // most are invalid
		requireUntouched(t, outside, "fuzz")
		_ = filepath.WalkDir(root, func(p string, e fs.DirEntry, _ error) error {
			if e != nil && e.IsDir() {
				return os.Chmod(p, 0o700)
			}
			return nil
		})
	})
}
