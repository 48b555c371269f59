package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/diskimage"
	"github.com/ingotmetal/ingot/inventory"
)

// An upload is a file on its way to become an image. Its bytes lie in a file
// of their own until all of them are there and are proven; only then does the
// image change, in one transaction. A kill at any moment leaves the old image
// or the whole new one.
type upload struct {
	// image has the name, where it comes from, its use, and in SHA256 the
	// digest that a person declared, if one did.
	image inventory.Image
	// content is the digest of the file as the sender has it; "" when the sender does not say. The digest identifies the
	// file. Only with it can an upload be continued.
	content string
}

// newUpload reads the query of an upload.
func newUpload(c *gin.Context) (u upload, err error) {
	u.image.Name = c.Param("name")
	if err := inventory.ValidateImageName(u.image.Name).Err(); err != nil {
		return u, err
	}
	if u.image.SHA256, err = declaredSum("sha256", c.Query("sha256")); err != nil {
		return u, err
	}
	if u.content, err = declaredSum("content", c.Query("content")); err != nil {
		return u, err
	}
	if u.content != "" && u.image.SHA256 != "" && u.content != u.image.SHA256 {
		return u, notDeclared(u.content, u.image.SHA256)
	}
	u.content = first(u.content, u.image.SHA256)
	u.image.Use = c.Query("use")
	return u, inventory.ValidateImageUse(u.image.Use).Err()
}

func notDeclared(have, declared string) error {
	return invalid("sha256", "correct the declared digest, or get the file again", "the file's SHA-256 is %s and %s was declared; nothing was kept", have, declared)
}

const uploadPrefix = ".upload-"

// part is the name of the file of an upload that is not complete. The digest is in it: what was begun of one file is
// never continued with another.
func (u upload) part() string {
	if u.content == "" {
		return uploadPrefix + "once-" + u.image.Name
	}
	return uploadPrefix + u.content[:16] + "-" + u.image.Name
}

var partialUploadName = regexp.MustCompile(`^\.upload-(?:(?:[0-9a-f]{16}|once)-)?(.+)$`)

// received returns how many bytes of an upload are there.
func (u upload) received(dir *os.Root) (int64, error) {
	st, err := dir.Stat(u.part())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("looking at the upload of %q: %w", u.image.Name, err)
	}
	return st.Size(), nil
}

// discard removes what was received.
func (u upload) discard(dir *os.Root) error {
	if err := dir.Remove(u.part()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the upload of %q: %w", u.image.Name, err)
	}
	return nil
}

