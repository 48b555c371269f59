package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/inventory"
)

// ImageStore holds images, and the plans of open runs that use their files.
type ImageStore interface {
	Image(ctx context.Context, name string) (inventory.Image, error)
	Images(ctx context.Context) ([]inventory.Image, error)
	ExpectImageFile(ctx context.Context, digest string) error
	PutImage(ctx context.Context, i inventory.Image, by string) error
	DeleteImage(ctx context.Context, name, by string) error
	PlannedImages(ctx context.Context) ([]inventory.PlannedImage, error)
	UnusedImageFiles(ctx context.Context, remove func(digest string) error) error
}

// ImageConfig configures where images are stored and from where they may be fetched.
type ImageConfig struct {
	// Dir is the directory of uploaded and fetched images. If Dir is "", uploading and fetching are refused.
	Dir string
	// Files opens the files of images: the files in Dir, and the files that are served from a share.
	Files *imagefile.Files
	// FetchHosts are hosts from which images may be fetched over plain http, and which may have private addresses.
	FetchHosts []string
	// Registries are the registries that this server does not reach by https and without credentials.
	Registries []Registry
	// Catalog is the path of a file that lists the images of publishers. If it is "", the list in this program is used.
	Catalog string
	// Resolver looks up the hosts from which images are fetched. If it is nil, the system's resolver is used.
	Resolver *net.Resolver
	// URL returns the URL from which agents fetch an image. If URL is nil, agents fetch it from the URL of its source.
	// This is used only to render templates for display: a run determines the URLs of its images itself.
	URL func(i inventory.Image) string
	// BaseURL returns the URL that precedes the names of images in the URLs for agents, without a trailing slash. It is
	// nil if no provisioning interface is configured.
	BaseURL func() string
	// RequireDigest means that a plan fails if it uses an image that was added without a digest.
	RequireDigest bool
	// UploadHosts are the hosts to which an action may send the content of a disk.
	UploadHosts []string
}

type images struct {
	ImageConfig
	store   ImageStore
	users   imageUserReader
	fetcher fetcher
	puller  puller
	space   *space
	log     *slog.Logger
	now     func() time.Time

	uploads sync.Map // image name → *atomic.Int64, the bytes checked; only while the image is being uploaded or fetched
	// publishing is held while a file of an image is renamed into Dir or removed.
	publishing sync.Mutex
}

func (s *images) routes() []httpapi.Route {
	const one = "/v1/images/:name"

	return []httpapi.Route{
		{Method: "GET", Path: "/v1/images", Needs: inventory.RoleRead, Handler: httpapi.Get(s.list)},
		{Method: "POST", Path: "/v1/images", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusCreated, httpapi.JSON, s.fetch)},
		{Method: "GET", Path: "/v1/image-catalog", Needs: inventory.RoleRead, Handler: httpapi.Get(s.catalog)},
		{Method: "GET", Path: one, Needs: inventory.RoleRead, Handler: httpapi.Get(s.get)},
		{Method: "PUT", Path: one, Needs: inventory.RoleOperate, Handler: s.upload},
		{Method: "DELETE", Path: one, Needs: inventory.RoleOperate, Handler: httpapi.Delete(s.delete)},
		{Method: "HEAD", Path: one + "/upload", Needs: inventory.RoleRead, Handler: s.getUpload},
		{Method: "POST", Path: one + "/verify", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusOK, httpapi.NoBody, s.verify)},
	}
}

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// parseSum parses a SHA-256 with or without the prefix "sha256:". For "", it returns "", which means that there is no
// digest. Errors name the field.
func parseSum(field, v string) (string, error) {
	v = strings.ToLower(strings.TrimPrefix(v, "sha256:"))
	if v != "" && !digestForm.MatchString(v) {
		return "", inventory.Invalid(field, "64 hex digits", "invalid SHA-256 %q", v)
	}
	return v, nil
}

func (s *images) find(ctx context.Context, name string) (inventory.Image, error) {
	i, err := s.store.Image(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		return i, hint(fmt.Errorf("image %q: %w", name, inventory.ErrNotFound), "ingot image list")
	}
	return i, err
}

