package container

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/registry"
)

// tools is an image of three layers: plain, gzip and zstd.
func tools(t *testing.T) registry.Image {
	t.Helper()
	plain := registry.NewLayer(t, map[string]registry.File{"etc/.wh.old": {}, "etc/link": {Content: "/bin/tool", Mode: fs.ModeSymlink}})
	plain.MediaType, plain.Blob = oci.MediaTypeImageLayer, unpack(t, plain.Blob)
	packed := registry.NewLayer(t, map[string]registry.File{"big": {Content: strings.Repeat("x", 9000)}})
	w, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	packed.MediaType, packed.Blob = oci.MediaTypeImageLayerZstd, w.EncodeAll(unpack(t, packed.Blob), nil)
	return registry.Image{
		Files:      map[string]registry.File{"bin/tool": {Content: "#!", Mode: 0o755}, "etc/old": {}},
		Layers:     []registry.Layer{plain, packed},
		Entrypoint: []string{"/bin/tool"},
	}
}

func unpack(t *testing.T, blob []byte) []byte {
	t.Helper()
	c, err := diskimage.Open(bytes.NewReader(blob))
	require.NoError(t, err)
	defer c.Close()
	out, err := io.ReadAll(c)
	require.NoError(t, err)
	return out
}

// serve returns the repository for a reference of a registry.
func serve(t *testing.T, r *registry.Registry, reference string) Repository {
	t.Helper()
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return Repository{
		Client: s.Client(), Registry: strings.TrimPrefix(s.URL, "http://"), Repository: "lab/tools", Reference: reference, PlainHTTP: true,
	}
}

// pull returns the archive of an image in a registry.
func pull(t *testing.T, r Repository) ([]byte, error) {
	t.Helper()
	i, err := r.Open(t.Context())
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := i.Copy(t.Context(), &out); err != nil {
		return nil, err
	}
	_, err = verify(t, out.Bytes())
	return out.Bytes(), err
}

// verify returns the archive that is made of a layout.
func verify(t *testing.T, layout []byte) ([]byte, error) {
	t.Helper()
	i, err := OpenLayout(t.Context(), bytes.NewReader(layout), int64(len(layout)))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	_, err = i.Verify(t.Context(), &out)
	return out.Bytes(), err
}

// TestArchiveDependsOnTheDigestOnly pulls an image by a tag and by its digest, and reads it from files: all give the same archive, whose files
// are in the order that action.Container promises.
func TestArchiveDependsOnTheDigestOnly(t *testing.T) {
	r, image := registry.New(t), tools(t)
	digest := r.Push("lab/tools", "1", image)
	other := image
	other.Architecture = "arm64"
	r.PushIndex("lab/tools", "all", r.Describe(r.Push("lab/tools", "", other), "arm64"), r.Describe(digest, "amd64"))
	want, err := pull(t, serve(t, r, "1"))
	require.NoError(t, err)

	for _, reference := range []string{digest, "all"} {
		got, err := pull(t, serve(t, r, reference))
		require.NoError(t, err, reference)
		require.Equal(t, sha256.Sum256(want), sha256.Sum256(got), reference)
	}
	for _, layout := range [][]byte{image.Layout(t), want} {
		require.True(t, IsLayout(bytes.NewReader(layout), int64(len(layout))))
		got, err := verify(t, layout)
		require.NoError(t, err)
		require.Equal(t, sha256.Sum256(want), sha256.Sum256(got))
	}

	var names []string
	for in := tar.NewReader(bytes.NewReader(want)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.True(t, h.ModTime.Unix() == 0 && h.Uid == 0, h.Name)
		names = append(names, h.Name)
	}
	i, err := OpenLayout(t.Context(), bytes.NewReader(want), int64(len(want)))
	require.NoError(t, err)
	require.Equal(t, digest, i.Digest)
	blobs := []string{oci.ImageLayoutFile, oci.ImageIndexFile, blobPath(i.manifest.Digest), blobPath(i.config.Digest)}
	for _, l := range i.Layers {
		blobs = append(blobs, blobPath(l.Digest))
	}
	require.Equal(t, blobs, names)
}

func FuzzLayout(f *testing.F) {
	f.Add(registry.Image{Files: map[string]registry.File{"a/b": {Content: "x"}}}.Layout(f))
	f.Fuzz(func(t *testing.T, file []byte) {
		i, err := OpenLayout(t.Context(), bytes.NewReader(file), int64(len(file)))
		if err == nil {
			_, _ = i.Verify(t.Context(), io.Discard)
		}
	})
}

