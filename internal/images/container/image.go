// Package container reads container images (OCI image specification 1.1, and the second version of Docker's) from registries and files. It
// writes them as archives whose bytes depend on the image's digest only.
package container

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/ingotmetal/ingot/internal/images/diskimage"
)

const (
	maxDocument = 4 << 20 // bytes of an index, a manifest or a configuration
	maxLayers   = 256
	maxDepth    = 2 // an index may name an index, which names a manifest
	// maxSize limits the bytes of all layers, packed and unpacked.
	maxSize = 16 << 30
)

// Architecture is the architecture of the images that agents can run.
const Architecture = "amd64"

const (
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar"
)

// layerFormats are the media types of layers, and the format of diskimage in which each is packed.
var layerFormats = map[string]string{
	oci.MediaTypeImageLayer: diskimage.Raw, oci.MediaTypeImageLayerGzip: diskimage.Gzip, oci.MediaTypeImageLayerZstd: diskimage.Zstd,
	dockerLayer: diskimage.Raw, dockerLayer + ".gzip": diskimage.Gzip, dockerLayer + ".zstd": diskimage.Zstd,
}

// An Image is a container image for linux/amd64. Its manifest and its configuration have been read and verified, its layers have not.
type Image struct {
	Digest string // of the manifest: sha256: and 64 hex digits
	Layers []oci.Descriptor

	from             content.Fetcher
	manifest, config oci.Descriptor
	documents        map[digest.Digest][]byte // content of manifest and config
	diffIDs          []digest.Digest
}

func refuse(remedy, format string, args ...any) error {
	return &diskimage.Refusal{What: fmt.Sprintf(format, args...), Remedy: remedy}
}

const (
	againRemedy    = "get the image again; if this repeats, it is damaged or was changed where it comes from"
	buildRemedy    = "build the image again"
	platformRemedy = "use an image that was built for linux/amd64"
)

