// Package registry is a registry of container images (OCI distribution specification 1.1) for tests. It serves what a test pushes, and what
// no honest registry would serve.
package registry

import (
	"bytes"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Registry serves container images. It is an http.Handler: serve it with httptest, or on a listener of the lab. All methods may be called
// at any time.
type Registry struct {
	t testing.TB

	mu        sync.Mutex
	content   map[digest.Digest][]byte // blobs and manifests of all repositories
	mediaType map[digest.Digest]string // of manifests
	tags      map[string]digest.Digest // by REPOSITORY:TAG
	requests  []string                 // METHOD PATH of each request
	intercept func(http.ResponseWriter, *http.Request) (answered bool)
}

// New returns an empty registry.
func New(t testing.TB) *Registry {
	return &Registry{
		t: t, content: map[digest.Digest][]byte{}, mediaType: map[digest.Digest]string{}, tags: map[string]digest.Digest{},
	}
}

// Push stores an image and returns the digest of its manifest. It moves the tag if the tag exists; tag may be "".
func (r *Registry) Push(repository, tag string, image Image) string {
	m, blobs := image.build(r.t)
	for _, b := range blobs {
		r.PushBlob(b)
	}
	return r.PushManifest(repository, tag, oci.MediaTypeImageManifest, encode(r.t, m))
}

// PushIndex stores an index of manifests, which were pushed before, and returns its digest.
func (r *Registry) PushIndex(repository, tag string, manifests ...oci.Descriptor) string {
	index := oci.Index{MediaType: oci.MediaTypeImageIndex, Manifests: manifests}
	index.SchemaVersion = 2
	return r.PushManifest(repository, tag, oci.MediaTypeImageIndex, encode(r.t, index))
}

// PushManifest stores a manifest or an index as it is, and returns its digest.
func (r *Registry) PushManifest(repository, tag, mediaType string, manifest []byte) string {
	d := digest.FromBytes(manifest)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.content[d], r.mediaType[d] = manifest, mediaType
	if tag != "" {
		r.tags[repository+":"+tag] = d
	}
	return d.String()
}

// PushBlob stores a layer or a configuration and returns its digest.
func (r *Registry) PushBlob(blob []byte) digest.Digest {
	d := digest.FromBytes(blob)
	r.Replace(d, blob)
	return d
}

// Replace makes the registry answer with content when it is asked for d, whatever the digest of content is.
func (r *Registry) Replace(d digest.Digest, content []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.content[d] = content
}

// Describe returns the descriptor of a manifest that was pushed, for an index.
func (r *Registry) Describe(manifest, architecture string) oci.Descriptor {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := digest.Digest(manifest)
	return oci.Descriptor{
		MediaType: r.mediaType[d], Digest: d, Size: int64(len(r.content[d])),
		Platform: &oci.Platform{OS: "linux", Architecture: architecture},
	}
}

// Intercept calls f before each request is answered. If f returns true, it has answered the request. f may wait, but not longer than the
// request's context. nil ends the interception.
func (r *Registry) Intercept(f func(http.ResponseWriter, *http.Request) (answered bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.intercept = f
}

// Requests returns how many requests there were for paths that contain part, such as "/blobs/", the name of a repository or a digest.
func (r *Registry) Requests(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, q := range r.requests {
		if strings.Contains(q, part) {
			n++
		}
	}
	return n
}

var route = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs)/([^/]+)$`)

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	r.requests = append(r.requests, q.Method+" "+q.URL.Path)
	intercept := r.intercept
	r.mu.Unlock()
	if intercept != nil && intercept(w, q) {
		return
	}
	if q.URL.Path == "/v2/" {
		return
	}

	m := route.FindStringSubmatch(q.URL.Path)
	if m == nil {
		http.NotFound(w, q)
		return
	}
	r.mu.Lock()
	d, tagged := r.tags[m[1]+":"+m[3]]
	if !tagged {
		d = digest.Digest(m[3])
	}
	content, found := r.content[d]
	mediaType, manifest := r.mediaType[d]
	r.mu.Unlock()

	if !found || manifest != (m[2] == "manifests") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"not known"}]}`))
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if manifest {
		w.Header().Set("Content-Type", mediaType)
	}
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(content))
}
