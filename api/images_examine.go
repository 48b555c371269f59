package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync/atomic"

	"github.com/ingotmetal/ingot/internal/images/container"
	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/inventory"
)

// examine reads a complete upload to its end, compares its digest and detects its format. Unless u.asIs is set, it
// converts a disk image to a compressed form, which agents will get, in the file u.converted(). If the upload can never
// become an image, the error is inventory.ErrInvalid.
func (s *images) examine(ctx context.Context, dir *os.Root, u upload, checked *atomic.Int64) (i inventory.Image, err error) {
	f, err := dir.Open(u.part())
	if err != nil {
		return u.image, fmt.Errorf("reading the upload of %q: %w", u.image.Name, err)
	}
	defer f.Close()
	return s.examineFile(ctx, dir, u, f, checked)
}

// examineFile does the work of examine, for an open file. It uses dir only to create the converted file.
func (s *images) examineFile(
	ctx context.Context, dir *os.Root, u upload, f *os.File, checked *atomic.Int64,
) (i inventory.Image, err error) {
	i = u.image
	reading := fmt.Sprintf("reading the upload of %q", i.Name)
	src, err := newSource(f, u, checked)
	if err != nil {
		return i, fmt.Errorf("%s: %w", reading, err)
	}
	if src.checked.passes == 2 {
		if err := drain(ctx, src); err != nil {
			return i, fmt.Errorf("%s: %w", reading, err)
		}
		if err := u.compare(src.digest()); err != nil {
			return i, err
		}
	}

	d, made, refused := s.describe(ctx, dir, u, src)
	var refusal *diskimage.Refusal
	if refused != nil && !errors.As(refused, &refusal) {
		return i, fmt.Errorf("%s: %w", reading, refused)
	}
	if err := drain(ctx, src); err != nil {
		return i, fmt.Errorf("%s: %w", reading, err)
	}
	if err := u.compare(src.digest()); err != nil {
		return i, err
	}
	if refusal != nil {
		return i, inventory.Invalid("image "+i.Name, refusal.Remedy, "%s; nothing was kept", refusal.What)
	}

	i.FirstSeen = i.SHA256 == "" && u.proof.isEmpty() && u.reference.Digest == ""
	i.Format, i.Size, i.SHA256 = d.Format, src.size, src.digest()
	i.DiskSize, i.Contents, i.Warning = d.Size, d.Contents, d.Warning
	i.SectorSize, i.Boots = d.SectorSize, d.Boots
	if made != nil && (src.image == nil || made.digest() != i.SHA256) {
		i.Source = &inventory.ImageSource{Format: i.Format, Size: i.Size, SHA256: i.SHA256}
		i.Format, i.Size, i.SHA256 = made.format, made.size, made.digest()
	}
	switch {
	case src.image != nil:
		i.Use = inventory.UseContainer
		if i.Container == nil {
			i.Container = &inventory.ContainerImage{Digest: src.image.Digest, Architecture: container.Architecture}
		}
		return i, nil
	case d.Archive:
		i.Use = inventory.UseArchive
		return i, nil
	case !d.Installer:
		i.ContentSHA256 = d.SHA256
		return i, nil
	}
	i.Use = inventory.UseInstaller
	if i.DiskSize == 0 && i.Format == diskimage.Raw {
		i.DiskSize = i.Size
	}
	return i, nil
}

// compare returns an error if got differs from the digest that the operator declared, or from the digest that the
// sender computed. A digest that is not known is not compared.
func (u upload) compare(got string) error {
	switch {
	case u.image.SHA256 != "" && u.image.SHA256 != got:
		return notDeclared(got, u.image.SHA256)
	case u.content != "" && u.content != got:
		return inventory.Invalid("content", "send the file again",
			"the file's SHA-256 is %s here, but %s at the sender: the file was changed while it was sent; nothing was kept", got, u.content)
	}
	return nil
}

// describe detects the format and the content of an upload. It also returns the converted file, or nil if agents will
// get the upload itself.
func (s *images) describe(ctx context.Context, dir *os.Root, u upload, src *source) (diskimage.Description, *conversion, error) {
	var d diskimage.Description
	if u.image.Use == inventory.UseInstaller {
		d, err := describeInstaller(src)
		return d, nil, err
	}
	if src.layout || u.image.Use == inventory.UseContainer {
		return src.describeContainer(ctx, dir, u, s.space)
	}
	if u.asIs && src.format == diskimage.Qcow2 {
		return d, nil, &diskimage.Refusal{
			What: "agents cannot read a qcow2 image as it is", Remedy: "store it without --as-is (asIs): the server converts it",
		}
	}

	content, err := src.open()
	if err != nil {
		return d, nil, err
	}
	defer content.Close()
	if u.asIs {
		d, err = diskimage.Describe(ctx, content, nil)
		return d, nil, err
	}

	made, err := newConversion(dir, u, s.space)
	if err != nil {
		return d, nil, err
	}
	defer made.file.Close()
	d, err = diskimage.Describe(ctx, content, made.frames)
	if err != nil || d.Installer || d.Archive {
		return d, nil, err
	}
	return d, made, made.finish()
}

