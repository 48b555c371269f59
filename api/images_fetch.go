package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

type fetchImage struct {
	Name   string `json:"name"`
	URL    string `json:"url"`
	SHA256 string `json:"sha256"`
	Use    string `json:"use"`
	AsIs   bool   `json:"asIs"`
	// Replace means that the request may replace the file of an image that machines, templates or lab files name.
	Replace bool `json:"replace"`
	// Path is an absolute path in a directory of images.shares. The file is served from there and not copied. A request
	// gives either Path or URL.
	Path string `json:"path"`
	// Catalog takes all else from the catalog's image of that name.
	Catalog bool `json:"catalog"`
	// once leaves an image of that name as it is.
	once bool
	proof
}

// newUpload returns the upload for the request, without its URL, and the problems of the request.
func (q fetchImage) newUpload() (upload, inventory.Problems) {
	problems := append(inventory.ValidateImageName(q.Name), inventory.ValidateImageUse(q.Use)...)
	sum, err := parseSum("sha256", q.SHA256)
	if err != nil {
		problems.Add("sha256", "64 hex digits", "invalid SHA-256 %q", q.SHA256)
	}
	problems = append(problems, q.check()...)

	return upload{image: inventory.Image{Name: q.Name, SHA256: sum, Use: q.Use}, asIs: q.AsIs, proof: q.proof}, problems
}

// checkFetch validates a request that gives a URL, and returns the upload for the request.
func (s *images) checkFetch(q fetchImage) (upload, error) {
	up, problems := q.newUpload()
	if strings.HasPrefix(q.URL, action.ContainerScheme) {
		return q.checkPull(up, problems)
	}
	u, err := url.Parse(q.URL)
	if err != nil {
		err = errors.New("it is not a URL") // the error of Parse repeats the URL, which may hold a credential
	} else {
		err = s.fetcher.checkURL(u)
	}
	if err != nil {
		problems.Add("url", "use https, or http from a host in images.fetch_hosts", "%v", err)
		return upload{}, problems
	}

	up.image.URL = action.PublicURL(u.String())
	return up, problems.Err()
}

// fetch creates an image, which may be one of the catalog. It either fetches a file from a URL to this server, or registers
// a file of a share.
func (s *images) fetch(ctx context.Context, q fetchImage) (inventory.Image, error) {
	if q.Catalog {
		var err error
		if q, err = q.fromCatalog(ctx, s.fetcher, s.Catalog); err != nil {
			return inventory.Image{}, err
		}
	}
	if q.Path != "" {
		return s.register(ctx, q)
	}
	up, err := s.checkFetch(q)
	if err != nil {
		return inventory.Image{}, err
	}
	stored, found, err := up.findStored(ctx, s)
	if err != nil || found {
		return stored, err
	}
	// Under the name of its address, a container image is only brought up to date: runs ask the registry for a tag's digest.
	current := up.reference.Repository != "" && q.Name == inventory.FetchedName(up.image.URL)
	if err := s.users.refuseReplacing(ctx, q.Name, up.image.SHA256, q.Replace || current); err != nil {
		return inventory.Image{}, err
	}
	dir, err := s.openDir()
	if err != nil {
		return inventory.Image{}, err
	}
	defer dir.Close()
	checked, unlock, err := s.lockUpload(q.Name)
	if err != nil {
		return inventory.Image{}, err
	}
	defer unlock()
	if old, err := s.find(ctx, q.Name); q.once && !errors.Is(err, inventory.ErrNotFound) {
		return old, err
	}

	if err := up.download(ctx, s, dir, q.URL); err != nil {
		return inventory.Image{}, err
	}
	return s.keep(ctx, dir, up, checked)
}

// download receives the file or the container image from a URL.
func (u *upload) download(ctx context.Context, s *images, dir *os.Root, from string) error {
	content, size, err := u.open(ctx, s, dir, from)
	if err != nil {
		return interrupted{fmt.Errorf("fetching %q: %w", u.image.URL, err)}
	}
	err = u.discardOthers(dir)
	if content != nil {
		defer content.Close()
		if err == nil {
			_, err = s.receive(dir, *u, 0, size, content)
		}
	}
	if err != nil {
		err = errors.Join(err, u.discard(dir))
	}
	return err
}

// open starts to fetch what from names. See openPull for what it returns.
func (u *upload) open(ctx context.Context, s *images, dir *os.Root, from string) (content io.ReadCloser, size int64, err error) {
	if u.reference.Repository != "" {
		return u.openPull(ctx, s, dir)
	}
	resp, err := s.fetcher.request(ctx, from, "")
	if err != nil {
		return nil, 0, err
	}
	return resp.Body, resp.ContentLength, nil
}

// findStored returns the stored image, and true, if it is the one that u would store: from a file with the digest that u declares, in the
// same form, and intact.
func (u upload) findStored(ctx context.Context, s *images) (i inventory.Image, found bool, err error) {
	if u.image.SHA256 == "" || !u.proof.isEmpty() {
		return i, false, nil
	}
	i, err = s.store.Image(ctx, u.image.Name)
	if errors.Is(err, inventory.ErrNotFound) {
		return i, false, nil
	}
	kept := u.asIs || u.image.Use == inventory.UseInstaller
	if err != nil || i.File == "" || i.FirstSeen || i.Given().SHA256 != u.image.SHA256 || i.Use != u.image.Use || kept != (i.Source == nil) {
		return i, false, err
	}
	check, err := s.verify(ctx, byName{Name: i.Name})
	return i, check.OK, err
}

// probeTime limits probe.
const probeTime = 30 * time.Second

// probe returns nil if this server may fetch an image from target, can reach target and has enough space for the image.
// It does not count the space that other images will need. It sends a GET for the first byte only. It does not use
// HEAD, because some servers do not support HEAD, and a signed URL may be valid for GET only.
func (s *images) probe(ctx context.Context, target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return fmt.Errorf("reading the URL: %w", inventory.ErrInvalid)
	}
	if err := s.fetcher.checkURL(u); err != nil {
		return fmt.Errorf("requesting %q: %w: %w", action.PublicURL(u.String()), err, inventory.ErrInvalid)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	resp, err := s.fetcher.request(ctx, target, "bytes=0-0")
	if err != nil {
		return fmt.Errorf("requesting %q: %w: %w", action.PublicURL(u.String()), err, inventory.ErrUnreachable)
	}
	size := resp.ContentLength
	if resp.StatusCode == http.StatusPartialContent {
		size = -1
		if m := contentRange.FindStringSubmatch(resp.Header.Get("Content-Range")); m != nil && m[3] != "*" {
			size, _ = strconv.ParseInt(m[3], 10, 64) // never fails, because the pattern matches at most 18 digits
		}
	}
	_ = resp.Body.Close() // the rest is not needed
	spare, err := s.space.spare()
	if err == nil && size > spare {
		err = fmt.Errorf("the %d MiB of %q do not fit: %d MiB are left for images: %w", size>>20, action.PublicURL(u.String()),
			spare>>20, httpapi.ErrNoSpace)
	}
	return err
}
