package api

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/registry"
)

var tools = registry.Image{Files: map[string]registry.File{"bin/tool": {Content: "#!", Mode: 0o755}}}

// registrySite is a site, and a registry without TLS at the address that it returns.
func registrySite(t *testing.T) (s *site, r *registry.Registry, host string) {
	t.Helper()
	r = registry.New(t)
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	return newSite(t, func(c *siteConfig) { c.Registries = []Registry{{Host: host, PlainHTTP: true}} }), r, host
}

func (s *site) pull(name, reference string) *httptest.ResponseRecorder {
	return s.do(http.MethodPost, "/v1/images", map[string]string{"name": name, "url": "oci://" + reference})
}

// TestPull: a pulled image is one file, whatever references it has. Its digest is declared if the reference has it.
func TestPull(t *testing.T) {
	s, r, host := registrySite(t)
	digest := r.Push("lab/tools", "1", tools)
	i := decode[inventory.Image](t, s.pull("tools", host+"/lab/tools:1"), http.StatusCreated)
	require.Equal(t, &inventory.ContainerImage{Reference: host + "/lab/tools:1", Digest: digest, Architecture: "amd64"}, i.Container)
	require.Equal(t, inventory.UseContainer, i.Use)
	require.EqualValues(t, 2*1<<10+4<<10, i.DiskSize)
	require.Nil(t, i.Source)
	require.True(t, i.FirstSeen)
	require.Equal(t, []string{i.SHA256}, s.files())
	require.True(t, decode[imageCheck](t, s.do(http.MethodPost, "/v1/images/tools/verify", nil), http.StatusOK).OK)

	layers := r.Requests("/blobs/")
	pinned := decode[inventory.Image](t, s.pull("pinned", host+"/lab/tools@"+digest), http.StatusCreated)
	require.Equal(t, i.SHA256, pinned.SHA256)
	require.False(t, pinned.FirstSeen)
	require.Equal(t, []string{i.SHA256}, s.files(), "no second file")
	require.Equal(t, layers+1, r.Requests("/blobs/"), "the configuration only")

	// A damaged file is replaced.
	require.NoError(t, os.WriteFile(filepath.Join(s.cfg.ImageDir, i.File), []byte("x"), 0o600))
	decode[inventory.Image](t, s.pull("again", host+"/lab/tools:1"), http.StatusCreated)
	require.True(t, decode[imageCheck](t, s.do(http.MethodPost, "/v1/images/tools/verify", nil), http.StatusOK).OK)

	// docker save, or a copy by skopeo, gives the same image.
	uploaded := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/file", string(tools.Layout(t))), http.StatusCreated)
	require.Equal(t, i.SHA256, uploaded.SHA256)
	require.Equal(t, &inventory.ContainerImage{Digest: digest, Architecture: "amd64"}, uploaded.Container)
	require.NotNil(t, uploaded.Source)
	require.Equal(t, []string{i.SHA256}, s.files())
}

// TestPulledImagesAreUsed: a template that names the image by its tag or digest uses it. A pull brings its copy of the tag up to date, but
// puts no other image into its place.
func TestPulledImagesAreUsed(t *testing.T) {
	s, r, host := registrySite(t)
	digest := r.Push("lab/tools", "1", tools)
	index := r.PushIndex("lab/tools", "", r.Describe(digest, "amd64"))
	name := inventory.FetchedName("oci://" + host + "/lab/tools:1")
	decode[inventory.Image](t, s.pull(name, host+"/lab/tools:1"), http.StatusCreated)
	other := decode[inventory.Image](t, s.pull("other", host+"/lab/tools@"+index), http.StatusCreated)
	require.Equal(
		t,
		&inventory.ContainerImage{Reference: host + "/lab/tools@" + index, Digest: digest, Architecture: "amd64"},
		other.Container,
	)
	require.False(t, other.FirstSeen)

	for _, x := range []string{host + "/lab/tools:1", host + "/lab/tools@" + index, host + "/lab/tools:2@" + digest, host + "/lab/tools:2"} {
		by := inventory.FetchesImage("version: \"0.1\"\nimage: \""+x+"\"\n", other)
		require.Equal(t, strings.Contains(x, "@"), by, x)
	}
	source := "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n  - {name: a, image: cexec, environment: {X: '" + host + "/lab/tools:1'}}\n"
	require.NoError(t, s.Store.Templates.PutTemplate(t.Context(), inventory.Template{Name: "t", Source: source}, "test"))
	require.Equal(t, http.StatusConflict, s.do(http.MethodDelete, "/v1/images/"+name, nil).Code)
	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/images/other", nil).Code)

	moved := r.Push("lab/tools", "1", registry.Image{Files: map[string]registry.File{"moved": {}}})
	r.Push("lab/tools", "2", tools)
	require.Equal(t, moved, decode[inventory.Image](t, s.pull(name, host+"/lab/tools:1"), http.StatusCreated).Container.Digest)
	require.Equal(t, http.StatusConflict, s.pull(name, host+"/lab/tools:2").Code)
}

