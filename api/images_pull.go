package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/images/container"
	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/inventory"
)

// A Registry is how this server reaches a registry of container images.
type Registry struct {
	Host         string // and port, as in references to images
	Mirror       string // host, port and path of the registry that is used in place of Host; then the other fields are empty
	Username     string
	PasswordFile string // read for each pull
	PlainHTTP    bool
	CAFile       string
}

// checkPull validates a request whose URL names a container image.
func (q fetchImage) checkPull(up upload, problems inventory.Problems) (upload, error) {
	ref, err := action.ParseContainer(strings.TrimPrefix(q.URL, action.ContainerScheme))
	if err != nil { // the error repeats the URL, which may hold a credential
		problems.Add("url", "write oci://REGISTRY/REPOSITORY:TAG", "it is not a reference to a container image")
	}
	if q.SHA256 != "" || !q.isEmpty() {
		problems.Add(
			"sha256",
			"write it into the URL: oci://REGISTRY/REPOSITORY@sha256:DIGEST",
			"a container image has the digest of its manifest",
		)
	}
	if q.Use != "" && q.Use != inventory.UseContainer {
		problems.Add("use", "leave it out", "a container image cannot have the use %q", q.Use)
	}
	up.reference, up.image.URL = ref, action.ContainerScheme+ref.String()
	return up, problems.Err()
}

// A puller reaches registries of container images.
type puller struct {
	registries []Registry
	fetcher    fetcher
}

// repository returns how to reach a container image.
func (p puller) repository(ref action.ContainerReference) (container.Repository, error) {
	r := container.Repository{Registry: strings.ToLower(ref.Registry), Repository: ref.Repository, Reference: cmp.Or(ref.Digest, ref.Tag)}
	entry := p.registry(r.Registry)
	if entry.Mirror != "" {
		host, prefix, _ := strings.Cut(entry.Mirror, "/")
		r.Registry, r.Repository = host, path.Join(prefix, r.Repository)
		entry = p.registry(host)
	}

	r.PlainHTTP, r.Username = entry.PlainHTTP, entry.Username
	if entry.PasswordFile != "" {
		password, err := durablefile.ReadPrivate(entry.PasswordFile)
		if err != nil {
			return r, fmt.Errorf("reading the password for registry %s: %w", entry.Host, err)
		}
		r.Password = string(bytes.TrimSpace(password))
	}
	var roots *x509.CertPool
	if entry.CAFile != "" {
		pem, err := os.ReadFile(entry.CAFile)
		if err == nil {
			roots, err = x509.SystemCertPool() // the storage to which the registry redirects may have a public certificate
		}
		if err == nil && !roots.AppendCertsFromPEM(pem) {
			err = errors.New("it contains no certificate")
		}
		if err != nil {
			return r, fmt.Errorf("reading %s of registry %s: %w", entry.CAFile, entry.Host, err)
		}
	}

	host := hostname(r.Host())
	from := p.fetcher
	if entry.Host != "" {
		from.private = append(slices.Clone(from.private), host)
	}
	if entry.PlainHTTP {
		from.hosts = append(slices.Clone(from.hosts), host)
	}
	r.Client = from.client(roots)
	r.Client.Transport = registryTransport{r.Client.Transport, from, host}
	return r, nil
}

// registry returns the configuration of the registry host; it is zero if there is none.
func (p puller) registry(host string) Registry {
	i := slices.IndexFunc(p.registries, func(r Registry) bool { return r.Host == host })
	if i < 0 {
		return Registry{}
	}
	return p.registries[i]
}

// A registryTransport sends requests to a registry and, when the registry says so, to its storage and its server for tokens.
type registryTransport struct {
	http.RoundTripper
	fetcher fetcher
	host    string // of the registry, without a port
}

