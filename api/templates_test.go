package api

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// S15: a template is one that is stored, built in, or in the request itself. No name of a request is a path on the server.
func TestS15TemplatesAreNotFiles(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	dir := t.TempDir()
	file := filepath.Join(dir, "valid.yaml")
	require.NoError(t, os.WriteFile(file, []byte(oneAction), 0o600))
	t.Chdir(dir)

	for _, name := range []string{file, "valid.yaml", "./valid.yaml", "../" + filepath.Base(dir) + "/valid.yaml", "file://" + file} {
		at := "/v1/templates/" + url.PathEscape(name)
		require.Equal(t, http.StatusNotFound, s.do(http.MethodGet, at, nil).Code, name)
		require.Equal(t, http.StatusNotFound, s.do(http.MethodPost, at+"/render", map[string]any{"machine": "m1"}).Code, name)
		run := s.do(http.MethodPost, "/v1/workflows", map[string]any{
			"type": "Provision", "input": map[string]any{"machine": "m1", "template": name},
		})
		require.GreaterOrEqual(t, run.Code, 400, name)
		require.Less(t, run.Code, 500, "%s: %s", name, run.Body)
		stored := s.do(http.MethodPost, "/v1/templates", map[string]string{"name": "t1", "source": name})
		require.Equal(t, http.StatusBadRequest, stored.Code, "%s: %s", name, stored.Body)
	}
}

// The answer to "what would this template do" is the same as a run's plan: files without a known digest, images for another use and
// hosts that get no disk are refused here, too, and a digest that was not declared is a warning.
func TestRenderRefusesWhatThePlanRefuses(t *testing.T) {
	s := newSite(t, func(c *siteConfig) { c.UploadHosts = []string{"store.example"} })
	s.AddMachine("m1", mac)
	require.NoError(
		t,
		s.Store.Images.PutImage(
			t.Context(),
			inventory.Image{Name: "seen", URL: "http://192.0.2.1/seen", SHA256: sumOf("x"), FirstSeen: true},
			"test",
		),
	)
	require.NoError(
		t,
		s.Store.Images.PutImage(
			t.Context(),
			inventory.Image{Name: "k", URL: "http://192.0.2.1/k", SHA256: sumOf("k"), Use: inventory.UseInstaller},
			"test",
		),
	)
	render := func(step string) *httptest.ResponseRecorder {
		source := "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n  - {name: a, timeout: 9, " + step + "}\n"
		return s.do(http.MethodPost, "/v1/templates/t/render", map[string]any{"machine": "m1", "source": source})
	}
	for step, says := range map[string]string{
		"image: image2disk, environment: {IMG_URL: 'http://192.0.2.1/k'}":                                          "name a disk image",
		"image: image2disk, environment: {IMG_URL: 'http://192.0.2.1/seen', DEST_DISK: /dev/sda2, PARTITION: '2'}": "names a partition already",
		"image: slurp, environment: {DEST_URL: 'http://other.example/', IMG_NAME: x}":                              "must not receive the content of disks",
	} {
		got := render(step)
		require.Equal(t, http.StatusBadRequest, got.Code, step)
		require.Contains(t, got.Body.String(), says, step)
	}
	const foreign = "image: image2disk, environment: {IMG_URL: 'https://u:hush@mirror.example/x?key=hush'}"
	got := render(foreign)
	require.Equal(t, http.StatusOK, got.Code, got.Body)
	require.Contains(
		t,
		got.Body.String(),
		"https://mirror.example/x has no digest: when the run is planned, this server fetches it as image fetched-",
	)
	s.api.images.RequireDigest = true
	got = render(foreign)
	require.Equal(t, http.StatusBadRequest, got.Code, got.Body)
	require.Contains(t, got.Body.String(), "no digest is known for https://mirror.example/x, but require_digest is set")
	require.NotContains(t, got.Body.String(), "hush")
	s.api.images.RequireDigest = false

	got = render("image: 'registry.example/tools/probe:1', command: [/dev/sda]")
	require.Equal(t, http.StatusOK, got.Code, got.Body)
	require.Contains(t, got.Body.String(), `"container":{"url":"","sha256":"","digest":"","size":0,"disk":true,"hostNetwork":true}`)

	got = render("image: image2disk, environment: {IMG_URL: 'http://192.0.2.1/seen'}")
	require.Equal(t, http.StatusOK, got.Code, got.Body)
	require.Contains(t, got.Body.String(), sumOf("x"))
	require.Contains(t, got.Body.String(), "image seen: the digest is first-seen")
	require.Equal(t, http.StatusOK, render("image: slurp, environment: {DEST_URL: 'http://store.example/', IMG_NAME: x}").Code)
}

// A template is checked as it is when it is stored, and nothing is stored.
func TestLint(t *testing.T) {
	s := newSite(t)
	c := checking(s)
	got := c.op(http.StatusOK, http.MethodPost, "/v1/templates/lint", map[string]string{"source": oneAction})
	require.Contains(t, got.Body.String(), `"notes":[]`)
	bad := strings.Replace(oneAction, "noop", "docker.io/Me/kexec", 1)
	require.NotEqual(t, oneAction, bad)
	got = c.op(http.StatusBadRequest, http.MethodPost, "/v1/templates/lint", map[string]string{"source": bad})
	require.Contains(t, got.Body.String(), `"field":"tasks[0].actions[0].image"`)
	require.Contains(t, got.Body.String(), `"line":`)
	own, err := s.Store.Templates.Templates(t.Context())
	require.NoError(t, err)
	require.Empty(t, own)
}
