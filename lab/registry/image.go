package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// An Image is a container image for Linux.
type Image struct {
	Files      map[string]File // the lowest layer, by path without a leading slash; folders above a file are made
	Layers     []Layer         // further layers, above Files
	Entrypoint []string
	Cmd        []string
	Env        []string
	User       string
	WorkingDir string
	// Architecture is amd64 if it is "".
	Architecture string
}

// A File is a file of a layer. Mode may have fs.ModeDir, or fs.ModeSymlink: then Content is the link's target.
type File struct {
	Content string
	Mode    fs.FileMode // 0 is 0o644
}

// A Layer is a compressed layer of an image.
type Layer struct {
	MediaType string
	Blob      []byte
	DiffID    digest.Digest
}

// NewLayer returns a layer with files.
func NewLayer(t testing.TB, files map[string]File) Layer {
	t.Helper()
	folders := map[string]bool{}
	var entries []tar.Header
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for i, c := range name {
			if c == '/' && !folders[name[:i]] && files[name[:i]].Mode == 0 {
				folders[name[:i]] = true
				entries = append(entries, tar.Header{Typeflag: tar.TypeDir, Name: name[:i] + "/", Mode: 0o755})
			}
		}
		entries = append(entries, header(name, files[name]))
	}
	return PackLayer(t, entries, func(h tar.Header) string { return files[path.Clean(h.Name)].Content })
}

func header(name string, f File) tar.Header {
	h := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(f.Mode.Perm()), Size: int64(len(f.Content))}
	if f.Mode == 0 {
		h.Mode = 0o644
	}
	switch {
	case f.Mode.IsDir():
		h.Typeflag, h.Name, h.Size = tar.TypeDir, name+"/", 0
	case f.Mode&fs.ModeSymlink != 0:
		h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, f.Content, 0
	}
	return h
}

// PackLayer returns a layer with the entries as they are, which may be such that no one must unpack them. content returns the content of
// an entry with a size.
func PackLayer(t testing.TB, entries []tar.Header, content func(tar.Header) string) Layer {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range entries {
		err := w.WriteHeader(&h)
		if err == nil && h.Size > 0 {
			_, err = strings.NewReader(content(h)).WriteTo(w)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return Layer{MediaType: oci.MediaTypeImageLayerGzip, Blob: packed.Bytes(), DiffID: digest.FromBytes(plain.Bytes())}
}

// Layout returns the image as a tar archive of an OCI image layout, with its layers in the opposite of their order, as a program may
// write it.
func (i Image) Layout(t testing.TB) []byte {
	t.Helper()
	m, blobs := i.build(t)
	manifest := encode(t, m)
	index := oci.Index{Manifests: []oci.Descriptor{describe(oci.MediaTypeImageManifest, manifest)}}
	index.SchemaVersion = 2

	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, content []byte) {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Reverse(blobs)
	for _, b := range append(blobs, manifest) {
		add(oci.ImageBlobsDir+"/sha256/"+digest.FromBytes(b).Encoded(), b)
	}
	add(oci.ImageIndexFile, encode(t, index))
	add(oci.ImageLayoutFile, encode(t, oci.ImageLayout{Version: oci.ImageLayoutVersion}))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// build returns the manifest of the image, and its other blobs: the configuration first.
func (i Image) build(t testing.TB) (m oci.Manifest, blobs [][]byte) {
	t.Helper()
	config := oci.Image{
		Platform: oci.Platform{OS: "linux", Architecture: i.Architecture},
		Config:   oci.ImageConfig{Entrypoint: i.Entrypoint, Cmd: i.Cmd, Env: i.Env, User: i.User, WorkingDir: i.WorkingDir},
		RootFS:   oci.RootFS{Type: "layers"},
	}
	if config.Architecture == "" {
		config.Architecture = "amd64"
	}
	layers := i.Layers
	if i.Files != nil {
		layers = append([]Layer{NewLayer(t, i.Files)}, layers...)
	}
	for _, l := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.DiffID)
		m.Layers = append(m.Layers, describe(l.MediaType, l.Blob))
		blobs = append(blobs, l.Blob)
	}

	c := encode(t, config)
	m.SchemaVersion, m.MediaType, m.Config = 2, oci.MediaTypeImageManifest, describe(oci.MediaTypeImageConfig, c)
	return m, append([][]byte{c}, blobs...)
}

func describe(mediaType string, blob []byte) oci.Descriptor {
	return oci.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(blob), Size: int64(len(blob))}
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