// discardOthers removes what was begun of other files for the same image.
func (u upload) discardOthers(dir *os.Root) error {
	names, err := fileNames(dir)
	for _, name := range names {
		if m := partialUploadName.FindStringSubmatch(name); m != nil && m[1] == u.image.Name && name != u.part() {
			if e := dir.Remove(name); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

// fileNames lists a directory.
func fileNames(dir *os.Root) ([]string, error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	return names, errors.Join(err, d.Close())
}

// Headers that say how far an upload is.
const (
	uploadOffset  = "Upload-Offset"  // bytes that are there
	uploadChecked = "Upload-Checked" // bytes that were read again, while the complete file is checked
)

func (s *Server) uploadState(c *gin.Context) {
	u, err := newUpload(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	dir, err := s.dir()
	if err != nil {
		s.fail(c, err)
		return
	}
	defer dir.Close()
	n, err := u.received(dir)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Header(uploadOffset, strconv.FormatInt(n, 10))
	c.Header("Content-Length", strconv.FormatInt(n, 10))
	if busy, ok := s.uploads.Load(u.image.Name); ok {
		if checked := busy.(*atomic.Int64).Load(); checked > 0 {
			c.Header(uploadChecked, strconv.FormatInt(checked, 10))
		}
	}
	c.Status(http.StatusOK)
}

var contentRange = regexp.MustCompile(`^bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)$`)

// uploadRange reads where the body begins and how long the whole file is, -1
// when that is not said.
func uploadRange(c *gin.Context) (offset, total int64, err error) {
	total = -1
	if v := c.GetHeader("Content-Range"); v != "" {
		m := contentRange.FindStringSubmatch(v)
		if m == nil {
			return 0, 0, invalid("Content-Range", "bytes FIRST-LAST/TOTAL", "invalid range %q", v)
		}
		offset, err = strconv.ParseInt(m[1], 10, 64)
		if err == nil && m[3] != "*" {
			total, err = strconv.ParseInt(m[3], 10, 64)
		}
		return offset, total, err
	}
	offset, err = intQuery(c, "offset", 0)
	if err == nil && c.Query("size") != "" {
		total, err = intQuery(c, "size", 0)
	}
	return offset, total, err
}

// uploadImage takes the bytes of an image from offset on. A body that breaks
// off leaves what came; HEAD …/upload with the same digest tells how much, and another PUT goes on
// there. Offset 0 begins again. With size (or Content-Range) the upload is
// complete when that many bytes are there, without it when the body ends.
func (s *Server) uploadImage(c *gin.Context) {
	u, err := newUpload(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	offset, total, err := uploadRange(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	if offset > 0 && u.content == "" {
		s.fail(c, invalid("content", "the SHA-256 of the whole file", "an upload is continued by its digest only, and none is given"))
		return
	}
	dir, err := s.dir()
	if err != nil {
		s.fail(c, err)
		return
	}
	defer dir.Close()
	checked, unlock, err := s.lockUpload(u.image.Name)
	if err != nil {
		s.fail(c, err)
		return
	}
	defer unlock()
	have, err := u.received(dir)
	if err != nil {
		s.fail(c, err)
		return
	}
	if offset != 0 && offset != have {
		c.Header(uploadOffset, strconv.FormatInt(have, 10))
		s.fail(c, fmt.Errorf("the upload of %q goes on at %d, not at %d: %w", u.image.Name, have, offset, inventory.ErrConflict))
		return
	}
	if err := u.discardOthers(dir); err != nil {
		s.fail(c, err)
		return
	}
	n, err := s.receive(dir, u, offset, max(c.Request.ContentLength, total-offset), c.Request.Body)
	if err == nil && total >= 0 && offset+n < total && u.content != "" {
		c.Header(uploadOffset, strconv.FormatInt(offset+n, 10))
		c.JSON(http.StatusAccepted, gin.H{"received": offset + n, "size": total})
		return
	}
	if err == nil && total >= 0 && offset+n != total {
		err = errors.Join(invalid("size", "", "%d bytes came and %d were announced", offset+n, total), u.discard(dir))
	} else if err != nil && u.content == "" {
		err = errors.Join(err, u.discard(dir)) // nothing could be continued
	}
	if err != nil {
		c.Header(uploadOffset, strconv.FormatInt(offset+n, 10))
		s.fail(c, err)
		return
	}
	s.keepImage(c, dir, u, checked)
}

// lockUpload makes the caller the only writer of an image. checked is what
// uploadState tells of the check of the complete file.
func (s *Server) lockUpload(name string) (checked *atomic.Int64, unlock func(), err error) {
	checked = new(atomic.Int64)
	if _, busy := s.uploads.LoadOrStore(name, checked); busy {
		return nil, nil, fmt.Errorf("another upload of image %q is under way: %w", name, inventory.ErrConflict)
	}
	return checked, func() { s.uploads.Delete(name) }, nil
}

// checkEvery is how many bytes are written between two looks at free space.
const checkEvery = 64 << 20

// receive appends r to the upload at offset and returns how many bytes came.
// size is what is known of r's length, -1 for nothing.
func (s *Server) receive(dir *os.Root, u upload, offset, size int64, r io.Reader) (n int64, err error) {
	spare, err := s.spare()
	if err != nil {
		return 0, err
	}
	if size > spare {
		return 0, hint{fmt.Errorf("%d MiB do not fit, %d MiB are left for images: %w", size>>20, spare>>20, errNoSpace), "ingot image prune"}
	}
	flags := os.O_WRONLY | os.O_CREATE
	if offset == 0 {
		flags |= os.O_TRUNC
	}
	f, err := dir.OpenFile(u.part(), flags, 0o644)
	if err != nil {
		return 0, fmt.Errorf("opening the upload of %q: %w", u.image.Name, err)
	}
	defer func() {
		if e := f.Close(); e != nil && err == nil {
			err = fmt.Errorf("writing the upload of %q: %w", u.image.Name, e)
		}
	}()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return 0, fmt.Errorf("writing the upload of %q: %w", u.image.Name, err)
	}
	for {
		m, err := io.CopyN(f, r, checkEvery)
		n += m
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return n, interrupted{fmt.Errorf("receiving image %q: %w", u.image.Name, err)}
		}
		if _, err := s.spare(); err != nil {
			return n, err
		}
	}
	if err := f.Sync(); err != nil {
		return n, fmt.Errorf("writing the upload of %q: %w", u.image.Name, err)
	}
	return n, nil
}

// interrupted is a body that broke off: the sender's fault, not this server's.
type interrupted struct{ error }

func (i interrupted) Unwrap() error { return i.error }

// Is makes it an ErrInvalid, unless the disk is full.
func (i interrupted) Is(target error) bool {
	return target == inventory.ErrInvalid && !errors.Is(i.error, syscall.ENOSPC)
}

// keepImage makes a complete upload the image, and answers with it.
func (s *Server) keepImage(c *gin.Context, dir *os.Root, u upload, checked *atomic.Int64) {
	ctx := c.Request.Context()
	i, err := u.examine(ctx, dir, checked)
	if err != nil {
		if errors.Is(err, inventory.ErrInvalid) { // otherwise it may be examined again
			err = errors.Join(err, u.discard(dir))
		}
		s.fail(c, err)
		return
	}
	i.File, i.Created = i.SHA256, s.cfg.Now().UTC()
	if err := s.publish(ctx, dir, u, i, by(c)); err != nil {
		s.fail(c, fmt.Errorf("keeping image %q: %w", i.Name, err))
		return
	}
	s.removeUnused(ctx, dir)
	c.JSON(http.StatusCreated, i)
}

// publish puts a proven file in its place and stores its image, whether or not
// the client still waits. No unused file is removed in between.
func (s *Server) publish(ctx context.Context, dir *os.Root, u upload, i inventory.Image, by string) error {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	ctx = context.WithoutCancel(ctx)
	if err := s.cfg.Store.ExpectImageFile(ctx, i.File); err != nil {
		return err
	}
	if err := dir.Rename(u.part(), i.File); err != nil {
		return err
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	return s.cfg.Store.PutImage(ctx, i, by)
}

func syncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// examine reads a complete upload to its end, compares its digest and says what it is. What can
// never become an image is an inventory.ErrInvalid.
func (u upload) examine(ctx context.Context, dir *os.Root, checked *atomic.Int64) (i inventory.Image, err error) {
	i = u.image
	reading := fmt.Sprintf("reading the upload of %q", i.Name)
	f, err := dir.Open(u.part())
	if err != nil {
		return i, fmt.Errorf("%s: %w", reading, err)
	}
	defer f.Close()
	sum := sha256.New()
	in := io.TeeReader(f, io.MultiWriter(sum, counter{checked}))
	d, refused := describe(ctx, in, i.Use)
	var refusal *diskimage.Refusal
	if refused != nil && !errors.As(refused, &refusal) {
		return i, fmt.Errorf("%s: %w", reading, refused)
	}
	if err := drain(ctx, in); err != nil {
		return i, fmt.Errorf("%s: %w", reading, err)
	}
	got := hex.EncodeToString(sum.Sum(nil))
	switch {
	case i.SHA256 != "" && i.SHA256 != got:
		return i, notDeclared(got, i.SHA256)
	case u.content != "" && u.content != got:
		return i, invalid("content", "send the file again", "the file's SHA-256 is %s and the sender's was %s: it was changed while it was sent; nothing was kept", got, u.content)
	case refusal != nil:
		return i, invalid("image "+i.Name, refusal.Remedy, "%s; nothing was kept", refusal.What)
	}
	i.Size, i.FirstSeen, i.SHA256 = checked.Load(), i.SHA256 == "", got
	i.Format, i.DiskSize, i.Contents, i.Warning = d.Format, d.Size, d.Contents, d.Warning
	if d.Installer {
		i.Use = inventory.UseInstaller
		if i.DiskSize == 0 && i.Format == diskimage.Raw {
			i.DiskSize = i.Size
		}
	}
	return i, nil
}

// describe says what a file is that is used for a disk, or for an installer.
func describe(ctx context.Context, r io.Reader, use string) (diskimage.Description, error) {
	if use != inventory.UseInstaller {
		return diskimage.Describe(ctx, r)
	}
	head, err := io.ReadAll(io.LimitReader(r, diskimage.HeadSize))
	if err != nil {
		return diskimage.Description{}, err
	}
	if len(head) == 0 {
		return diskimage.Description{}, &diskimage.Refusal{What: "the file is empty", Remedy: "get it again"}
	}
	return diskimage.DescribeInstaller(head)
}

// counter counts what is written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// drain reads r to its end, as long as ctx lives.
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

// removedPrefix marks files that nothing needs any more and that are being removed.
const removedPrefix = ".removed-"

// RemoveUnusedImages removes the files of images that were replaced or deleted
// and that no plan of an open run needs. Files that this inventory has never known stay.
func (s *Server) RemoveUnusedImages(ctx context.Context) {
	if s.cfg.ImageDir == "" {
		return
	}
	dir, err := s.dir()
	if err != nil {
		s.cfg.Log.Warn("removing unused image files", "error", err)
		return
	}
	defer dir.Close()
	s.removeUnused(ctx, dir)
}

// removeUnused logs its errors: a file that stays costs space and nothing else.
func (s *Server) removeUnused(ctx context.Context, dir *os.Root) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	// Renamed only, while the store lets no plan in: removing a large file takes long.
	err := s.cfg.Store.UnusedImageFiles(ctx, func(digest string) error {
		if err := dir.Rename(digest, removedPrefix+digest); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	names, e := fileNames(dir)
	err = errors.Join(err, e)
	for _, name := range names {
		if !strings.HasPrefix(name, removedPrefix) {
			continue
		}
		if e := dir.Remove(name); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		s.cfg.Log.Warn("removing unused image files", "error", err)
	}
}
