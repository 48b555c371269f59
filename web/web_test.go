package web

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func page() fstest.MapFS {
	return fstest.MapFS{
		".gitkeep":              {},
		"index.html":            {Data: []byte("<!doctype html><title>Ingot</title>")},
		"favicon.svg":           {Data: []byte("<svg/>")},
		"assets/index-abc12.js": {Data: []byte("export {}")},
		"assets/index-abc12.css": {
			Data: []byte("body{}"),
		},
	}
}

func get(t *testing.T, fsys fs.FS, method, target string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	handler(fsys).ServeHTTP(w, r)
	return w.Result()
}

// TestS49PageIsGuarded: the page and its assets come with the policy, by GET and HEAD alone.
func TestS49PageIsGuarded(t *testing.T) {
	const immutable = "public, max-age=31536000, immutable"
	for _, c := range []struct {
		method, path string
		status       int
		kind, cache  string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8", "no-cache"},
		{"HEAD", "/", 200, "text/html; charset=utf-8", "no-cache"},
		{"GET", "/index.html", 200, "text/html; charset=utf-8", "no-cache"},
		{"GET", "/favicon.svg", 200, "image/svg+xml", "no-cache"},
		{"GET", "/assets/index-abc12.js", 200, "text/javascript; charset=utf-8", immutable},
		{"GET", "/assets/index-abc12.css", 200, "text/css; charset=utf-8", immutable},
		{"GET", "/assets/", 404, "text/plain; charset=utf-8", ""},
		{"GET", "/assets/other.js", 404, "text/plain; charset=utf-8", ""},
		{"GET", "/.gitkeep", 404, "text/plain; charset=utf-8", ""},
		{"GET", "/assets/../index.html", 404, "text/plain; charset=utf-8", ""},
		{"POST", "/", 405, "text/plain; charset=utf-8", ""},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			r := get(t, page(), c.method, c.path)
			if r.StatusCode != c.status {
				t.Fatalf("status %d, want %d", r.StatusCode, c.status)
			}
			if k := r.Header.Get("Content-Type"); k != c.kind {
				t.Errorf("Content-Type %q, want %q", k, c.kind)
			}
			if v := r.Header.Get("Cache-Control"); v != c.cache {
				t.Errorf("Cache-Control %q, want %q", v, c.cache)
			}
			policy := strings.Split(r.Header.Get("Content-Security-Policy"), "; ")
			for _, want := range []string{
				"default-src 'self'", "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'", "object-src 'none'",
				"require-trusted-types-for 'script'", "trusted-types 'none'",
			} {
				if !slices.Contains(policy, want) {
					t.Errorf("Content-Security-Policy %q lacks %q", policy, want)
				}
			}
			if v := r.Header.Get("X-Content-Type-Options"); v != "nosniff" {
				t.Errorf("X-Content-Type-Options %q", v)
			}
		})
	}
}

func TestRevalidation(t *testing.T) {
	tag := get(t, page(), "GET", "/").Header.Get("ETag")
	if tag == "" {
		t.Fatal("no ETag")
	}
	if r := get(t, page(), "GET", "/", "If-None-Match", tag); r.StatusCode != http.StatusNotModified {
		t.Errorf("same page: status %d, want 304", r.StatusCode)
	}
	other := page()
	other["index.html"] = &fstest.MapFile{Data: []byte("<!doctype html><title>newer</title>")}
	if r := get(t, other, "GET", "/", "If-None-Match", tag); r.StatusCode != http.StatusOK {
		t.Errorf("newer page: status %d, want 200", r.StatusCode)
	}
}

func TestPlaceholder(t *testing.T) {
	fsys := fstest.MapFS{".gitkeep": {}}
	r := get(t, fsys, "GET", "/")
	if r.StatusCode != 200 || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("status %d, Content-Type %q", r.StatusCode, r.Header.Get("Content-Type"))
	}
	body := make([]byte, 4096)
	n, _ := r.Body.Read(body) // a recorder's body: everything at once
	if !strings.Contains(string(body[:n]), "make web build") {
		t.Errorf("the placeholder does not tell how to build the page: %q", body[:n])
	}
}

// TestEmbedded holds for a page that was built: it obeys its own policy, and
// everything it names is there.
func TestEmbedded(t *testing.T) {
	index, err := fs.ReadFile(dist, "dist/index.html")
	if err != nil {
		w := httptest.NewRecorder()
		Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
		if w.Body.String() != placeholder {
			t.Errorf("without a built page: %q", w.Body.String())
		}
		return
	}
	for _, inline := range []string{`<script>`, `<script type="module">`, `<style`, ` style=`, ` onload=`, `data:`, `http://`, `https://`} {
		if strings.Contains(string(index), inline) {
			t.Errorf("index.html holds %q", inline)
		}
	}
	refs := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(string(index), -1)
	if len(refs) < 3 {
		t.Fatalf("index.html names %d files, want script, style and icon", len(refs))
	}
	for _, m := range refs {
		w := httptest.NewRecorder()
		Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", m[1], nil))
		if w.Code != 200 {
			t.Errorf("%s: status %d", m[1], w.Code)
		}
	}
}
