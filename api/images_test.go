package api

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

func sumOf(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

// files lists what lies in the image directory.
func (s *site) files() (names []string) {
	s.T.Helper()
	es, err := os.ReadDir(s.cfg.ImageDir)
	require.NoError(s.T, err)
	for _, e := range es {
		names = append(names, e.Name())
	}
	return names
}

// broken is a body that breaks off.
type broken struct{ io.Reader }

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func TestUploadGoesOnAfterALoss(t *testing.T) {
	s := newSite(t)
	text := gz(t, []byte(strings.Repeat("not much of a disk ", 1000)+noise(9000)))
	r := httptest.NewRequestWithContext(
		t.Context(),
		http.MethodPut,
		"/v1/images/debian-12?sha256="+sumOf(text),
		broken{strings.NewReader(text[:5000])},
	)
	r.Host = "127.0.0.1:8080"
	r.Header.Set("Authorization", "Bearer "+adminToken)
	rec := httptest.NewRecorder()
	s.operator.ServeHTTP(rec, r)
	require.Equal(t, http.StatusBadRequest, rec.Code, rec.Body)
	require.Equal(t, http.StatusNotFound, s.do(http.MethodGet, "/v1/images/debian-12", nil).Code)
	at := s.do(http.MethodHead, "/v1/images/debian-12/upload?sha256="+sumOf(text), nil).Header().Get(uploadOffset)
	require.Equal(t, "5000", at)

	require.Equal(t, http.StatusConflict, s.do(http.MethodPut, "/v1/images/debian-12?offset=4000&sha256="+sumOf(text), text[4000:]).Code)
	i := decode[inventory.Image](
		t,
		s.do(http.MethodPut, "/v1/images/debian-12?sha256="+sumOf(text)+"&offset="+at, text[5000:]),
		http.StatusCreated,
	)
	require.Equal(t, &inventory.ImageSource{Format: "gz", Size: int64(len(text)), SHA256: sumOf(text)}, i.Source)
	require.False(t, i.FirstSeen)
	require.Equal(t, []string{i.File}, s.files())
	require.Equal(t, "0", s.do(http.MethodHead, "/v1/images/debian-12/upload?sha256="+sumOf(text), nil).Header().Get(uploadOffset))

	// Another upload of the same name replaces the file.
	j := decode[inventory.Image](
		t,
		s.do(http.MethodPut, "/v1/images/debian-12", "raw bytes", header{"Content-Range", "bytes 0-8/9"}),
		http.StatusCreated,
	)
	require.True(t, j.FirstSeen)
	require.Equal(t, "raw", j.Source.Format)
	require.Equal(t, int64(9), j.DiskSize)
	require.Equal(t, []string{j.File}, s.files())

	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/images/debian-12", nil).Code)
	require.Empty(t, s.files())
}

// A parameter of an upload that is misspelt or has a wrong value is refused: without it the file would not be checked, for example.
func TestUploadRefusesWrongParameters(t *testing.T) {
	s := newSite(t)
	for query, field := range map[string]string{
		"sha265=" + sumOf("x"): "sha265", "asis=true": "asis", "asIs=yes": "asIs", "replace=y": "replace", "offset=-1": "offset", "size=1k": "size",
	} {
		a := decode[answer](t, s.do(http.MethodPut, "/v1/images/x?"+query, "x"), http.StatusBadRequest)
		require.Equal(t, field, a.Problems[0].Field, query)
	}
	require.Empty(t, s.files())
}

func TestWrongDigestKeepsNothing(t *testing.T) {
	s := newSite(t)
	a := decode[answer](t, s.do(http.MethodPut, "/v1/images/debian-12?sha256="+sumOf("other"), "text"), http.StatusBadRequest)
	require.Contains(t, a.Error, sumOf("text"))
	require.Empty(t, s.files())
	for path, in := range map[string]string{
		"/v1/images/debian-12?sha256=beef":    "text",
		"/v1/images/debian-12":                "",
		"/v1/images/qcow":                     "QFI\xfb0000",
		"/v1/images/page":                     "<!doctype html>",
		"/v1/images/debian-12?size=2":         "text",
		"/v1/images/Debian":                   "text",
		"/v1/images/.hidden":                  "text",
		"/v1/images/a..b":                     "text",
		"/v1/images/" + url.PathEscape("a b"): "text",
	} {
		require.Equal(t, http.StatusBadRequest, s.do(http.MethodPut, path, in).Code, path)
		require.Empty(t, s.files(), path)
	}
	require.Equal(t, http.StatusNotFound, s.do(http.MethodPut, "/v1/images/..%2fevil", "text").Code)
}

func TestUploadLeavesSpace(t *testing.T) {
	s := newSite(t, func(c *siteConfig) { c.DataDir, c.MinFree = t.TempDir(), 1<<60 })
	s.AddMachine("m1", mac)
	a := decode[answer](t, s.do(http.MethodPut, "/v1/images/debian-12", "text"), http.StatusInsufficientStorage)
	require.Equal(t, httpapi.CodeNoSpace, a.Code)
	require.Empty(t, s.files())
	require.Equal(t, http.StatusInsufficientStorage, s.do(http.MethodPost, "/v1/machines/m1/provision", nil).Code)
	require.Equal(t, http.StatusOK, s.do(http.MethodPost, "/v1/machines/m1/netboot", `{"arm":true}`).Code)
}

func TestVerifySeesAFlippedBit(t *testing.T) {
	s := newSite(t)
	i := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/debian-12", "text"), http.StatusCreated)
	type found struct{ OK bool }
	require.True(t, decode[found](t, s.do(http.MethodPost, "/v1/images/debian-12/verify", nil), http.StatusOK).OK)
	require.NoError(t, os.WriteFile(s.cfg.ImageDir+"/"+i.File, []byte("tezt"), 0o600))
	require.False(t, decode[found](t, s.do(http.MethodPost, "/v1/images/debian-12/verify", nil), http.StatusOK).OK)
}

// TestFetchImage: of two callers, one makes the request. What another try may change is unreachable; what it cannot is invalid.
func TestFetchImage(t *testing.T) {
	var sent atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent.Add(1)
		switch r.URL.Path {
		case "/image":
			_, _ = w.Write([]byte("raw bytes"))
		case "/cut":
			w.Header().Set("Content-Length", "9")
			_, _ = w.Write([]byte("raw"))
		case "/later":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/elsewhere":
			http.Redirect(w, r, "http://127.0.0.2/x", http.StatusFound)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(target.Close)
	s := newSite(t, func(c *siteConfig) { c.FetchHosts = []string{"127.0.0.1"} })
	errs := make(chan error)
	for range 2 {
		go func() { errs <- s.api.FetchImage(t.Context(), "x", target.URL+"/image", "alice") }()
	}
	for range 2 {
		if err := <-errs; err != nil {
			require.ErrorIs(t, err, inventory.ErrConflict, "the other caller fetches it")
		}
	}
	require.NoError(t, s.api.FetchImage(t.Context(), "x", target.URL+"/image", "alice"))
	require.EqualValues(t, 1, sent.Load())
	i := decode[inventory.Image](t, s.do(http.MethodGet, "/v1/images/x", nil), http.StatusOK)
	require.True(t, i.FirstSeen)
	require.Equal(t, target.URL+"/image", i.URL)

	for path, want := range map[string]error{
		"/cut": inventory.ErrUnreachable, "/later": inventory.ErrUnreachable,
		"/none": inventory.ErrInvalid, "/elsewhere": inventory.ErrInvalid,
	} {
		err := s.api.FetchImage(t.Context(), "y", strings.Replace(target.URL, "http://", "http://u:hush@", 1)+path+"?key=hush", "")
		require.ErrorIs(t, err, want, path)
		require.NotErrorIs(t, err, map[error]error{
			inventory.ErrInvalid: inventory.ErrUnreachable, inventory.ErrUnreachable: inventory.ErrInvalid,
		}[want], path)
		require.NotContains(t, err.Error(), "hush")
	}
	require.ErrorIs(t, s.api.FetchImage(t.Context(), "y", "http://other.example/x", ""), inventory.ErrInvalid)

	// A template that names the address uses the image.
	name := inventory.FetchedName(target.URL + "/image")
	require.NoError(t, s.api.FetchImage(t.Context(), name, target.URL+"/image", ""))
	source := "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions:\n" +
		"  - {name: a, image: image2disk, environment: {IMG_URL: '" + target.URL + "/image'}}\n"
	decode[inventory.Template](t, s.do(http.MethodPost, "/v1/templates", map[string]any{"source": source}), http.StatusCreated)
	require.Equal(t, http.StatusConflict, s.do(http.MethodDelete, "/v1/images/"+name, nil).Code)
	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/images/"+name+"?force=true", nil).Code)
}

// Whether an image can be fetched is known before it is.
func TestProbeImage(t *testing.T) {
	sent := 0
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "bytes=0-0", r.Header.Get("Range"))
		switch r.URL.Path {
		case "/ranges":
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader("text"))
		case "/huge":
			w.Header().Set("Content-Range", "bytes 0-0/99999999999999999")
			w.WriteHeader(http.StatusPartialContent)
			sent, _ = w.Write([]byte("t"))
		case "/unknown":
			w.Header().Set("Content-Range", "bytes 0-0/*")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write([]byte("t")) // the client asked for it
		case "/none":
			_, _ = w.Write([]byte("text"))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(target.Close)
	s := newSite(t, func(c *siteConfig) { c.FetchHosts = []string{"127.0.0.1"} })
	for _, path := range []string{"/ranges", "/none", "/unknown"} {
		require.NoError(t, s.api.ProbeImage(t.Context(), target.URL+path), path)
	}
	err := s.api.ProbeImage(t.Context(), strings.Replace(target.URL, "http://", "http://user:pass@", 1)+"/nothing?token=s3cret")
	require.ErrorIs(t, err, inventory.ErrUnreachable)
	require.EqualError(t, err, fmt.Sprintf("requesting %q: the answer is 404 Not Found: unreachable", target.URL+"/nothing"))
	err = s.api.ProbeImage(t.Context(), target.URL+"/huge")
	require.ErrorIs(t, err, httpapi.ErrNoSpace)
	require.Equal(t, 1, sent)
	require.ErrorIs(t, newSite(t).api.ProbeImage(t.Context(), target.URL+"/none"), inventory.ErrInvalid)
	require.Empty(t, s.files())
}

func TestFetchDialsOnlyWhatIsAllowed(t *testing.T) {
	var path string
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		switch r.URL.Path {
		case "/image":
			_, _ = w.Write([]byte("text")) // the client's test tells
		case "/inside":
			http.Redirect(w, r, "http://169.254.169.254/latest/user-data", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(target.Close)
	fetch := func(s *site, u string) *httptest.ResponseRecorder {
		return s.do(http.MethodPost, "/v1/images", map[string]string{"name": "debian-12", "url": u})
	}
	strict := newSite(t)
	for _, u := range []string{target.URL + "/image", strings.Replace(target.URL, "http:", "https:", 1) + "/image", "file:///etc/passwd", "https://169.254.169.254/", "gopher://x/", "nonsense"} {
		require.Equal(t, http.StatusBadRequest, fetch(strict, u).Code, u)
	}
	require.Empty(t, path, "nothing was dialled")

	s := newSite(t, func(c *siteConfig) { c.FetchHosts = []string{"127.0.0.1"} })
	i := decode[inventory.Image](
		t,
		fetch(s, strings.Replace(target.URL, "http://", "http://user:pass@", 1)+"/image?token=s3cret"),
		http.StatusCreated,
	)
	require.Equal(t, target.URL+"/image", i.URL)
	require.Equal(t, http.StatusBadRequest, fetch(s, target.URL+"/inside").Code)
	require.Equal(t, http.StatusBadRequest, fetch(s, target.URL+"/nothing").Code)
	require.Equal(t, []string{i.File}, s.files())
}