// RoundTrip implements http.RoundTripper. It refuses what fetcher.checkURL refuses, and to send credentials to another site. A redirect to
// another site is followed without them.
func (t registryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.fetcher.checkURL(r.URL); err != nil {
		return nil, refusal{err}
	}
	to := hostname(r.URL.Host)
	switch foreign := r.Header.Get("Authorization") != "" && !t.mayHaveCredentials(to); {
	case foreign && r.Response != nil: // a redirect to a subdomain, such as the storage of quay.io: net/http keeps the header
		r = r.Clone(r.Context())
		r.Header.Del("Authorization")
	case foreign:
		return nil, refusal{fmt.Errorf("the registry asks for a token from %q, which is another site: the credentials were not sent there", to)}
	}
	return t.RoundTripper.RoundTrip(r)
}

// mayHaveCredentials reports whether host is the registry, or a domain above it.
func (t registryTransport) mayHaveCredentials(host string) bool {
	return host == t.host || strings.Contains(host, ".") && strings.HasSuffix(t.host, "."+host) ||
		t.host == "registry-1.docker.io" && host == "auth.docker.io"
}

// resolveTime limits ResolveContainer.
const resolveTime = 10 * time.Second

// resolve returns the digest of the manifest for linux/amd64.
func (p puller) resolve(ctx context.Context, ref action.ContainerReference) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	r, err := p.repository(ref)
	if err != nil {
		return "", err
	}
	digest, err := r.Resolve(ctx)
	if err != nil {
		return "", fmt.Errorf("finding the container image %s: %w", ref, judgePull(err))
	}
	return digest, nil
}

// judgePull makes a refusal, which is an inventory.ErrInvalid, of an error that another try would get, too.
func judgePull(err error) error {
	if wrong, ok := errors.AsType[*diskimage.Refusal](err); ok {
		return refusal{inventory.Invalid("url", wrong.Remedy, "%s", wrong.What)}
	}
	if wrong, ok := errors.AsType[refusal](err); ok {
		return refusal{inventory.Invalid("url", "list the host in images.registries or images.fetch_hosts", "%v", wrong)}
	}
	return err
}

// openPull finds a container image in its registry, and starts to read its archive. If this server has the image already,
// the archive is nil, and the upload has its file.
func (u *upload) openPull(ctx context.Context, s *images, dir *os.Root) (archive io.ReadCloser, size int64, err error) {
	r, err := s.puller.repository(u.reference)
	if err != nil {
		return nil, 0, err
	}
	image, err := r.Open(ctx)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil, 0, refusal{inventory.Invalid("url", "correct the reference", "the registry has no such image")}
	}
	if err != nil {
		return nil, 0, judgePull(err)
	}
	from := u.reference
	if from.Digest == image.Digest {
		from.Digest = ""
	}
	u.image.Container = &inventory.ContainerImage{Reference: from.String(), Digest: image.Digest, Architecture: container.Architecture}

	stored, err := findPulled(ctx, s, image.Digest)
	if err != nil {
		return nil, 0, err
	}
	if stored != "" {
		if err := u.discard(dir); err != nil {
			return nil, 0, err
		}
		return nil, 0, dir.Link(stored, u.part())
	}

	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	p := &pulling{reader, cancel, make(chan struct{})}
	go func() {
		defer close(p.done)
		writer.CloseWithError(judgePull(image.Copy(ctx, writer)))
	}()
	return p, image.Size(), nil
}

// findPulled returns the file of an image with that digest of its manifest, or "" if this server has no intact one.
func findPulled(ctx context.Context, s *images, digest string) (file string, err error) {
	all, err := s.store.Images(ctx)
	if err != nil {
		return "", err
	}
	for _, i := range all {
		if i.Container == nil || i.Container.Digest != digest {
			continue
		}
		check, err := s.verify(ctx, byName{Name: i.Name})
		if err != nil || check.OK {
			return i.File, err
		}
	}
	return "", nil
}

// pulling is an archive that is being written by a goroutine.
type pulling struct {
	*io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

// Close ends the pull and waits for its goroutine.
func (p *pulling) Close() error {
	p.cancel()
	err := p.PipeReader.Close()
	<-p.done
	return err
}