func TestPullRefusesRequests(t *testing.T) {
	s, r, host := registrySite(t)
	r.Push("lab/tools", "1", tools)
	r.Push("lab/tools", "arm", registry.Image{Files: tools.Files, Architecture: "arm64"})
	for want, in := range map[string]map[string]any{
		"it is not a reference":                  {"url": "oci://user:s3cret@" + host + "/lab/tools"},
		"has the digest of its manifest":         {"url": "oci://" + host + "/lab/tools:1", "sha256": sumOf("")},
		`cannot have the use "installer"`:        {"url": "oci://" + host + "/lab/tools:1", "use": "installer"},
		"the registry has no such image":         {"url": "oci://" + host + "/lab/tools:2"},
		"the image is for linux/arm64":           {"url": "oci://" + host + "/lab/tools:arm"},
		"neither images.fetch_hosts nor images.": {"url": "oci://10.255.255.1/lab/tools:1"},
	} {
		in["name"] = "x"
		rec := s.do(http.MethodPost, "/v1/images", in)
		require.Equal(t, http.StatusBadRequest, rec.Code, want)
		require.Contains(t, rec.Body.String(), strings.ReplaceAll(want, `"`, `\"`))
		require.NotContains(t, rec.Body.String(), "s3cret")
		require.Empty(t, s.files(), want)
	}
	rec := s.do(http.MethodPut, "/v1/images/x?use=container", gz(t, []byte("x")))
	require.Contains(t, rec.Body.String(), "is not a tar archive of an OCI image layout")
}

