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

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// An upload is a file that will become an image. The file is stored under another name until it is complete and
// verified. Then the image is changed in one transaction. So at any time, even if the server is killed, the image has
// either its old file or the complete new file.
type upload struct {
	// image holds the name, source and use of the image. If the operator declared a digest, it is in SHA256.
	image inventory.Image
	// content is the SHA-256 of the file, as the sender computed it or the operator declared it; "" if it is unknown.
	// An upload without this digest cannot be resumed, because nothing shows that the rest comes from the same file.
	content string
	// asIs means that a disk image is stored as it was sent, without a conversion.
	asIs bool
	// proof holds the SHA-512 and the signature that the operator declared.
	proof proof
	// reference is the container image that is pulled; it is zero for a file.
	reference action.ContainerReference
}

// uploadRequest is the path and the query of a request about an upload.
type uploadRequest struct {
	byName
	SHA256  string `json:"-" query:"sha256"`
	Content string `json:"-" query:"content"`
	SHA512  string `json:"-" query:"sha512"`
	Use     string `json:"-" query:"use"`
	AsIs    bool   `json:"-" query:"asIs"`
	Replace bool   `json:"-" query:"replace"`
	Offset  int64  `json:"-" query:"offset"` // of the body in the file
	Size    int64  `json:"-" query:"size"`   // of the whole file, or -1 if it is unknown
}

// newUpload reads the path and the query of a request about an upload.
func newUpload(c *gin.Context) (u upload, q uploadRequest, err error) {
	q.Size = -1
	if err := httpapi.Decode(c, httpapi.NoBody, &q); err != nil {
		return u, q, err
	}
	u, err = q.upload()
	return u, q, err
}

// upload returns the upload that the request describes.
func (q uploadRequest) upload() (u upload, err error) {
	u.image.Name = q.Name
	if err := inventory.ValidateImageName(u.image.Name).Err(); err != nil {
		return u, err
	}
	if u.image.SHA256, err = parseSum("sha256", q.SHA256); err != nil {
		return u, err
	}
	if u.content, err = parseSum("content", q.Content); err != nil {
		return u, err
	}
	if u.content != "" && u.image.SHA256 != "" && u.content != u.image.SHA256 {
		return u, notDeclared(u.content, u.image.SHA256)
	}
	u.content = cmp.Or(u.content, u.image.SHA256)
	u.image.Use, u.asIs, u.proof.SHA512 = q.Use, q.AsIs, q.SHA512
	return u, append(u.proof.check(), inventory.ValidateImageUse(u.image.Use)...).Err()
}

func notDeclared(have, declared string) error {
	return inventory.Invalid("sha256", "correct the declared digest, or get the file again",
		"the file's SHA-256 is %s, but %s was declared; nothing was kept", have, declared)
}

const uploadPrefix = ".upload-"

// part returns the name of the file that holds the received bytes. The name contains the digest of the whole file, if
// the digest is known, so that bytes of two different files are never in one file.
func (u upload) part() string {
	if u.content == "" {
		return uploadPrefix + "once-" + u.image.Name
	}
	return uploadPrefix + u.content[:16] + "-" + u.image.Name
}

const convertedPrefix = ".converted-"

// converted returns the name of the file to which a disk image is converted.
func (u upload) converted() string { return convertedPrefix + u.image.Name }

var partialUploadName = regexp.MustCompile(`^\.upload-(?:(?:[0-9a-f]{16}|once)-)?(.+)$`)

// received returns how many bytes of the upload are stored.
func (u upload) received(dir *os.Root) (int64, error) {
	st, err := dir.Stat(u.part())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the size of the upload of %q: %w", u.image.Name, err)
	}
	return st.Size(), nil
}

// discard removes the file with the received bytes, if it exists.
func (u upload) discard(dir *os.Root) error { return u.remove(dir, u.part()) }

// discardConverted removes the converted file, if it exists.
func (u upload) discardConverted(dir *os.Root) error { return u.remove(dir, u.converted()) }

