package container

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxEntries limits the files of a layout.
const maxEntries = 10_000

// A layout is a tar archive of an OCI image layout, such as docker save and skopeo write it. It implements content.Fetcher.
type layout struct {
	index *io.SectionReader
	blobs map[digest.Digest]*io.SectionReader
}

// readLayout finds the files of a layout in a file of size bytes. It returns false if the file is not a layout.
func readLayout(file io.ReaderAt, size int64) (l layout, found bool) {
	l.blobs = map[digest.Digest]*io.SectionReader{}
	in := io.NewSectionReader(file, 0, size)
	archive := tar.NewReader(in)
	for range maxEntries {
		h, err := archive.Next()
		if err != nil {
			return l, found && l.index != nil && errors.Is(err, io.EOF)
		}
		at, err := in.Seek(0, io.SeekCurrent)
		if err != nil {
			return l, false
		}
		content := io.NewSectionReader(file, at, h.Size)
		switch name := path.Clean(h.Name); {
		case h.Typeflag == tar.TypeXGlobalHeader:
		case name == oci.ImageLayoutFile:
			found = true
		case name == oci.ImageIndexFile:
			l.index = content
		case path.Dir(name) == oci.ImageBlobsDir+"/sha256" && h.Typeflag == tar.TypeReg:
			l.blobs[digest.NewDigestFromEncoded(digest.SHA256, path.Base(name))] = content
		case name == "manifest.json" || name == "repositories": // docker save adds them
		case name == "." || name == oci.ImageBlobsDir || strings.HasPrefix(name, oci.ImageBlobsDir+"/"):
		default:
			return l, false
		}
	}
	return l, false
}

// IsLayout reports whether a file of size bytes is a tar archive of an OCI image layout. It reads only the names in the archive.
func IsLayout(file io.ReaderAt, size int64) bool {
	_, found := readLayout(file, size)
	return found
}

// OpenLayout opens the image for linux/amd64 in a tar archive of size bytes. If there is none that agents can run, or several, the error is
// a *diskimage.Refusal.
func OpenLayout(ctx context.Context, file io.ReaderAt, size int64) (*Image, error) {
	l, found := readLayout(file, size)
	if !found {
		return nil, refuse("make one: skopeo copy docker-archive:FILE oci-archive:NEW", "the file is not a tar archive of an OCI image layout")
	}
	if l.index.Size() > maxDocument {
		return nil, refuse(buildRemedy, "index.json of the image has %d bytes; at most %d are allowed", l.index.Size(), maxDocument)
	}
	text, err := io.ReadAll(l.index)
	if err != nil {
		return nil, err
	}
	d := oci.Descriptor{MediaType: oci.MediaTypeImageIndex, Digest: digest.FromBytes(text)}
	d, text, err = findManifest(ctx, l, d, text, -1) // index.json does not count
	if err != nil {
		return nil, err
	}
	return open(ctx, l, d, text)
}

// Fetch implements content.Fetcher.
func (l layout) Fetch(_ context.Context, d oci.Descriptor) (io.ReadCloser, error) {
	blob := l.blobs[d.Digest]
	if blob == nil || blob.Size() != d.Size {
		return nil, refuse(againRemedy, "the archive does not have the %d bytes of %s", d.Size, d.Digest)
	}
	return io.NopCloser(io.NewSectionReader(blob, 0, blob.Size())), nil
}
