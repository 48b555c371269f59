package container

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/ingotmetal/ingot/internal/images/diskimage"
)

// A layer may unpack to freeRatio bytes, and to maxRatio times its packed size.
const (
	freeRatio = 32 << 20
	maxRatio  = 200
)

// An unpacker checks the layers of an image.
type unpacker struct {
	files int64 // bytes that the files take in a tmpfs
	left  int64 // bytes that the layers may still take
}

// check reads layer number n and returns a refusal if an agent could not unpack the layer, or must not.
func (u *unpacker) check(n int, d oci.Descriptor, diffID digest.Digest, blob io.Reader) error {
	c, err := diskimage.Open(blob)
	if err != nil {
		return inLayer(n, err)
	}
	defer c.Close()
	if want := layerFormats[d.MediaType]; c.Format != want {
		return refuse(buildRemedy, "layer %d is packed as %s, but its media type is %s", n, c.Format, d.MediaType)
	}

	sum := digest.SHA256.Digester()
	all := io.TeeReader(&bounded{r: c, left: min(u.left, freeRatio+d.Size*maxRatio)}, sum.Hash())
	for in := tar.NewReader(all); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = refuse(buildRemedy, "does not unpack (%v)", err)
		}
		if err == nil {
			err = u.add(h)
		}
		if err != nil {
			return inLayer(n, err)
		}
	}

	if _, err := io.Copy(io.Discard, all); err != nil { // the rest belongs to the digest, too
		return inLayer(n, err)
	}
	if got := sum.Digest(); got != diffID {
		return refuse(buildRemedy, "layer %d unpacks to the digest %s, but the configuration of the image has %.80s", n, got, diffID)
	}
	return nil
}

func inLayer(n int, err error) error {
	if refusal, ok := errors.AsType[*diskimage.Refusal](err); ok {
		return refuse(refusal.Remedy, "layer %d: %s", n, refusal.What)
	}
	return fmt.Errorf("reading layer %d: %w", n, err)
}

// add checks an entry of a layer and counts the memory that it takes: an inode and whole pages.
func (u *unpacker) add(h *tar.Header) error {
	if err := checkEntry(h); err != nil {
		return refuse(buildRemedy+" without that file", "%.200q: %v", h.Name, err)
	}
	const inode, page = 1 << 10, 4 << 10
	if h.Size < 0 || h.Size > u.left {
		return tooLarge()
	}
	size := inode + (h.Size+page-1)/page*page
	if u.files, u.left = u.files+size, u.left-size; u.left < 0 {
		return tooLarge()
	}
	return nil
}

func tooLarge() error {
	return refuse("use a smaller image", "the unpacked image takes more than %d GiB", maxSize>>30)
}

// checkEntry returns an error for an entry that leads out of the root of the container, or that is a device.
func checkEntry(h *tar.Header) error {
	name, err := diskimage.EntryPath(h.Name)
	if err != nil {
		return err
	}
	if hidden, ok := strings.CutPrefix(path.Base(name), ".wh."); ok && (hidden == "" || hidden == "." || hidden == "..") {
		return errors.New("the whiteout leads out of its folder")
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, tar.TypeSymlink, tar.TypeFifo, tar.TypeDir, tar.TypeXGlobalHeader:
		return nil
	case tar.TypeLink:
		_, err := diskimage.EntryPath(h.Linkname)
		return err
	case tar.TypeChar, tar.TypeBlock:
		return errors.New("is a device")
	}
	return fmt.Errorf("has the unknown type %q", h.Typeflag)
}

// bounded is a reader that refuses to read more than left bytes.
type bounded struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, refuse("use a smaller image", "unpacks to more than %d times its size, or to more than %d GiB", maxRatio, maxSize>>30)
	}
	return n, err
}
