package actions

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/opencontainers/go-digest"

	"github.com/ingotmetal/ingot/action"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// ociRegistry is a registry with one repository, lab/disk, whose blobs lie on another server. It wants
// a token (distribution's token authentication), which the user "puller" gets.
type ociRegistry struct {
	*httptest.Server
	blobs     *httptest.Server
	mirror    *disktest.Mirror
	manifests map[string][]byte // by tag and digest
	kinds     map[string]string

	mu   sync.Mutex
	fail int // manifests that are answered with 503 first
}

const registryPassword = "geheim-registry"

func newOCIRegistry(t *testing.T, layer []byte) *ociRegistry {
	t.Helper()
	r := &ociRegistry{mirror: &disktest.Mirror{Data: layer, Etag: `"1"`}, manifests: map[string][]byte{}, kinds: map[string]string{}}
	r.blobs = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "" {
			t.Error("the server of the blobs is sent the registry's token")
		}
		r.mirror.ServeHTTP(w, q)
	}))
	t.Cleanup(r.blobs.Close)
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// put adds a manifest, and returns its digest.
func (r *ociRegistry) put(t *testing.T, tag string, m any) digest.Digest {
	t.Helper()
	b, err := json.Marshal(m)
	require.NoError(t, err)
	kind := v1.MediaTypeImageManifest
	if _, index := m.(v1.Index); index {
		kind = v1.MediaTypeImageIndex
	}
	for _, name := range []string{tag, digest.FromBytes(b).String()} {
		r.manifests[name], r.kinds[name] = b, kind
	}
	return digest.FromBytes(b)
}

func (r *ociRegistry) putLayers(t *testing.T, tag string, layers ...[]byte) digest.Digest {
	t.Helper()
	m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, Config: v1.DescriptorEmptyJSON}
	m.SchemaVersion = 2
	for _, l := range layers {
		m.Layers = append(m.Layers, v1.Descriptor{
			MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: digest.FromBytes(l), Size: int64(len(l)),
		})
	}
	return r.put(t, tag, m)
}

func (r *ociRegistry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == "/token" {
		if user, password, _ := q.BasicAuth(); user != "puller" || password != registryPassword {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"token":"a-token"}`)
		return
	}
	if q.Header.Get("Authorization") != "Bearer a-token" {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="lab",scope="repository:lab/disk:pull"`, r.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}

	if name, ok := strings.CutPrefix(q.URL.Path, "/v2/lab/disk/manifests/"); ok {
		r.mu.Lock()
		r.fail--
		broken := r.fail >= 0
		r.mu.Unlock()
		b, known := r.manifests[name]
		switch {
		case broken:
			w.WriteHeader(http.StatusServiceUnavailable)
		case !known:
			w.WriteHeader(http.StatusNotFound)
		default:
			w.Header().Set("Content-Type", r.kinds[name])
			_, _ = w.Write(b) // the agent may hang up
		}
		return
	}
	blobs := strings.Replace(r.blobs.URL, "127.0.0.1", "localhost", 1) // another host
	http.Redirect(w, q, blobs+q.URL.Path, http.StatusTemporaryRedirect)
}

// install runs oci2disk with a reference below this registry.
func (r *ociRegistry) install(t *testing.T, reference string, env map[string]string) install {
	t.Helper()
	s := newWorker(t)
	files, disk, file := disktest.OldDisk(t, disktest.ImageDiskSize)
	w := &disktest.WatchedDisks{Inner: files}
	cfg := s.config()
	cfg.Disks = w
	s.start(cfg)
	full := map[string]string{
		"IMG_URL": r.URL + "/lab/disk" + reference, "DEST_DISK": "/dev/alias",
		action.RegistryUserVariable: "puller", action.RegistryPasswordVariable: registryPassword,
	}
	for k, v := range env {
		full[k] = v
	}
	res := s.result(s.give(0, action.OCI2Disk, disk, full))
	require.NotContains(t, fmt.Sprint(res), registryPassword, "S22: nothing that the agent says has the registry's password")
	return install{res, disktest.MapFile(t, file), r.mirror, w}
}

