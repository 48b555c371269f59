package container

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// unpackInto unpacks an archive into a new folder.
func unpackInto(t testing.TB, archive []byte, want action.Container) (dir string, config v1.Image, err error) {
	t.Helper()
	dir = t.TempDir()
	root, err := filesys.OpenTree(dir)
	require.NoError(t, err)
	defer root.Close()
	config, err = unpack(t.Context(), bytes.NewReader(archive), want, root)
	return dir, config, err
}

// newLayer returns a layer of files that belong to the user who runs the tests.
func newLayer(t testing.TB, names ...string) []byte {
	var headers []tar.Header
	for _, name := range names {
		headers = append(headers, disktest.RegularFile(name))
	}
	return disktest.Archive(t, headers...)
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	empty := disktest.Archive(t)
	files := disktest.ContainerFiles(
		t,
		v1.Image{Config: v1.ImageConfig{Cmd: []string{"run"}}},
		newLayer(t, "a", "b"),
		newLayer(t, ".wh.a", "c"),
		empty,
		empty,
	)
	archive, want := disktest.ContainerArchive(t, files)
	dir, config, err := unpackInto(t, archive, want)
	require.NoError(t, err)
	require.Equal(t, []string{"run"}, config.Config.Cmd)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, name := range []string{"b", "c"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
}

// Whatever is wrong with an archive is an error, and nothing outside of the folder changes.
func TestS67UnpackRefuses(t *testing.T) {
	t.Parallel()
	good := func() []disktest.ImageFile {
		return disktest.ContainerFiles(t, v1.Image{}, newLayer(t, "a"), newLayer(t, "b"))
	}
	edit := func(n int, change func(b []byte) []byte) []disktest.ImageFile {
		files := good()
		files[n].Content = change(files[n].Content)
		return files
	}
	replace := func(old, by string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(old), []byte(by)) }
	}
	arm := v1.Image{Platform: v1.Platform{OS: "linux", Architecture: "arm64"}}
	_, want := disktest.ContainerArchive(t, good())
	for name, x := range map[string]struct {
		files []disktest.ImageFile
		err   string
	}{
		"no layout":       {good()[1:], `unexpected entry "index.json"; must be the file oci-layout`},
		"another layout":  {edit(0, replace("1.0.0", "2.0.0")), `invalid version "2.0.0" of the image layout`},
		"another order":   {append(append(good()[:4], good()[5]), good()[4]), "layer 1 of 2: unexpected entry"},
		"no layer":        {good()[:5], "layer 2 of 2: the archive ends before"},
		"one file more":   {append(good(), disktest.ImageFile{Name: "x"}), `unexpected entry "x" after the last layer`},
		"manifest":        {edit(2, replace("schemaVersion", "schemaversion")), "verifying blobs/sha256/"},
		"configuration":   {edit(3, replace("linux", "linus")), "verifying blobs/sha256/"},
		"a manifest bomb": {edit(1, func([]byte) []byte { return make([]byte, maxDocument+1) }), "index.json has 4194305 bytes"},
		"no JSON":         {edit(1, func([]byte) []byte { return []byte("{") }), "decoding index.json"},
		"packed layer":    {edit(4, func(b []byte) []byte { return b[:len(b)-4] }), "layer 1 of 2"},
		"plain layer":     {edit(5, func(b []byte) []byte { b[600] ^= 1; return b }), "verifying the layer: its digest is"},
		"another machine": {disktest.ContainerFiles(t, arm), "the image is for linux/arm64"},
	} {
		archive, own := disktest.ContainerArchive(t, x.files)
		c := action.Container{SHA256: own.SHA256, Digest: want.Digest}
		if name == "another machine" {
			c.Digest = own.Digest
		}
		_, _, err := unpackInto(t, archive, c)
		require.ErrorContains(t, err, x.err, name)
	}

	for name, x := range map[string]struct {
		layer []byte
		err   string
	}{
		"out":    {newLayer(t, "../x"), `contains ".."`},
		"device": {disktest.Archive(t, tar.Header{Typeflag: tar.TypeChar, Name: "x", Devmajor: 1}), "device nodes"},
		"no tar": {bytes.Repeat([]byte("no tar"), 200), "reading the archive"},
	} {
		archive, c := disktest.ContainerArchive(t, disktest.ContainerFiles(t, v1.Image{}, x.layer))
		_, _, err := unpackInto(t, archive, c)
		require.ErrorContains(t, err, x.err, name)
	}

	archive, c := disktest.ContainerArchive(t, good())
	_, _, err := unpackInto(t, append(archive, 0), c)
	require.ErrorContains(t, err, "but the plan has")
	c.Digest = "sha256:" + strings.Repeat("0", 64)
	_, _, err = unpackInto(t, archive, c)
	require.ErrorContains(t, err, "does not name exactly the manifest")
}

// FuzzUnpack: no archive is unpacked whose digest is another one.
func FuzzUnpack(f *testing.F) {
	archive, want := disktest.ContainerArchive(f, disktest.ContainerFiles(f, v1.Image{}, newLayer(f, "a"), newLayer(f, "b")))
	f.Add(archive)
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := unpackInto(t, b, want); (err == nil) != bytes.Equal(b, archive) {
			t.Errorf("%v", err)
		}
	})
}