func (u upload) remove(dir *os.Root, file string) error {
	if err := removeFile(dir, file); err != nil {
		return fmt.Errorf("removing the upload of %q: %w", u.image.Name, err)
	}
	return nil
}

// discardOthers removes what was received of other files for the same image.
func (u upload) discardOthers(dir *os.Root) error {
	names, err := fileNames(dir)
	for _, name := range names {
		if m := partialUploadName.FindStringSubmatch(name); m != nil && m[1] == u.image.Name && name != u.part() {
			err = errors.Join(err, removeFile(dir, name))
		}
	}
	return err
}

// removeFile removes a file. If the file does not exist, it returns nil.
func removeFile(dir *os.Root, name string) error {
	if err := dir.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// fileNames returns the names of the files in dir.
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
	uploadChecked = "Upload-Checked" // bytes checked so far; sent only while the complete file is being examined
)

// getUpload handles HEAD …/upload: it returns headers that tell the progress of an upload.
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
			c.Header(uploadChecked, strconv.FormatInt(min(checked, n), 10)) // may exceed n: qcow2 tables are read more than once
		}
	}
	c.Status(http.StatusOK)
}

// findUpload returns the upload that the request names, and how many of its bytes are stored.
func (s *images) findUpload(c *gin.Context) (u upload, received int64, err error) {
	if u, _, err = newUpload(c); err != nil {
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

// position returns at which offset of the file the body begins, and the size of the whole file or -1 if it is unknown. It reads them from
// header, the value of Content-Range, or, if it is "", from the query.
func (q uploadRequest) position(header string) (offset, total int64, err error) {
	if header == "" {
		return q.Offset, q.Size, nil
	}
	m := contentRange.FindStringSubmatch(header)
	if m == nil {
		return 0, 0, inventory.Invalid("Content-Range", "bytes FIRST-LAST/TOTAL", "invalid range %q", header)
	}
	total = -1
	offset, err = strconv.ParseInt(m[1], 10, 64)
	if err == nil && m[3] != "*" {
		total, err = strconv.ParseInt(m[3], 10, 64)
	}
	return offset, total, err
}

// upload handles PUT. It receives a file, or the part of a file that begins at the query parameter offset. If the
// connection breaks, the received bytes are kept. HEAD …/upload with the same digest then returns how many there are,
// and another PUT can continue from there. A PUT with offset 0 starts over. If the request states the size of the whole
// file, the upload is complete when that many bytes have arrived. Otherwise it is complete when the body ends.
func (s *images) upload(c *gin.Context) {
	status, answer, err := s.receiveUpload(c)
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	c.JSON(status, answer)
}

// receiveUpload does the work of upload and returns the status and the body of the answer.
func (s *images) receiveUpload(c *gin.Context) (status int, answer any, err error) {
	u, q, err := newUpload(c)
	if err != nil {
		return 0, nil, err
	}
	offset, total, err := q.position(c.GetHeader("Content-Range"))
	if err != nil {
		return 0, nil, err
	}
	if offset > 0 && u.content == "" {
		return 0, nil, inventory.Invalid("content", "give the SHA-256 of the whole file",
			"is missing: without the file's digest, an upload cannot be continued")
	}
	if err := s.users.refuseReplacing(c.Request.Context(), u.image.Name, u.content, q.Replace); err != nil {
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

// receivePart writes the body to the upload, at offset, and returns how many bytes of the upload are then stored. total
// is the size of the whole file, or -1 if it is unknown. If fewer bytes than total are stored, this is an error, unless
// the upload can be resumed.
func (s *images) receivePart(c *gin.Context, dir *os.Root, u upload, offset, total int64) (received int64, err error) {
	have, err := u.received(dir)
	if err != nil {
		return 0, err
	}
	if offset != 0 && offset != have {
		c.Header(uploadOffset, strconv.FormatInt(have, 10))
		return 0, fmt.Errorf("the upload of %q continues at byte %d, not at byte %d: %w", u.image.Name, have, offset, inventory.ErrConflict)
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
		err = errors.Join(inventory.Invalid("size", "", "received %d bytes, but %d were announced", received, total), u.discard(dir))
	case err != nil && u.content == "":
		err = errors.Join(err, u.discard(dir)) // without a digest, the upload cannot be resumed
	}
	if continues || err != nil {
		c.Header(uploadOffset, strconv.FormatInt(received, 10))
	}

	return received, err
}

// lockUpload makes the caller the only writer of an image until the caller calls unlock. If the image has a writer
// already, the error is inventory.ErrConflict. In checked, the caller counts the bytes that it has checked, and
// getUpload reads this count.
func (s *images) lockUpload(name string) (checked *atomic.Int64, unlock func(), err error) {
	checked = new(atomic.Int64)
	if _, busy := s.uploads.LoadOrStore(name, checked); busy {
		return nil, nil, fmt.Errorf("another upload of image %q is under way: %w", name, inventory.ErrConflict)
	}
	return checked, func() { s.uploads.Delete(name) }, nil
}

// checkEvery is how many bytes are read or written between two checks of the free space or of the context.
const checkEvery = 64 << 20

// receive writes the data from r to the upload, at offset, and returns how many bytes it has written. size is the
// length of the data, or -1 if it is unknown.
func (s *images) receive(dir *os.Root, u upload, offset, size int64, r io.Reader) (n int64, err error) {
	spare, err := s.space.spare()
	if err != nil {
		return 0, err
	}
	if size > spare {
		return 0, hint(fmt.Errorf("the file's %d MiB do not fit: %d MiB are left for images: %w", size>>20, spare>>20, httpapi.ErrNoSpace),
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

// interrupted is the error of a request whose body ended too early. This is an error of the client, not of this server.
type interrupted struct{ error }

func (i interrupted) Unwrap() error { return i.error }

// Is makes i an inventory.ErrInvalid, unless the disk is full.
func (i interrupted) Is(target error) bool {
	return target == inventory.ErrInvalid && !errors.Is(i.error, syscall.ENOSPC)
}

// keep verifies and examines a complete upload and stores its image. After an error, it keeps the received bytes only
// if they may be valid and the upload can be resumed.
func (s *images) keep(ctx context.Context, dir *os.Root, u upload, checked *atomic.Int64) (inventory.Image, error) {
	i, err := u.image, u.proof.verify(ctx, dir, u.part())
	if err == nil {
		i, err = s.examine(ctx, dir, u, checked)
	}
	if err == nil {
		i.File, i.Created = i.SHA256, s.now().UTC()
		if err = s.publish(ctx, dir, u, i); err != nil {
			err = fmt.Errorf("storing image %q: %w", i.Name, err)
		}
	}

	err = errors.Join(err, u.discardConverted(dir)) // if the converted file has become the image, it has another name now
	if err == nil || errors.Is(err, inventory.ErrInvalid) || u.content == "" {
		err = errors.Join(err, u.discard(dir)) // in all other cases the client may repeat the request
	}
	if err == nil {
		s.removeUnused(ctx, dir)
	}
	return i, err
}

// publish gives a verified file its digest as its name, and stores the image, even if the client has disconnected.
// During this time it holds s.publishing, so that removeUnused does not remove the file before the image is stored.
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

// removedPrefix begins the names of unused files that are being removed.
const removedPrefix = ".removed-"

// removeUnusedFiles removes the files of images that were replaced or deleted, except files that the plan of an open
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

// removeUnused removes unused files from dir. It only logs errors, because a file that is not removed only uses space.
func (s *images) removeUnused(ctx context.Context, dir *os.Root) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	// The store accepts no plans until this function returns. So the function only renames: removing a large file takes
	// long.
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

// removeConverted removes the converted file of an interrupted upload. While an upload of the image is under way, it
// does nothing.
func (s *images) removeConverted(dir *os.Root, image string) error {
	if _, busy := s.uploads.LoadOrStore(image, new(atomic.Int64)); busy {
		return nil
	}
	defer s.uploads.Delete(image)
	return upload{image: inventory.Image{Name: image}}.discardConverted(dir)
}