// readDocument reads an index, a manifest or a configuration and verifies its digest.
func readDocument(ctx context.Context, from content.Fetcher, d oci.Descriptor) ([]byte, error) {
	if err := checkDescriptor(d, maxDocument); err != nil {
		return nil, err
	}
	r, err := from.Fetch(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := content.ReadAll(r, d)
	return text, judge(err, d)
}

// judge makes a refusal of err if the content of d is not what d says.
func judge(err error, d oci.Descriptor) error {
	if errors.Is(err, content.ErrMismatchedDigest) || errors.Is(err, content.ErrTrailingData) {
		return refuse(againRemedy, "the content of %s has another digest or size", d.Digest)
	}
	return err
}

func checkDescriptor(d oci.Descriptor, most int64) error {
	if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 {
		return refuse(buildRemedy+" with SHA-256", "the image refers to %.100q, which is not a SHA-256 digest", d.Digest)
	}
	if d.Size < 0 || d.Size > most {
		return refuse("use a smaller image", "%s has %d bytes; at most %d are allowed", d.Digest, d.Size, most)
	}
	return nil
}

// findManifest returns the descriptor of the manifest for linux/amd64, and the manifest. text is the content of d, an index or a manifest.
func findManifest(ctx context.Context, from content.Fetcher, d oci.Descriptor, text []byte, depth int) (oci.Descriptor, []byte, error) {
	var document struct {
		MediaType string           `json:"mediaType"`
		Manifests []oci.Descriptor `json:"manifests"`
		Layers    []oci.Descriptor `json:"layers"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return d, nil, refuse(againRemedy, "%s is not a JSON document: %v", d.Digest, err)
	}
	if document.MediaType != "" && document.MediaType != d.MediaType || document.Manifests != nil && document.Layers != nil {
		return d, nil, refuse(buildRemedy, "%s is ambiguous: it is called %.100q, but contains the media type %.100q", d.Digest, d.MediaType,
			document.MediaType)
	}

	switch d.MediaType {
	case oci.MediaTypeImageManifest, dockerManifest:
		return d, text, nil
	case oci.MediaTypeImageIndex, dockerIndex:
	default:
		return d, nil, refuse("give the reference of a container image", "%s has the media type %.100q, and is not a container image", d.Digest,
			d.MediaType)
	}
	if depth == maxDepth {
		return d, nil, refuse("give the digest of the manifest", "the index of the image is nested more than %d times", maxDepth)
	}
	m, err := choose(document.Manifests)
	if err != nil {
		return d, nil, err
	}
	text, err = readDocument(ctx, from, m)
	if err != nil {
		return d, nil, err
	}
	return findManifest(ctx, from, m, text, depth+1)
}

// choose returns the entry of an index for linux/amd64.
func choose(all []oci.Descriptor) (d oci.Descriptor, err error) {
	// The entries that are kept, by how well they fit: the platform without a variant, with one, and entries without a platform.
	var fit [3][]oci.Descriptor
	for _, m := range all {
		n := 2
		if p := m.Platform; p != nil && (p.OS != "linux" || p.Architecture != Architecture) {
			continue
		} else if p != nil && (p.Variant == "" || p.Variant == "v1") {
			n = 0
		} else if p != nil {
			n = 1
		}
		if !slices.ContainsFunc(fit[n], func(x oci.Descriptor) bool { return x.Digest == m.Digest }) {
			fit[n] = append(fit[n], m)
		}
	}
	for _, found := range fit {
		switch len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			return d, refuse("give the digest of one image, or make an archive of one image", "there are %d images for linux/amd64", len(found))
		}
	}
	return d, refuse(platformRemedy, "the image index has no image for linux/amd64")
}

// open reads the configuration of the image whose manifest is text, and checks both.
func open(ctx context.Context, from content.Fetcher, d oci.Descriptor, text []byte) (*Image, error) {
	var m oci.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, refuse(againRemedy, "reading the manifest %s: %v", d.Digest, err)
	}
	if t := m.Config.MediaType; t != oci.MediaTypeImageConfig && t != dockerConfig {
		return nil, refuse("give the reference of a container image", "%s is not a container image: its configuration has the media type %.100q",
			d.Digest, t)
	}
	if len(m.Layers) > maxLayers {
		return nil, refuse("build the image with fewer layers", "the image has %d layers; at most %d are allowed", len(m.Layers), maxLayers)
	}
	left := int64(maxSize)
	for _, l := range m.Layers {
		if err := checkDescriptor(l, left); err != nil {
			return nil, err
		}
		if _, ok := layerFormats[l.MediaType]; !ok {
			return nil, refuse(buildRemedy+" with layers in tar, tar+gzip or tar+zstd", "the layer %s has the media type %.100q", l.Digest,
				l.MediaType)
		}
		left -= l.Size
	}
	config, err := readDocument(ctx, from, m.Config)
	if err != nil {
		return nil, err
	}

	var c oci.Image
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, refuse(againRemedy, "reading the configuration %s: %v", m.Config.Digest, err)
	}
	if c.OS != "linux" || c.Architecture != Architecture {
		return nil, refuse(platformRemedy, "the image is for %.20s/%.20s; agents run images for linux/%s", c.OS, c.Architecture, Architecture)
	}
	if len(c.RootFS.DiffIDs) != len(m.Layers) {
		return nil, refuse(buildRemedy, "the image has %d layers, but its configuration names %d", len(m.Layers), len(c.RootFS.DiffIDs))
	}
	d.Annotations, d.Platform, d.MediaType = nil, nil, m.MediaType
	if d.MediaType == "" {
		d.MediaType = oci.MediaTypeImageManifest
	}
	return &Image{
		Digest: d.Digest.String(), Layers: m.Layers, from: from, manifest: d, config: m.Config, diffIDs: c.RootFS.DiffIDs,
		documents: map[digest.Digest][]byte{d.Digest: text, m.Config.Digest: config},
	}, nil
}

// Size returns about how many bytes Copy writes.
func (i *Image) Size() int64 {
	n := i.manifest.Size + i.config.Size
	for _, l := range i.Layers {
		n += l.Size
	}
	return n
}

// Copy writes the archive of the image (see action.Container), and verifies the digest of each blob. It does not read what the layers
// contain.
func (i *Image) Copy(ctx context.Context, w io.Writer) error {
	return i.write(ctx, w, func(int, io.Reader) error { return nil })
}

// Verify does the same as Copy, and also reads what the layers contain. If agents could not unpack the image, the error is
// a *diskimage.Refusal. Verify returns the bytes of memory that the unpacked layers take in a tmpfs.
func (i *Image) Verify(ctx context.Context, w io.Writer) (unpacked int64, err error) {
	u := unpacker{left: maxSize}
	err = i.write(ctx, w, func(n int, blob io.Reader) error { return u.check(n+1, i.Layers[n], i.diffIDs[n], blob) })
	return u.files, err
}

// write writes the archive and calls check with each layer.
func (i *Image) write(ctx context.Context, w io.Writer, check func(n int, blob io.Reader) error) error {
	index := oci.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageIndex}
	index.Manifests = []oci.Descriptor{i.manifest}
	list, err := json.Marshal(index)
	if err != nil {
		return err
	}

	out := tar.NewWriter(w)
	add := func(name string, content []byte) {
		if err == nil {
			err = out.WriteHeader(entry(name, int64(len(content))))
		}
		if err == nil {
			_, err = out.Write(content)
		}
	}
	add(oci.ImageLayoutFile, []byte(`{"imageLayoutVersion":"`+oci.ImageLayoutVersion+`"}`))
	add(oci.ImageIndexFile, list)
	for _, d := range []oci.Descriptor{i.manifest, i.config} {
		add(blobPath(d.Digest), i.documents[d.Digest])
	}
	for n, d := range i.Layers {
		if err == nil {
			err = i.writeLayer(ctx, out, d, func(blob io.Reader) error { return check(n, blob) })
		}
	}
	if err != nil {
		return err
	}
	return out.Close()
}

func entry(name string, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}
}

func blobPath(d digest.Digest) string {
	return path.Join(oci.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

func (i *Image) writeLayer(ctx context.Context, out *tar.Writer, d oci.Descriptor, check func(io.Reader) error) error {
	r, err := i.from.Fetch(ctx, d)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := out.WriteHeader(entry(blobPath(d.Digest), d.Size)); err != nil {
		return err
	}

	verified := content.NewVerifyReader(diskimage.EndWith(ctx, r), d)
	all := io.TeeReader(verified, out)
	wrong := check(all)
	_, err = io.Copy(io.Discard, all)
	if err == nil {
		err = verified.Verify()
	}
	if err != nil {
		return judge(err, d) // if the digest is wrong, this is why the content is
	}
	return wrong
}