// TestUnpackedSizeIsMemory: each file takes whole pages and an inode.
func TestUnpackedSizeIsMemory(t *testing.T) {
	layout := registry.Image{
		Files: map[string]registry.File{"a": {Content: "x"}, "b": {}, "c": {Content: strings.Repeat("x", 4097)}},
	}.Layout(
		t,
	)
	i, err := OpenLayout(t.Context(), bytes.NewReader(layout), int64(len(layout)))
	require.NoError(t, err)
	size, err := i.Verify(t.Context(), io.Discard)
	require.NoError(t, err)
	require.EqualValues(t, 3<<10+4<<10+8<<10, size)
}

// entries returns a layer of entries without content.
func entries(t *testing.T, all ...tar.Header) registry.Layer {
	t.Helper()
	return registry.PackLayer(t, all, nil)
}

func TestS20BadContainerImages(t *testing.T) {
	layer := func(all ...tar.Header) registry.Image {
		return registry.Image{Layers: []registry.Layer{entries(t, all...)}}
	}
	changed := func(change func(l *registry.Layer)) registry.Image {
		i := tools(t)
		i.Layers = i.Layers[:1:1]
		change(&i.Layers[0])
		return i
	}
	bomb := registry.NewLayer(t, map[string]registry.File{"zeros": {Content: strings.Repeat("\x00", freeRatio+20<<20)}})
	for want, image := range map[string]registry.Image{
		"the image is for linux/arm64":   {Architecture: "arm64", Files: map[string]registry.File{}},
		`contains ".."`:                  layer(tar.Header{Typeflag: tar.TypeSymlink, Name: "../../etc/passwd", Linkname: "x"}),
		`"x": the name "../x" contains`:  layer(tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: "../x"}),
		`"a/.wh...": the whiteout leads`: layer(tar.Header{Typeflag: tar.TypeReg, Name: "a/.wh..."}),
		`"sda": is a device`:             layer(tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}),
		`"gone": is a device`:            layer(tar.Header{Typeflag: tar.TypeChar, Name: "gone"}),
		"layer 1: unpacks to more than":  {Layers: []registry.Layer{bomb}},
		"at most 256 are allowed":        {Layers: make([]registry.Layer, maxLayers+1)},
		"unpacks to the digest":          changed(func(l *registry.Layer) { l.DiffID = digest.FromString("") }),
		"is packed as raw, but its":      changed(func(l *registry.Layer) { l.MediaType = oci.MediaTypeImageLayerGzip }),
		"has the media type":             changed(func(l *registry.Layer) { l.MediaType = "application/vnd.example.wasm" }),
		"layer 2: does not unpack":       changed(func(l *registry.Layer) { l.Blob = bytes.Repeat([]byte("x"), 600) }),
	} {
		t.Run(want, func(t *testing.T) {
			_, err := verify(t, image.Layout(t))
			require.ErrorContains(t, err, want)
			require.ErrorAs(t, err, new(*diskimage.Refusal))
		})
	}
}

func TestBadLayoutsAreRefused(t *testing.T) {
	whole := tools(t).Layout(t)
	for want, layout := range map[string][]byte{
		"is not a tar archive of an OCI image layout": whole[:len(whole)/2],
		"has another digest or size":                  bytes.Replace(whole, []byte(".wh.old"), []byte(".wh.odd"), 1),
	} {
		_, err := verify(t, layout)
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(*diskimage.Refusal))
	}
	require.False(t, IsLayout(strings.NewReader("x"), 1))
	_, err := choose([]oci.Descriptor{{Digest: "a"}, {Digest: "a"}})
	require.NoError(t, err, "two names of one image")
	_, err = choose([]oci.Descriptor{{Digest: "a"}, {Digest: "b"}})
	require.ErrorContains(t, err, "there are 2 images for linux/amd64")
}

