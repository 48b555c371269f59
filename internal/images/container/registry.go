package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"

	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/inventory"
)

// A Repository is an image in a registry.
type Repository struct {
	Client     *http.Client
	Registry   string // host and port
	Repository string
	Reference  string // a tag or a digest
	PlainHTTP  bool
	// Username and Password are sent to the registry, and to the server at which the registry says to get tokens.
	Username, Password string
}

// Host returns the host and port that are contacted.
func (r Repository) Host() string { return registry.Reference{Registry: r.Registry}.Host() }

// Resolve asks the registry for the digest of the manifest for linux/amd64. The error wraps inventory.ErrNotFound if the registry does not
// have the image, and inventory.ErrUnreachable if a later call may succeed. If agents cannot run the image, it is a *diskimage.Refusal.
func (r Repository) Resolve(ctx context.Context) (string, error) {
	i, err := r.find(ctx, false)
	if err != nil {
		return "", err
	}
	return i.Digest, nil
}

// Open finds the image for linux/amd64 and reads its manifest and its configuration. Its errors, and the errors of reading the image, are
// those of Resolve.
func (r Repository) Open(ctx context.Context) (*Image, error) { return r.find(ctx, true) }

func (r Repository) find(ctx context.Context, whole bool) (*Image, error) {
	client := &auth.Client{Client: r.Client, Cache: auth.NewCache()}
	client.SetUserAgent("ingot")
	if r.Username != "" {
		client.Credential = auth.StaticCredential(r.Registry, auth.Credential{Username: r.Username, Password: r.Password})
	}
	from := fetcher{&remote.Repository{
		Client: client, PlainHTTP: r.PlainHTTP, Reference: registry.Reference{Registry: r.Registry, Repository: r.Repository},
	}}

	d, body, err := from.repository.Manifests().FetchReference(ctx, r.Reference)
	if errors.Is(err, errdef.ErrNotFound) {
		return nil, fmt.Errorf("the registry has no such image: %w", inventory.ErrNotFound)
	}
	if err != nil {
		return nil, describe(err)
	}
	defer body.Close()
	if err := checkDescriptor(d, maxDocument); err != nil {
		return nil, err
	}
	text, err := content.ReadAll(body, d)
	if err != nil {
		return nil, describe(judge(err, d))
	}
	d, text, err = findManifest(ctx, from, d, text, 0)
	if err != nil || !whole {
		return &Image{Digest: d.Digest.String()}, err
	}
	return open(ctx, from, d, text)
}

// A fetcher reads the content of a repository. It implements content.Fetcher.
type fetcher struct{ repository *remote.Repository }

// Fetch implements content.Fetcher.
func (f fetcher) Fetch(ctx context.Context, d oci.Descriptor) (io.ReadCloser, error) {
	r, err := f.repository.Fetch(ctx, d)
	if errors.Is(err, errdef.ErrNotFound) {
		return nil, refuse("push the image again", "the registry does not have %s, a part of the image", d.Digest)
	}
	return r, describe(err)
}

// describe returns err, the error of a request, with a class and without what must not be shown: a redirect to the storage
// of a registry has credentials in its URL.
func describe(err error) error {
	if _, refused := errors.AsType[*diskimage.Refusal](err); err == nil || refused {
		return err
	}
	const remedy = "check the reference, and the credentials in images.registries"
	if errors.Is(err, auth.ErrBasicCredentialNotFound) {
		return refuse(remedy, "the registry asks for credentials")
	}
	if answer, ok := errors.AsType[*errcode.ErrorResponse](err); ok {
		what := fmt.Sprintf("the answer is %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
		if len(answer.Errors) > 0 {
			what += fmt.Sprintf(" (%.200q)", answer.Errors.Error())
		}
		if code := answer.StatusCode; code/100 == 4 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests {
			return refuse(remedy, "%s", what)
		}
		return fmt.Errorf("%s: %w", what, inventory.ErrUnreachable)
	}
	return unreachable{err}
}

// unreachable is an inventory.ErrUnreachable whose text has no credentials.
type unreachable struct{ error }

var secretsOfURL = regexp.MustCompile(`(https?://)(?:[^\s"/]*@)?([^\s"?]*)(?:\?[^\s"]*)?`)

// Error implements error.
func (u unreachable) Error() string { return secretsOfURL.ReplaceAllString(u.error.Error(), "$1$2") }

// Unwrap makes u an inventory.ErrUnreachable.
func (u unreachable) Unwrap() []error { return []error{u.error, inventory.ErrUnreachable} }
