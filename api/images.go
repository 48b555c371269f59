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
	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/inventory"
)

// ImageStore holds images, and which of their files are in use.
type ImageStore interface {
	Image(ctx context.Context, name string) (inventory.Image, error)
	Images(ctx context.Context) ([]inventory.Image, error)
	ExpectImageFile(ctx context.Context, digest string) error
	PutImage(ctx context.Context, i inventory.Image, by string) error
	DeleteImage(ctx context.Context, name, by string) error
	PlannedImages(ctx context.Context) ([]inventory.PlannedImage, error)
	UnusedImageFiles(ctx context.Context, remove func(digest string) error) error
}

// ImageConfig says where images are stored and from where they may be fetched.
type ImageConfig struct {
	// Dir holds uploaded and fetched images; "" refuses both.
	Dir string
	// Files opens the files of images, those of Dir and those that are served in place.
	Files *imagefile.Files
	// FetchHosts are hosts from which images may be fetched over plain http or from private
	// address ranges.
	FetchHosts []string
	// Catalog is the file that lists what publishers offer; "" is the list of this version.
	Catalog string
	// Resolver looks up the hosts from which images are fetched; nil = the system's.
	Resolver *net.Resolver
	// URL returns where an agent fetches an image; nil means its source. It is for display:
	// a run resolves its images itself.
	URL func(i inventory.Image) string
	// BaseURL returns the base URL of images for agents, without a trailing slash; nil while no interface is configured.
	BaseURL func() string
	// RequireDigest refuses to plan images without a declared digest.
	RequireDigest bool
	// UploadHosts are the hosts to which an action may send the content of a disk.
	UploadHosts []string
}

type images struct {
	ImageConfig
	store   ImageStore
	users   imageUserReader
	fetcher fetcher
	space   *space
	log     *slog.Logger
	now     func() time.Time

	uploads sync.Map // image name → *atomic.Int64: how much was checked, while it is written
	// publishing is held while the file of an image is put in place or removed.
	publishing sync.Mutex
}

func (s *images) routes() []httpapi.Route {
	const one = "/v1/images/:name"

	return []httpapi.Route{
		{Method: "GET", Path: "/v1/images", Handler: httpapi.Get(s.list)},
		{Method: "POST", Path: "/v1/images", Handler: httpapi.Handle(http.StatusCreated, httpapi.JSON, s.fetch)},
		{Method: "GET", Path: "/v1/image-catalog", Handler: httpapi.Get(s.catalog)},
		{Method: "GET", Path: one, Handler: httpapi.Get(s.get)},
		{Method: "PUT", Path: one, Handler: s.upload},
		{Method: "DELETE", Path: one, Handler: httpapi.Delete(s.delete)},
		{Method: "HEAD", Path: one + "/upload", Handler: s.getUpload},
		{Method: "POST", Path: one + "/verify", Handler: httpapi.Handle(http.StatusOK, httpapi.NoBody, s.verify)},
	}
}

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// parseSum parses a declared SHA-256; "" means none.
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

// catalog reads the file at each request, so that a change needs no restart.
func (s *images) catalog(context.Context, httpapi.Empty) (catalog.Catalog, error) {
	return catalog.Read(s.Catalog)
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

// openAsIs opens the file of an image, also one in place that has changed.
func (s *images) openAsIs(i inventory.Image) (*os.File, error) {
	if i.InPlace == nil {
		return s.Files.Open(i)
	}
	f, err := s.Files.OpenShared(i.InPlace.Path)
	return f.File, err
}

// openDir opens the image directory so that neither ".." nor a link leaves it.
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

// digestOf reads f from its start and returns its SHA-256.
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

// imageCheck says whether the file of an image is unchanged.
type imageCheck struct {
	OK      bool   `json:"ok"`
	SHA256  string `json:"sha256,omitempty"`
	Size    int64  `json:"size"`
	Message string `json:"message,omitempty"`
}

// verify reads the file again and compares its digest.
func (s *images) verify(ctx context.Context, q byName) (out imageCheck, err error) {
	i, err := s.find(ctx, q.Name)
	if err != nil {
		return out, err
	}
	if i.File == "" {
		return out, inventory.Invalid("name", "", "image %q is not on this server, agents fetch it from %s", i.Name, i.URL)
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
		out.Message = fmt.Sprintf("the file's SHA-256 is %s and was %s", out.SHA256, i.SHA256)
	default:
		out.OK = true
	}

	return out, nil
}