// TestRunsPull is how a run uses a registry: it asks for the digest of the tag, and pulls that digest. A second call does nothing, and needs
// no registry.
func TestRunsPull(t *testing.T) {
	s, r, host := registrySite(t)
	first := r.Push("lab/tools", "1", tools)
	ref, err := action.ParseContainer(host + "/lab/tools:1")
	require.NoError(t, err)
	ref.Digest, err = s.api.ResolveContainer(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, first, ref.Digest)

	r.Push("lab/tools", "1", registry.Image{Files: map[string]registry.File{"moved": {}}})
	address := "oci://" + ref.String()
	name := inventory.FetchedName(address)
	fails := true
	r.Intercept(func(w http.ResponseWriter, q *http.Request) bool {
		if fails && strings.Contains(q.URL.Path, "/blobs/") {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return fails && strings.Contains(q.URL.Path, "/blobs/")
	})
	require.ErrorIs(t, s.api.FetchImage(t.Context(), name, address, "alice"), inventory.ErrUnreachable)
	require.Empty(t, s.files())
	fails = false
	require.NoError(t, s.api.FetchImage(t.Context(), name, address, "alice"))
	i, err := s.Store.Images.Image(t.Context(), name)
	require.NoError(t, err)
	require.Equal(t, first, i.Container.Digest)
	require.Equal(t, host+"/lab/tools:1", i.Container.Reference, "the tag that was asked for")
	require.True(t, i.IsFetchedFrom(address))
	require.False(t, i.FirstSeen)

	fails = true
	require.NoError(t, s.api.FetchImage(t.Context(), name, address, "alice"))
	unknown := ref
	unknown.Tag, unknown.Digest = "2", ""
	_, err = s.api.ResolveContainer(t.Context(), unknown)
	require.ErrorIs(t, err, inventory.ErrNotFound)
	r.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	_, err = s.api.ResolveContainer(t.Context(), ref)
	require.ErrorIs(t, err, inventory.ErrUnreachable)
	lie := ref
	lie.Digest = "sha256:" + sumOf("another")
	r.Intercept(nil)
	err = s.api.FetchImage(t.Context(), "lie", "oci://"+lie.String(), "alice")
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.NotErrorIs(t, err, inventory.ErrUnreachable, "another try gets the same answer")
}

// TestS18IndexesAreKept: the digest of an index that a run asks for is kept with the image, whose file this server may have already.
func TestS18IndexesAreKept(t *testing.T) {
	s, r, host := registrySite(t)
	digest := r.Push("lab/tools", "1", tools)
	arm := r.Push("lab/tools", "", registry.Image{Files: tools.Files, Architecture: "arm64"})
	index := r.PushIndex("lab/tools", "2", r.Describe(arm, "arm64"), r.Describe(digest, "amd64"))
	decode[inventory.Image](t, s.pull("by-tag", host+"/lab/tools:1"), http.StatusCreated)

	ref, err := action.ParseContainer(host + "/lab/tools:2@" + index)
	require.NoError(t, err)
	resolved, err := s.api.ResolveContainer(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, digest, resolved)

	address := action.ContainerScheme + ref.String()
	name := inventory.FetchedName(address)
	require.NoError(t, s.api.FetchImage(t.Context(), name, address, "alice"))
	i, err := s.Store.Images.Image(t.Context(), name)
	require.NoError(t, err)
	require.Equal(t, &inventory.ContainerImage{Reference: ref.String(), Digest: digest, Architecture: "amd64"}, i.Container)
	require.True(t, i.Container.HasDigest(index))
	require.True(t, i.Container.HasDigest(digest))
	require.False(t, i.Container.HasDigest(arm))
	require.False(t, i.Container.HasDigest(""))
	require.Len(t, s.files(), 1, "no second file")
	require.True(t, inventory.FetchesImage("image: "+host+"/lab/copy@"+index, i), "a template that names the index uses the image")
}

// TestS22RegistryCredentials: a token server gets them only if it belongs to the registry, and the storage to which the registry redirects
// gets neither them nor the token. Without credentials, any token server that S17 allows is asked.
func TestS22RegistryCredentials(t *testing.T) {
	const password = "s3cret-of-registry"
	var realm, storage string
	r := registry.New(t)
	r.Push("lab/library/tools", "latest", tools)
	r.Intercept(func(w http.ResponseWriter, q *http.Request) bool {
		switch user, given, _ := q.BasicAuth(); {
		case q.URL.Path == "/token" && user == "ingot" && given == password:
			_, _ = w.Write([]byte(`{"token": "t0ken"}`))
		case q.Header.Get("Authorization") != "Bearer t0ken":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="lab"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(q.URL.Path, "/blobs/"):
			http.Redirect(w, q, storage+q.URL.Path+"?signature=x", http.StatusTemporaryRedirect)
		default:
			return false
		}
		return true
	})
	server, plain := httptest.NewTLSServer(r), httptest.NewServer(r)
	t.Cleanup(server.Close)
	t.Cleanup(plain.Close)

	// Another host, which stores blobs.
	blobs := registry.New(t)
	blobs.Push("lab/library/tools", "latest", tools)
	var served, leaked atomic.Int64
	blobs.Intercept(func(w http.ResponseWriter, q *http.Request) bool {
		if served.Add(1); q.Header.Get("Authorization") != "" {
			leaked.Add(1)
		}
		return false
	})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.2:0")
	require.NoError(t, err)
	other := &httptest.Server{Listener: l, Config: &http.Server{Handler: blobs, ReadHeaderTimeout: time.Minute}}
	other.Start()
	t.Cleanup(other.Close)
	storage = other.URL

	ca, secret := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	require.NoError(t, os.WriteFile(secret, []byte(password+"\n"), 0o600))
	host, plainHost := strings.TrimPrefix(server.URL, "https://"), strings.TrimPrefix(plain.URL, "http://")
	s := newSite(t, func(c *siteConfig) {
		c.FetchHosts = []string{"127.0.0.2"}
		c.Registries = []Registry{
			{Host: "docker.io", Mirror: host + "/lab"},
			{Host: host, Username: "ingot", PasswordFile: secret, CAFile: ca},
			{Host: plainHost, PlainHTTP: true},
		}
	})

	realm = "https://localhost:1/token"
	rec := s.pull("tools", "tools")
	require.Equal(t, http.StatusBadRequest, rec.Code)
	require.Contains(t, rec.Body.String(), `asks for a token from \"localhost\", which is another site`)
	require.NotContains(t, rec.Body.String(), password)

	realm = server.URL + "/token"
	i := decode[inventory.Image](t, s.pull("tools", "tools"), http.StatusCreated)
	require.Equal(t, "docker.io/library/tools:latest", i.Container.Reference, "not the mirror")
	require.Positive(t, served.Load())
	require.Zero(t, leaked.Load())

	realm = "https://localhost:1/token"
	require.Contains(t, s.pull("anonymous", plainHost+"/lab/library/tools").Body.String(), "is a loopback", "it is dialled, and then refused")
}

// TestS17Registries: redirects and token servers of a registry are judged as those of a file are.
func TestS17Registries(t *testing.T) {
	s, r, host := registrySite(t)
	r.Push("lab/tools", "1", tools)
	for _, to := range []string{"https://127.0.0.2:1/x", "http://127.0.0.2:1/x", "https://10.0.0.1/x", "https://169.254.169.254/x", "http://1.1.1.1/x", "file:///etc/passwd"} {
		r.Intercept(func(w http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, "/blobs/") {
				w.Header().Set("Location", to+"?signature=s3cret")
				w.WriteHeader(http.StatusTemporaryRedirect)
				return true
			}
			return false
		})
		refused := s.pull("tools", host+"/lab/tools:1")
		require.Equal(t, http.StatusBadRequest, refused.Code, to)
		require.Regexp(t, "not allowed| is a |has no host", refused.Body.String(), to)

		r.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+to+`"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		})
		rec := s.pull("tools", host+"/lab/tools:1")
		require.Equal(t, http.StatusBadRequest, rec.Code, to)
		require.Regexp(t, "not allowed| is a |unsupported scheme", rec.Body.String(), to)
		require.NotContains(t, refused.Body.String()+rec.Body.String(), "s3cret")
	}
	require.Empty(t, s.files())
}

// TestS22TokenServersOfTheRegistry lists who may get the credentials of a registry.
func TestS22TokenServersOfTheRegistry(t *testing.T) {
	for registry, hosts := range map[string]map[string]bool{
		"registry.gitlab.com":  {"registry.gitlab.com": true, "gitlab.com": true, "com": false, "lab.com": false, "auth.gitlab.com": false},
		"registry-1.docker.io": {"auth.docker.io": true, "docker.io": true, "auth.docker.io.example.com": false},
	} {
		for host, may := range hosts {
			require.Equal(t, may, registryTransport{host: registry}.mayHaveCredentials(host), "%s: %s", registry, host)
		}
	}
}

// The storage of a registry may be on a subdomain, to which net/http sends the credentials of the request that was redirected.
func TestS22RedirectsGetNoCredentials(t *testing.T) {
	var sent string
	transport := registryTransport{host: "quay.io", RoundTripper: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.URL.Host == "quay.io" {
			return &http.Response{
				StatusCode: http.StatusFound, Header: http.Header{"Location": {"https://cdn01.quay.io/blob"}}, Body: http.NoBody,
			}, nil
		}
		sent = r.URL.Host + r.Header.Get("Authorization")
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://quay.io/v2/x/blobs/y", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer t0ken")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "cdn01.quay.io", sent)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
