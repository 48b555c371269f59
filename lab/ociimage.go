package lab

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// UnpackImage checks every digest of a container image, an OCI layout in a tar archive, and unpacks its
// root filesystem into an empty directory, which it makes if needed.
func UnpackImage(image, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}

	if in, err := os.ReadDir(to); err != nil || len(in) > 0 {
		return errors.Join(err, fmt.Errorf("unpacking into %q: it is not empty", to))
	}
	var ix oci.Index
	if err := readImageEntry(image, oci.ImageIndexFile, func(r io.Reader) error { return decodeStrictly(r, &ix) }); err != nil {
		return err
	}

	if len(ix.Manifests) != 1 {
		return fmt.Errorf("image %q has %d manifests and not one", image, len(ix.Manifests))
	}
	var m oci.Manifest
	if err := readImageDocument(image, ix.Manifests[0].Digest, &m); err != nil {
		return err
	}

	var c oci.Image
	if err := readImageDocument(image, m.Config.Digest, &c); err != nil {
		return err
	}

	if len(c.RootFS.DiffIDs) != len(m.Layers) {
		return fmt.Errorf("image %q has %d layers and %d digests of them", image, len(m.Layers), len(c.RootFS.DiffIDs))
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close() // what was written was closed
	for n, l := range m.Layers {
		unpack := func(r io.Reader) error { return unpackLayer(root, r, c.RootFS.DiffIDs[n]) }
		if err := readImageBlob(image, l.Digest, unpack); err != nil {
			return err
		}
	}
	return nil
}

// readImageDocument reads the JSON document with that digest into v.
func readImageDocument(image string, want digest.Digest, v any) error {
	return readImageBlob(image, want, func(r io.Reader) error { return decodeStrictly(r, v) })
}

// decodeStrictly reads one JSON document and refuses unknown keys.
func decodeStrictly(r io.Reader, v any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// readImageBlob calls read with the content of the blob of that digest, and checks the digest.
func readImageBlob(image string, want digest.Digest, read func(io.Reader) error) error {
	if err := want.Validate(); err != nil {
		return fmt.Errorf("reading image %q: digest %q: %w", image, want, err)
	}

	sum := want.Verifier()
	blob := path.Join(oci.ImageBlobsDir, want.Algorithm().String(), want.Encoded())
	return readImageEntry(image, blob, func(r io.Reader) error {
		r = io.TeeReader(r, sum)
		if err := read(r); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil { // the rest belongs to the digest as well
			return err
		}
		if !sum.Verified() {
			return errors.New("its content has another digest")
		}
		return nil
	})
}

// readImageEntry finds a file of the archive and calls read with its content.
func readImageEntry(image, name string, read func(io.Reader) error) error {
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	defer f.Close() // only read from

	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("image %q has no %s", image, name)
		}
		if err != nil {
			return fmt.Errorf("reading image %q: %w", image, err)
		}
		if h.Name != name {
			continue
		}
		if err := read(t); err != nil {
			return fmt.Errorf("reading %s of image %q: %w", name, image, err)
		}
		return nil
	}
}

// CapabilityAttribute is where a file system has the capabilities of a file, and capabilityRecord where a tar archive has them.
const (
	CapabilityAttribute = "security.capability"
	capabilityRecord    = "SCHILY.xattr." + CapabilityAttribute
)

// setCapabilities gives a program the capabilities that its entry names; only root can.
func setCapabilities(f *os.File, h *tar.Header) error {
	value, ok := h.PAXRecords[capabilityRecord]
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	return unix.Fsetxattr(int(f.Fd()), CapabilityAttribute, []byte(value), 0)
}

// unpackLayer writes the files of a layer. All of them belong to the user who unpacks.
func unpackLayer(root *os.Root, r io.Reader, diff digest.Digest) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return err
	}

	sum := digest.Canonical.Digester() // of what the layer holds, unpacked
	all := io.TeeReader(z, sum.Hash())
	for t := tar.NewReader(all); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(h.Name, "/")
		mode := os.FileMode(h.Mode & 0o777)
		if h.Mode&0o1000 != 0 {
			mode |= os.ModeSticky
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if err := root.MkdirAll(name, 0o755); err != nil {
				return err
			}
		case tar.TypeReg:
			f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_, err = io.Copy(f, t)
			if err == nil {
				err = setCapabilities(f, h)
			}
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s: invalid entry type %q; must be a file or a directory", h.Name, h.Typeflag)
		}
		if err := root.Chmod(name, mode); err != nil { // past the umask
			return err
		}
	}

	if _, err := io.Copy(io.Discard, all); err != nil {
		return err
	}
	if got := sum.Digest(); got != diff {
		return fmt.Errorf("its content has the digest %s and not %s", got, diff)
	}
	return nil
}
