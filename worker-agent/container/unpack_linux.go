package container

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

const (
	maxDocument = 4 << 20 // size limit of the index, the manifest and the configuration, in bytes
	maxLayers   = 512
)

// An unpacker reads the archive of a container image as a stream (see action.Container.URL) and extracts its layers.
type unpacker struct {
	ctx  context.Context
	in   *tar.Reader
	root filesys.Tree
}

// unpack extracts the image in archive into root and returns its configuration. It verifies the manifest by want.Digest, the configuration
// and the layers by the manifest, the content of the layers by the configuration, and the whole archive by want.SHA256. After an
// error, root may hold a part of the image.
func unpack(ctx context.Context, archive io.Reader, want action.Container, root filesys.Tree) (config v1.Image, err error) {
	sum := sha256.New()
	archive = io.TeeReader(archive, sum)
	u := &unpacker{ctx: ctx, in: tar.NewReader(archive), root: root}
	if config, err = u.unpack(want); err == nil {
		_, err = io.Copy(io.Discard, archive) // the digest covers the padding, too
	}
	if ctx.Err() != nil {
		return config, context.Cause(ctx) // a decompressor may call the archive damaged when the download was stopped
	}
	if err != nil {
		return config, fmt.Errorf("unpacking the container image: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want.SHA256 {
		return config, fmt.Errorf("unpacking the container image: the archive's SHA-256 is %s, but the plan has %s", got, want.SHA256)
	}
	return config, nil
}

func (u *unpacker) unpack(want action.Container) (config v1.Image, err error) {
	var layout v1.ImageLayout
	if err := u.document(v1.ImageLayoutFile, "", &layout); err != nil {
		return config, err
	}
	if layout.Version != v1.ImageLayoutVersion {
		return config, fmt.Errorf("invalid version %q of the image layout; must be %s", layout.Version, v1.ImageLayoutVersion)
	}
	var index v1.Index
	if err := u.document(v1.ImageIndexFile, "", &index); err != nil {
		return config, err
	}
	if len(index.Manifests) != 1 || index.Manifests[0].Digest.String() != want.Digest {
		return config, fmt.Errorf("the archive's index does not name exactly the manifest %s", want.Digest)
	}
	var manifest v1.Manifest
	if err := u.document(blobName(want.Digest), want.Digest, &manifest); err != nil {
		return config, err
	}
	d := manifest.Config.Digest.String()
	if err := u.document(blobName(d), d, &config); err != nil {
		return config, err
	}
	if config.OS != "linux" || config.Architecture != "amd64" {
		return config, fmt.Errorf("the image is for %s/%s, but this machine needs linux/amd64", config.OS, config.Architecture)
	}
	if n := len(manifest.Layers); n != len(config.RootFS.DiffIDs) || n > maxLayers {
		return config, fmt.Errorf("the manifest has %d layers, and the configuration %d; at most %d are allowed", n, len(config.RootFS.DiffIDs),
			maxLayers)
	}

	for i, l := range manifest.Layers {
		if err := u.layer(l, config.RootFS.DiffIDs[i].String()); err != nil {
			return config, fmt.Errorf("layer %d of %d: %w", i+1, len(manifest.Layers), err)
		}
	}
	if h, err := u.entry(); err == nil {
		return config, fmt.Errorf("unexpected entry %q after the last layer", h.Name)
	} else if !errors.Is(err, io.EOF) {
		return config, err
	}
	return config, nil
}

// blobName returns the name of a blob in an archive.
func blobName(digest string) string {
	return v1.ImageBlobsDir + "/sha256/" + strings.TrimPrefix(digest, "sha256:")
}

// entry returns the next entry that is not a folder. It returns io.EOF at the end of the archive.
func (u *unpacker) entry() (*tar.Header, error) {
	for {
		h, err := u.in.Next()
		if errors.Is(err, io.EOF) {
			return nil, err
		}
		if err != nil {
			return nil, fmt.Errorf("reading the archive: %w", err)
		}
		if h.Typeflag != tar.TypeDir {
			return h, nil
		}
	}
}

// open moves to the next entry of the archive, which must be the regular file called name.
func (u *unpacker) open(name string) (*tar.Header, error) {
	h, err := u.entry()
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("the archive ends before %s", name)
	case err != nil:
		return nil, err
	case h.Name != name || h.Typeflag != tar.TypeReg:
		return nil, fmt.Errorf("unexpected entry %q; must be the file %s", h.Name, name)
	}
	return h, nil
}

// document decodes the next entry of the archive, a JSON document called name, into v. digest is its digest; "" = it is not known.
func (u *unpacker) document(name, digest string, v any) error {
	h, err := u.open(name)
	if err != nil {
		return err
	}
	if h.Size > maxDocument {
		return fmt.Errorf("%s has %d bytes; at most %d are allowed", name, h.Size, maxDocument)
	}
	b, err := io.ReadAll(u.in)
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	if sum := sha256.Sum256(b); digest != "" && digest != "sha256:"+hex.EncodeToString(sum[:]) {
		return fmt.Errorf("verifying %s: its SHA-256 is %x", name, sum)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decoding %s: %w", name, err)
	}
	return nil
}

// layer extracts the layer d. diffID is the digest of its content.
func (u *unpacker) layer(d v1.Descriptor, diffID string) (err error) {
	if _, err := u.open(blobName(d.Digest.String())); err != nil {
		return err
	}
	packed, plain := sha256.New(), sha256.New()
	file := io.TeeReader(u.in, packed)
	content, err := diskimage.Open(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()

	in := io.TeeReader(content, plain)
	if err := filesys.NewLayer(u.ctx, in).ExtractInto(u.root, "/"); err != nil {
		return err
	}
	for _, rest := range []io.Reader{in, file} { // the digests cover what follows the end of the tar archive
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return err
		}
	}
	for _, s := range []struct {
		what, want string
		sum        hash.Hash
	}{{"layer", d.Digest.String(), packed}, {"layer's content", diffID, plain}} {
		if got := "sha256:" + hex.EncodeToString(s.sum.Sum(nil)); got != s.want {
			return fmt.Errorf("verifying the %s: its digest is %s, but must be %s", s.what, got, s.want)
		}
	}
	return nil
}
