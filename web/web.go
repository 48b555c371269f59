// Package web serves the web page of Ingot, which shows live what every machine is doing.
//
// vite builds the page from the folder src into the folder dist, which is embedded in the binary. If the binary was built without node,
// dist contains only .gitkeep, and a text is served instead of the page.
package web

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed all:dist
var dist embed.FS

// Policy is the Content-Security-Policy of the page. It requires trusted types, so the browser refuses to turn text into markup or script:
// text that a machine has sent always stays text.
const Policy = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

const placeholder = "Ingot runs, but this binary was built without its page.\n" +
	"Build it with: make web build\n" +
	"Until then, use the command line: ingot status\n"

// Handler serves the page at / and its assets, for GET and HEAD. It requires no log-in, because the page itself contains no data. The page
// reads data from the API, which requires a log-in.
func Handler() http.Handler {
	sub, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // dist is a valid path
	}
	return handler(sub)
}

type file struct {
	body []byte
	kind string
	etag string
}

func handler(fsys fs.FS) http.Handler {
	files := map[string]file{}
	// Ignore the error: reading an embedded file system cannot fail.
	_ = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(path.Base(name), ".") {
			return err
		}
		body, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		files["/"+name] = newFile(body, contentType(name))
		return nil
	})
	index, built := files["/index.html"]
	if !built {
		index = newFile([]byte(placeholder), "text/plain; charset=utf-8")
	}
	files["/"], files["/index.html"] = index, index

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", Policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		f, ok := files[r.URL.Path]
		if !ok {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		h.Set("Content-Type", f.kind)
		h.Set("ETag", f.etag)
		if strings.HasPrefix(r.URL.Path, "/assets/") {
			// A file in assets never changes, because its name contains a digest of its content.
			h.Set("Cache-Control", "public, max-age=31536000, immutable")
		} else {
			h.Set("Cache-Control", "no-cache")
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
	})
}

func newFile(body []byte, kind string) file {
	sum := sha256.Sum256(body)
	return file{body: body, kind: kind, etag: `"` + hex.EncodeToString(sum[:8]) + `"`}
}

// contentTypes are used instead of the MIME table of the host: these tables differ, and some map JavaScript to text/plain.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".json": "application/json",
}

func contentType(name string) string {
	return cmp.Or(contentTypes[path.Ext(name)], "application/octet-stream")
}
