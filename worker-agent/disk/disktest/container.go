package disktest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/ingotmetal/ingot/action"
)

// An ImageFile is an entry of a container image's archive, or of one of its layers.
type ImageFile struct {
	Name    string
	Content []byte
}

// ContainerFiles returns the entries of an image's archive in their order. The layers are tar archives; every second one is compressed. The
// image is for linux/amd64 unless it names another platform.
func ContainerFiles(t testing.TB, image v1.Image, layers ...[]byte) []ImageFile {
	t.Helper()
	if image.OS == "" {
		image.Platform = v1.Platform{OS: "linux", Architecture: "amd64"}
	}
	image.RootFS.Type = "layers"
	manifest := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	var blobs []ImageFile
	add := func(mediaType string, content []byte) v1.Descriptor {
		d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
		blobs = append(blobs, ImageFile{v1.ImageBlobsDir + "/sha256/" + d.Digest.Encoded(), content})
		return d
	}
	for i, layer := range layers {
		image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, digest.FromBytes(layer))
		kind := v1.MediaTypeImageLayer
		if i%2 == 0 {
			layer, kind = compress(t, layer), v1.MediaTypeImageLayerGzip
		}
		manifest.Layers = append(manifest.Layers, add(kind, layer))
	}
	manifest.Config = add(v1.MediaTypeImageConfig, encode(t, image))
	d := add(v1.MediaTypeImageManifest, encode(t, manifest))

	n := len(layers)
	return append([]ImageFile{
		{v1.ImageLayoutFile, encode(t, v1.ImageLayout{Version: v1.ImageLayoutVersion})},
		{v1.ImageIndexFile, encode(t, v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []v1.Descriptor{d}})},
		blobs[n+1], blobs[n],
	}, blobs[:n]...)
}

// ContainerArchive returns the archive with the files, and the container that a plan has for it.
func ContainerArchive(t testing.TB, files []ImageFile) ([]byte, action.Container) {
	t.Helper()
	archive := ProgramArchive(t, files)
	c := action.Container{SHA256: digest.FromBytes(archive).Encoded()}
	if len(files) > 2 {
		c.Digest = digest.FromBytes(files[2].Content).String()
	}
	for _, f := range files {
		c.Size += 4 * int64(len(f.Content))
	}
	return archive, c
}

// ProgramArchive returns a tar archive of executable files.
func ProgramArchive(t testing.TB, files []ImageFile) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: 0o755, Size: int64(len(f.Content))})
		if err == nil {
			_, err = w.Write(f.Content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func compress(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