// oci2disk writes to a partition as image2disk does.
func TestOCI2DiskToPartition(t *testing.T) {
	t.Parallel()
	layer := disktest.PackedImage(t, "gz")
	r := newOCIRegistry(t, layer)
	pinned := r.putLayers(t, "v1", layer)
	w, _, bound, file := partedDisk(t)
	disk := disktest.MapFile(t, file)
	before := outside(disk, secondPart)
	res := w.result(w.give(0, action.OCI2Disk, bound, map[string]string{
		"IMG_URL": r.URL + "/lab/disk@" + string(pinned), "PARTITION": "2",
		action.RegistryUserVariable: "puller", action.RegistryPasswordVariable: registryPassword,
	}))
	disktest.RequireImage(t, res, disk[secondPart.Start:secondPart.Start+secondPart.Size], disktest.TestImage(), layer)
	require.True(t, bytes.Equal(before, outside(disk, secondPart)), "something outside of the partition was written")
}

// TestS22OCI2Disk: an image in a registry is written like any other, with a token for the registry alone. S18: only the layer of the
// declared digest is.
func TestS22OCI2Disk(t *testing.T) {
	layer := disktest.PackedImage(t, "gz")
	r := newOCIRegistry(t, layer)
	pinned := r.putLayers(t, "v1", layer)
	r.putLayers(t, "container", layer, layer)
	r.putLayers(t, "other", []byte("another image"))
	r.put(t, "index", v1.Index{Manifests: []v1.Descriptor{
		{
			MediaType: v1.MediaTypeImageManifest,
			Digest:    "sha256:" + digest.Digest(strings.Repeat("0", 64)),
			Platform:  &v1.Platform{OS: "linux", Architecture: "arm64"},
		},
		{
			MediaType: v1.MediaTypeImageManifest,
			Digest:    pinned,
			Size:      int64(len(r.manifests["v1"])),
			Platform:  &v1.Platform{OS: "linux", Architecture: "amd64"},
		},
	}})
	r.manifests["sha256:"+strings.Repeat("1", 64)], r.kinds["sha256:"+strings.Repeat("1", 64)] = r.manifests["v1"], v1.MediaTypeImageManifest
	declared := map[string]string{"IMG_SHA256": disktest.SHA256(layer)}

	for name, c := range map[string]struct {
		reference string
		env       map[string]string
	}{
		"by digest":          {"@" + pinned.String(), nil},
		"by tag, and digest": {":v1@" + pinned.String(), nil},
		"a declared digest":  {":v1", declared},
		"of an index":        {":index", declared},
	} {
		t.Run(name, func(t *testing.T) { r.install(t, c.reference, c.env).mustHold(t, disktest.TestImage()) })
	}
	t.Run("after errors, and cut", func(t *testing.T) {
		r := newOCIRegistry(t, layer)
		r.fail = 2
		pinned := r.putLayers(t, "v1", layer)
		r.mirror.Serve = func(w http.ResponseWriter, _ *http.Request, n int) bool {
			if n == 1 {
				r.mirror.CutAfter(w, 0, len(layer)/2)
			}
			return false
		}
		r.install(t, "@"+pinned.String(), nil).mustHold(t, disktest.TestImage())
		require.Len(t, r.mirror.Requests, 2)
		require.NotEmpty(t, r.mirror.Requests[1], "the rest only")
	})

	for name, c := range map[string]struct {
		reference, says string
		env             map[string]string
	}{
		"a tag alone":          {":v1", "a tag can be moved", nil},
		"another digest":       {":other", "but the plan has " + disktest.SHA256(layer), declared},
		"a container":          {":container", "the manifest has 2 layers", declared},
		"no such tag":          {":v2", "not found", declared},
		"another manifest":     {"@sha256:" + strings.Repeat("1", 64), "digest", nil},
		"a wrong password":     {"@" + pinned.String(), "401", map[string]string{action.RegistryPasswordVariable: "wrong"}},
		"without verification": {"@" + pinned.String(), "certificate is always verified", map[string]string{"SKIP_VERIFY": "true"}},
		"no reference":         {"?password=" + registryPassword, "must be REGISTRY/REPOSITORY", nil},
	} {
		t.Run(name, func(t *testing.T) { r.install(t, c.reference, c.env).mustNotTouch(t, c.says) })
	}
	t.Run("another layer", func(t *testing.T) {
		r := newOCIRegistry(t, disktest.PackedImage(t, "zst"))
		pinned := r.putLayers(t, "v1", layer)
		r.install(t, "@"+pinned.String(), nil).mustFail(t, "verifying")
	})
}