// TestS18LyingRegistries: what a registry sends is compared with the digest before anyone uses it.
func TestS18LyingRegistries(t *testing.T) {
	manifestOf := func(t *testing.T, r *registry.Registry) (m oci.Manifest, digest string) {
		t.Helper()
		digest = r.Push("lab/tools", "1", tools(t))
		i, err := serve(t, r, digest).Open(t.Context())
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(i.documents[i.manifest.Digest], &m))
		return m, digest
	}
	for name, c := range map[string]struct {
		lie       func(t *testing.T, r *registry.Registry, m oci.Manifest, digest string) (reference string)
		want      string
		temporary bool
	}{
		"manifest of another image": {func(t *testing.T, r *registry.Registry, _ oci.Manifest, manifest string) string {
			r.Replace(digest.Digest(manifest), []byte(`{"schemaVersion":2}`))
			return manifest
		}, "has another digest or size", false},
		"configuration of another image": {func(t *testing.T, r *registry.Registry, m oci.Manifest, _ string) string {
			r.Replace(m.Config.Digest, bytes.Repeat([]byte(" "), int(m.Config.Size)))
			return "1"
		}, "has another digest or size", false},
		"a changed layer": {func(t *testing.T, r *registry.Registry, m oci.Manifest, _ string) string {
			r.Replace(m.Layers[1].Digest, make([]byte, m.Layers[1].Size))
			return "1"
		}, "has another digest or size", false},
		"a manifest bomb": {func(t *testing.T, r *registry.Registry, _ oci.Manifest, _ string) string {
			r.PushManifest("lab/tools", "bomb", oci.MediaTypeImageManifest, make([]byte, maxDocument+1))
			return "bomb"
		}, "at most 4194304 are allowed", false},
		"a layer as large as the universe": {func(t *testing.T, r *registry.Registry, m oci.Manifest, _ string) string {
			m.Layers[0].Size = 1 << 60
			text, err := json.Marshal(m)
			require.NoError(t, err)
			r.PushManifest("lab/tools", "huge", oci.MediaTypeImageManifest, text)
			return "huge"
		}, "has 1152921504606846976 bytes", false},
		"an index in an index in an index in an index": {func(t *testing.T, r *registry.Registry, _ oci.Manifest, d string) string {
			for range maxDepth + 1 {
				d = r.PushIndex("lab/tools", "deep", r.Describe(d, "amd64"))
			}
			return "deep"
		}, "nested more than 2 times", false},
		"an index without linux/amd64": {func(t *testing.T, r *registry.Registry, _ oci.Manifest, d string) string {
			r.PushIndex("lab/tools", "arm", r.Describe(d, "arm64"))
			return "arm"
		}, "has no image for linux/amd64", false},
		"a manifest that is an index, too": {func(t *testing.T, r *registry.Registry, m oci.Manifest, _ string) string {
			r.PushManifest("lab/tools", "both", oci.MediaTypeImageManifest, []byte(`{"manifests":[],"layers":[]}`))
			return "both"
		}, "is ambiguous", false},
		"a disk image for oci2disk": {func(t *testing.T, r *registry.Registry, m oci.Manifest, _ string) string {
			r.PushManifest("lab/tools", "disk", oci.MediaTypeImageManifest, []byte(`{"config":{"mediaType":"application/vnd.oci.empty.v1+json"}}`))
			return "disk"
		}, "is not a container image", false},
		"a refusal": {func(t *testing.T, r *registry.Registry, m oci.Manifest, _ string) string {
			r.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusForbidden)
				return true
			})
			return "1"
		}, "the answer is 403 Forbidden", false},
		"a failure": {func(t *testing.T, r *registry.Registry, m oci.Manifest, _ string) string {
			r.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusBadGateway)
				return true
			})
			return "1"
		}, "the answer is 502 Bad Gateway", true},
		"a redirect with a credential": {func(t *testing.T, r *registry.Registry, m oci.Manifest, _ string) string {
			r.Intercept(func(w http.ResponseWriter, q *http.Request) bool {
				w.Header().Set("Location", "http://user:secret@127.0.0.1:1/blob?signature=secret")
				w.WriteHeader(http.StatusTemporaryRedirect)
				return true
			})
			return "1"
		}, "http://127.0.0.1:1/blob", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := registry.New(t)
			m, manifest := manifestOf(t, r)
			_, err := pull(t, serve(t, r, c.lie(t, r, m, manifest)))
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "secret")
			require.Equal(t, c.temporary, errors.Is(err, inventory.ErrUnreachable), "%v", err)
			require.NotEqual(t, c.temporary, errors.As(err, new(*diskimage.Refusal)), "%v", err)
		})
	}
}

func TestResolveFollowsTheTag(t *testing.T) {
	r := registry.New(t)
	first := r.Push("lab/tools", "1", tools(t))
	at := serve(t, r, "1")
	got, err := at.Resolve(t.Context())
	require.NoError(t, err)
	require.Equal(t, first, got)
	second := r.Push("lab/tools", "1", registry.Image{Files: map[string]registry.File{"new": {}}})
	got, err = at.Resolve(t.Context())
	require.NoError(t, err)
	require.Equal(t, second, got)
	require.Zero(t, r.Requests("/blobs/"))

	at.Reference = "2"
	_, err = at.Resolve(t.Context())
	require.ErrorIs(t, err, inventory.ErrNotFound)

	// A registry that accepts the connection and never answers.
	ctx, cancel := context.WithCancel(t.Context())
	r.Intercept(func(_ http.ResponseWriter, q *http.Request) bool {
		cancel()
		<-q.Context().Done()
		return true
	})
	_, err = at.Resolve(ctx)
	require.ErrorIs(t, err, inventory.ErrUnreachable)
}