// describeContainer verifies a container image. It returns its archive in the form for agents, unless this server wrote it in that form.
func (s *source) describeContainer(
	ctx context.Context, dir *os.Root, u upload, room *space,
) (d diskimage.Description, made *conversion, err error) {
	if s.image, err = container.OpenLayout(ctx, s, s.size); err != nil {
		return d, nil, err
	}
	archive := io.Discard
	switch {
	case dir == nil:
		return d, nil, &diskimage.Refusal{What: "a container image cannot be served in place", Remedy: "store it without --in-place"}
	case u.image.Container == nil:
		if made, err = createConversion(dir, u, room); err != nil {
			return d, nil, err
		}
		defer made.file.Close()
		archive = made
	}

	d.Format = diskimage.Raw
	d.Contents = fmt.Sprintf("container image for linux/%s, layers: %d, %s", container.Architecture, len(s.image.Layers), s.image.Digest)
	d.Size, err = s.image.Verify(ctx, archive)
	if err == nil && made != nil {
		err = made.file.Sync()
	}
	return d, made, err
}

func describeInstaller(r io.Reader) (diskimage.Description, error) {
	head, err := io.ReadAll(io.LimitReader(r, diskimage.HeadSize))
	if err != nil {
		return diskimage.Description{}, err
	}
	if len(head) == 0 {
		return diskimage.Description{}, &diskimage.Refusal{What: "the file is empty", Remedy: "get the file again"}
	}
	return diskimage.DescribeInstaller(head)
}

// A source reads a complete upload. When Read has reached the end of the file, digest returns the file's SHA-256.
type source struct {
	file    *os.File
	size    int64
	format  string
	sum     hash.Hash
	checked counter
	layout  bool             // it is the archive of a container image
	image   *container.Image // that image; nil until it was opened
}

func newSource(f *os.File, u upload, checked *atomic.Int64) (*source, error) {
	head := make([]byte, 8)
	n, err := f.ReadAt(head, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	st, statErr := f.Stat()
	if err := errors.Join(err, statErr); err != nil {
		return nil, err
	}

	src := &source{file: f, size: st.Size(), format: diskimage.Format(head[:n]), sum: sha256.New(), checked: counter{checked, 1}}
	src.layout = src.format == diskimage.Raw && container.IsLayout(f, src.size)
	if (src.format == diskimage.Qcow2 || src.layout) && u.image.Use != inventory.UseInstaller {
		src.checked.passes = 2 // one pass in the order of the file, for the digest, and one in the order of the tables
	}
	return src, nil
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.file.Read(p)
	s.sum.Write(p[:n]) // a hash never returns an error
	s.checked.add(n)
	return n, err
}

// ReadAt implements io.ReaderAt. What it reads does not count for the digest.
func (s *source) ReadAt(p []byte, offset int64) (int, error) {
	n, err := s.file.ReadAt(p, offset)
	s.checked.add(n)
	return n, err
}

func (s *source) digest() string { return hex.EncodeToString(s.sum.Sum(nil)) }

// open returns a reader of the content of the upload: the decompressed bytes, or the disk in a qcow2 file.
func (s *source) open() (*diskimage.Content, error) {
	if s.format == diskimage.Qcow2 {
		return diskimage.OpenQcow2(s, s.size)
	}
	return diskimage.Open(s)
}

// counter counts how much of a file has been read. If the file is read several times (passes), each byte counts only as
// its share, so that the count ends at the size of the file.
type counter struct {
	n      *atomic.Int64
	passes int64
}

func (c counter) add(n int) { c.n.Add(int64(n) / c.passes) }

// A conversion writes the converted file of an upload, which agents will get. It also computes the digest and size of
// this file.
type conversion struct {
	frames *diskimage.FrameWriter // nil if the file is not compressed
	format string
	file   *os.File
	room   *space
	sum    hash.Hash
	size   int64
}

func createConversion(dir *os.Root, u upload, room *space) (*conversion, error) {
	f, err := dir.OpenFile(u.converted(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	return &conversion{format: diskimage.Raw, file: f, room: room, sum: sha256.New()}, err
}

// newConversion returns a conversion that compresses what is written to its frames.
func newConversion(dir *os.Root, u upload, room *space) (*conversion, error) {
	c, err := createConversion(dir, u, room)
	if err != nil {
		return nil, err
	}
	c.format = diskimage.Zstd
	if c.frames, err = diskimage.NewFrameWriter(c); err != nil {
		return nil, errors.Join(err, c.file.Close())
	}
	return c, nil
}

func (c *conversion) digest() string { return hex.EncodeToString(c.sum.Sum(nil)) }

// Write implements io.Writer. The FrameWriter calls Write with compressed data. Write fails if there is too little free
// space.
func (c *conversion) Write(p []byte) (int, error) {
	if _, err := c.room.spare(); err != nil {
		return 0, err
	}
	n, err := c.file.Write(p)
	c.size += int64(n)
	c.sum.Write(p[:n]) // a hash never returns an error
	return n, err
}

// finish writes the end of the file and syncs it to the disk.
func (c *conversion) finish() error { return errors.Join(c.frames.Close(), c.file.Sync()) }

// drain reads r to its end or until ctx ends.
func drain(ctx context.Context, r io.Reader) error {
	for {
		_, err := io.CopyN(io.Discard, r, checkEvery)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}
