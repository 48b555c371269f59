package api

import (
	"cmp"
	"context"
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

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// An upload is a file that will become an image. Its bytes are in a separate file until they
// are complete and verified; only then does the image change, in one transaction. After a
// kill at any time there is either the old image or the whole new one.
type upload struct {
	// image holds the name, source and use, and in SHA256 the digest that the operator
	// declared, if any.
	image inventory.Image
	// content is the digest of the sender's file; "" if unknown. It identifies the file:
	// only with it can an upload be resumed.
	content string
	// asIs: a disk image is served to agents as it was given.
	asIs bool
	// proof holds what the operator declared besides the SHA-256.
	proof proof
}

// newUpload parses the query of an upload.
func newUpload(c *gin.Context) (u upload, err error) {
	u.image.Name = c.Param("name")
	if err := inventory.ValidateImageName(u.image.Name).Err(); err != nil {
		return u, err
	}
	if u.image.SHA256, err = parseSum("sha256", c.Query("sha256")); err != nil {
		return u, err
	}
	if u.content, err = parseSum("content", c.Query("content")); err != nil {
		return u, err
	}
	if u.content != "" && u.image.SHA256 != "" && u.content != u.image.SHA256 {
		return u, notDeclared(u.content, u.image.SHA256)
	}
	u.content = cmp.Or(u.content, u.image.SHA256)
	u.image.Use, u.asIs = c.Query("use"), c.Query("asIs") == "true"
	u.proof.SHA512 = c.Query("sha512")
	return u, append(u.proof.check(), inventory.ValidateImageUse(u.image.Use)...).Err()
}

func notDeclared(have, declared string) error {
	return inventory.Invalid("sha256", "correct the declared digest, or get the file again",
		"the file's SHA-256 is %s and %s was declared; nothing was kept", have, declared)
}

const uploadPrefix = ".upload-"

// part returns the name of the file of an incomplete upload. It contains the digest, so an
// upload is never resumed with another file.
func (u upload) part() string {
	if u.content == "" {
		return uploadPrefix + "once-" + u.image.Name
	}
	return uploadPrefix + u.content[:16] + "-" + u.image.Name
}

const convertedPrefix = ".converted-"

// converted returns the name of the file that is made of the upload.
func (u upload) converted() string { return convertedPrefix + u.image.Name }

var partialUploadName = regexp.MustCompile(`^\.upload-(?:(?:[0-9a-f]{16}|once)-)?(.+)$`)

// received returns how many bytes of an upload have been received.
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

// discard removes the received bytes.
func (u upload) discard(dir *os.Root) error { return u.remove(dir, u.part()) }

// discardConverted removes what was made of the upload.
func (u upload) discardConverted(dir *os.Root) error { return u.remove(dir, u.converted()) }

func (u upload) remove(dir *os.Root, file string) error {
	if err := removeFile(dir, file); err != nil {
		return fmt.Errorf("removing the upload of %q: %w", u.image.Name, err)
	}
	return nil
}

// discardOthers removes incomplete uploads of other files for the same image.
func (u upload) discardOthers(dir *os.Root) error {
	names, err := fileNames(dir)
	for _, name := range names {
		if m := partialUploadName.FindStringSubmatch(name); m != nil && m[1] == u.image.Name && name != u.part() {
			err = errors.Join(err, removeFile(dir, name))
		}
	}
	return err
}

// removeFile removes a file, if it is there.
func removeFile(dir *os.Root, name string) error {
	if err := dir.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
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

// Headers with the progress of an upload.
const (
	uploadOffset  = "Upload-Offset"  // bytes received
	uploadChecked = "Upload-Checked" // bytes verified, while the complete file is checked
)

// getUpload answers with the progress of an upload.
func (s *images) getUpload(c *gin.Context) {
	u, n, err := s.findUpload(c)
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	c.Header(uploadOffset, strconv.FormatInt(n, 10))
	c.Header("Content-Length", strconv.FormatInt(n, 10))
	if busy, ok := s.uploads.Load(u.image.Name); ok {
		if checked := busy.(*atomic.Int64).Load(); checked > 0 {
			c.Header(uploadChecked, strconv.FormatInt(min(checked, n), 10)) // tables are read more than once
		}
	}
	c.Status(http.StatusOK)
}

// findUpload returns the upload that the query names, and how many bytes it has.
func (s *images) findUpload(c *gin.Context) (u upload, received int64, err error) {
	if u, err = newUpload(c); err != nil {
		return u, 0, err
	}
	dir, err := s.openDir()
	if err != nil {
		return u, 0, err
	}
	defer dir.Close()
	received, err = u.received(dir)

	return u, received, err
}

var contentRange = regexp.MustCompile(`^bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)$`)

// uploadRange returns the offset of the body and the length of the whole file, -1 if
// unknown.
func uploadRange(c *gin.Context) (offset, total int64, err error) {
	total = -1
	if v := c.GetHeader("Content-Range"); v != "" {
		m := contentRange.FindStringSubmatch(v)
		if m == nil {
			return 0, 0, inventory.Invalid("Content-Range", "bytes FIRST-LAST/TOTAL", "invalid range %q", v)
		}
		offset, err = strconv.ParseInt(m[1], 10, 64)
		if err == nil && m[3] != "*" {
			total, err = strconv.ParseInt(m[3], 10, 64)
		}
		return offset, total, err
	}
	offset, err = sizeQuery(c, "offset", 0)
	if err == nil {
		total, err = sizeQuery(c, "size", -1)
	}
	return offset, total, err
}

// sizeQuery parses a number of bytes in the query.
func sizeQuery(c *gin.Context, name string, missing int64) (int64, error) {
	text := c.Query(name)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, inventory.Invalid(name, "", "invalid whole number %q", text)
	}
	return n, nil
}

// upload receives the bytes of an image from offset on. If the body breaks off, the received
// bytes are kept: HEAD …/upload with the same digest returns their number, and another PUT
// continues there. Offset 0 starts over. With size (or Content-Range) the upload is complete
// when that many bytes have arrived, otherwise when the body ends.
func (s *images) upload(c *gin.Context) {
	status, answer, err := s.receiveUpload(c)
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	c.JSON(status, answer)
}

// receiveUpload returns the status and body of the answer to an upload.
func (s *images) receiveUpload(c *gin.Context) (status int, answer any, err error) {
	u, err := newUpload(c)
	if err != nil {
		return 0, nil, err
	}
	offset, total, err := uploadRange(c)
	if err != nil {
		return 0, nil, err
	}
	if offset > 0 && u.content == "" {
		return 0, nil, inventory.Invalid("content", "the SHA-256 of the whole file",
			"an upload is continued by its digest only, and none is given")
	}
	if err := s.users.refuseReplacing(c.Request.Context(), u.image.Name, u.content, c.Query("replace") == "true"); err != nil {
		return 0, nil, err
	}
	dir, err := s.openDir()
	if err != nil {
		return 0, nil, err
	}
	defer dir.Close()
	checked, unlock, err := s.lockUpload(u.image.Name)
	if err != nil {
		return 0, nil, err
	}
	defer unlock()

	received, err := s.receivePart(c, dir, u, offset, total)
	if err != nil {
		return 0, nil, err
	}
	if total >= 0 && received < total {
		return http.StatusAccepted, gin.H{"received": received, "size": total}, nil
	}
	i, err := s.keep(c.Request.Context(), dir, u, checked)

	return http.StatusCreated, i, err
}

// receivePart appends the body to an upload and returns how many bytes it has. Less than
// total, which is -1 if unknown, is an error unless the upload can be resumed.
func (s *images) receivePart(c *gin.Context, dir *os.Root, u upload, offset, total int64) (received int64, err error) {
	have, err := u.received(dir)
	if err != nil {
		return 0, err
	}
	if offset != 0 && offset != have {
		c.Header(uploadOffset, strconv.FormatInt(have, 10))
		return 0, fmt.Errorf("the upload of %q goes on at %d, not at %d: %w", u.image.Name, have, offset, inventory.ErrConflict)
	}
	if err := u.discardOthers(dir); err != nil {
		return 0, err
	}

	n, err := s.receive(dir, u, offset, max(c.Request.ContentLength, total-offset), c.Request.Body)
	received = offset + n
	continues := err == nil && total >= 0 && received < total && u.content != ""
	switch {
	case continues:
	case err == nil && total >= 0 && received != total:
		err = errors.Join(inventory.Invalid("size", "", "%d bytes came and %d were announced", received, total), u.discard(dir))
	case err != nil && u.content == "":
		err = errors.Join(err, u.discard(dir)) // it could not be resumed
	}
	if continues || err != nil {
		c.Header(uploadOffset, strconv.FormatInt(received, 10))
	}

	return received, err
}

// lockUpload makes the caller the only writer of an image. checked is how many bytes of the
// complete file were checked, for getUpload.
func (s *images) lockUpload(name string) (checked *atomic.Int64, unlock func(), err error) {
	checked = new(atomic.Int64)
	if _, busy := s.uploads.LoadOrStore(name, checked); busy {
		return nil, nil, fmt.Errorf("another upload of image %q is under way: %w", name, inventory.ErrConflict)
	}
	return checked, func() { s.uploads.Delete(name) }, nil
}

// checkEvery is how many bytes are written between two checks of free space.
const checkEvery = 64 << 20

// receive appends r to the upload at offset and returns how many bytes were read. size is
// the known length of r, or -1.
func (s *images) receive(dir *os.Root, u upload, offset, size int64, r io.Reader) (n int64, err error) {
	spare, err := s.space.spare()
	if err != nil {
		return 0, err
	}
	if size > spare {
		return 0, hint(fmt.Errorf("%d MiB do not fit, %d MiB are left for images: %w", size>>20, spare>>20, httpapi.ErrNoSpace),
			"ingot image prune")
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
		if _, err := s.space.spare(); err != nil {
			return n, err
		}
	}
	if err := f.Sync(); err != nil {
		return n, fmt.Errorf("writing the upload of %q: %w", u.image.Name, err)
	}
	return n, nil
}

// interrupted is a body that broke off: an error of the sender, not of this server.
type interrupted struct{ error }

func (i interrupted) Unwrap() error { return i.error }

// Is reports ErrInvalid, unless the disk is full.
func (i interrupted) Is(target error) bool {
	return target == inventory.ErrInvalid && !errors.Is(i.error, syscall.ENOSPC)
}

// keep turns a complete upload into the image.
func (s *images) keep(ctx context.Context, dir *os.Root, u upload, checked *atomic.Int64) (inventory.Image, error) {
	i, err := u.image, u.proof.verify(ctx, dir, u.part())
	if err == nil {
		i, err = s.examine(ctx, dir, u, checked)
	}
	if err == nil {
		i.File, i.Created = i.SHA256, s.now().UTC()
		if err = s.publish(ctx, dir, u, i); err != nil {
			err = fmt.Errorf("keeping image %q: %w", i.Name, err)
		}
	}

	err = errors.Join(err, u.discardConverted(dir)) // if it became the image, it has another name by now
	if err == nil || errors.Is(err, inventory.ErrInvalid) || u.content == "" {
		err = errors.Join(err, u.discard(dir)) // otherwise it may be examined again
	}
	if err == nil {
		s.removeUnused(ctx, dir)
	}
	return i, err
}

// publish puts a verified file in place and stores its image, even if the client has
// disconnected. No unused file is removed in the meantime.
func (s *images) publish(ctx context.Context, dir *os.Root, u upload, i inventory.Image) error {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	ctx = context.WithoutCancel(ctx)
	if err := s.store.ExpectImageFile(ctx, i.File); err != nil {
		return err
	}
	file := u.part()
	if i.Source != nil {
		file = u.converted()
	}
	if err := dir.Rename(file, i.File); err != nil {
		return err
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	return s.store.PutImage(ctx, i, httpapi.Actor(ctx))
}

func syncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removedPrefix marks unused files that are being removed.
const removedPrefix = ".removed-"

// removeUnusedFiles removes the files of replaced or deleted images that no plan of an open
// run needs.
func (s *images) removeUnusedFiles(ctx context.Context) {
	if s.Dir == "" {
		return
	}
	dir, err := s.openDir()
	if err != nil {
		s.log.Warn("removing unused image files", "error", err)
		return
	}
	defer dir.Close()
	s.removeUnused(ctx, dir)
}

// removeUnused logs its errors: a file that stays only uses space.
func (s *images) removeUnused(ctx context.Context, dir *os.Root) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	// Only rename while the store accepts no plans: removing a large file takes long.
	err := s.store.UnusedImageFiles(ctx, func(digest string) error {
		if err := dir.Rename(digest, removedPrefix+digest); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	names, e := fileNames(dir)
	err = errors.Join(err, e)
	for _, name := range names {
		if image, ok := strings.CutPrefix(name, convertedPrefix); ok {
			err = errors.Join(err, s.removeConverted(dir, image))
		}
		if strings.HasPrefix(name, removedPrefix) {
			err = errors.Join(err, removeFile(dir, name))
		}
	}
	if err != nil {
		s.log.Warn("removing unused image files", "error", err)
	}
}

// removeConverted removes what an interrupted conversion has left, unless an upload of the image is under way.
func (s *images) removeConverted(dir *os.Root, image string) error {
	if _, busy := s.uploads.LoadOrStore(image, new(atomic.Int64)); busy {
		return nil
	}
	defer s.uploads.Delete(image)
	return upload{image: inventory.Image{Name: image}}.discardConverted(dir)
}