// check adds a problem if there is no image with the given name.
func (s *images) check(ctx context.Context, problems *inventory.Problems, field, name string) error {
	_, err := s.store.Image(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		problems.Add(field, "ingot image list", "there is no image %q", name)
		return nil
	}
	return err
}

func (s *images) url(i inventory.Image) string {
	if s.URL != nil {
		return s.URL(i)
	}
	return i.URL
}

type listImages struct {
	httpapi.Page
	Unused string `query:"unused"`
}

func (s *images) list(ctx context.Context, q listImages) (httpapi.List[inventory.Image], error) {
	all, err := s.store.Images(ctx)
	if err != nil {
		return httpapi.List[inventory.Image]{}, err
	}
	if q.Unused == "true" {
		users, err := s.users.read(ctx, false)
		if err != nil {
			return httpapi.List[inventory.Image]{}, err
		}
		all = slices.DeleteFunc(all, func(i inventory.Image) bool { return users.checkUnused(i) != nil })
	}

	return httpapi.PageByName(all, q.Page, func(i inventory.Image) string { return i.Name })
}

func (s *images) get(ctx context.Context, q byName) (inventory.Image, error) {
	return s.find(ctx, q.Name)
}

var errNoDir = fmt.Errorf("this server has no image directory: %w", inventory.ErrUnavailable)

// openAsIs opens the file of an image. Unlike Files.Open, it also opens a file of a share if the file has changed since
// it became the image.
func (s *images) openAsIs(i inventory.Image) (*os.File, error) {
	if i.InPlace == nil {
		return s.Files.Open(i)
	}
	f, err := s.Files.OpenShared(i.InPlace.Path)
	return f.File, err
}

// openDir opens the image directory as an os.Root, so that neither ".." nor a symbolic link leads out of the directory.
func (s *images) openDir() (*os.Root, error) {
	if s.Dir == "" {
		return nil, errNoDir
	}
	r, err := os.OpenRoot(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("opening the image directory: %w", err)
	}
	return r, nil
}

type deleteImage struct {
	byName
	Force string `query:"force"`
}

func (s *images) delete(ctx context.Context, q deleteImage) error {
	i, err := s.find(ctx, q.Name)
	if err != nil {
		return err
	}
	users, err := s.users.read(ctx, q.Force == "true")
	if err == nil {
		err = users.checkUnused(i)
	}
	if err == nil {
		err = s.store.DeleteImage(ctx, i.Name, httpapi.Actor(ctx))
	}
	if err != nil {
		return err
	}
	s.removeUnusedFiles(ctx)

	return nil
}

// digestOf reads the whole file f. It returns the file's SHA-256 in hex and the file's size in bytes.
func digestOf(ctx context.Context, f *os.File) (sum string, size int64, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", 0, err
	}
	h := sha256.New()
	for {
		n, err := io.CopyN(h, f, checkEvery)
		size += n
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), size, nil
		}
		if err != nil {
			return "", 0, err
		}
		if ctx.Err() != nil {
			return "", 0, ctx.Err()
		}
	}
}

// imageCheck is the result of verify. OK means that the file of the image has not changed.
type imageCheck struct {
	OK      bool   `json:"ok"`
	SHA256  string `json:"sha256,omitempty"`
	Size    int64  `json:"size"`
	Message string `json:"message,omitempty"`
}

// verify reads the file of an image and compares its SHA-256 with the stored digest. If they differ or the file cannot
// be read, the result says so; this is not an error.
func (s *images) verify(ctx context.Context, q byName) (out imageCheck, err error) {
	i, err := s.find(ctx, q.Name)
	if err != nil {
		return out, err
	}
	if i.File == "" {
		return out, inventory.Invalid("name", "", "image %q is not stored on this server; agents fetch it from %s", i.Name, i.URL)
	}
	if s.Dir == "" {
		return out, errNoDir
	}

	f, err := s.openAsIs(i)
	if err == nil {
		defer f.Close()
		out.SHA256, out.Size, err = digestOf(ctx, f)
	}
	switch {
	case err != nil:
		out.Message = fmt.Sprintf("reading the file of image %q: %v", i.Name, err)
	case out.SHA256 != i.SHA256:
		out.Message = fmt.Sprintf("the file's SHA-256 is %s, but was %s when the image was stored", out.SHA256, i.SHA256)
	default:
		out.OK = true
	}

	return out, nil
}
