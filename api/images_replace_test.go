package api

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// Another file does not take the place of an image that something names, unless the request says so. Nothing is kept of it, and
// the file that is stored already does not count as another file.
func TestNamedImageIsReplacedOnRequestOnly(t *testing.T) {
	share := t.TempDir()
	path := filepath.Join(share, "new.raw")
	require.NoError(t, os.WriteFile(path, []byte("new"), 0o644))
	s := newSite(t, func(c *siteConfig) { c.Shares = []string{share} })
	put := func(text, query string) int {
		return s.do(http.MethodPut, "/v1/images/debian?content="+sumOf(text)+query, text).Code
	}
	require.Equal(t, http.StatusCreated, put("old", ""))
	require.Equal(t, http.StatusCreated, put("older", ""), "nothing names it")
	require.Equal(t, http.StatusCreated, put("old", ""))

	for n, name := range []string{"m1", "m2", "m3", "m4"} {
		m := inventory.Machine{Name: name, Image: "debian", Interfaces: []inventory.Interface{{MAC: mac[:len(mac)-1] + string(rune('1'+n))}}}
		require.NoError(t, s.Store.Machines.PutMachines(t.Context(), []inventory.Machine{m}, false, "test"))
	}
	require.NoError(t, s.Store.Templates.PutTemplate(t.Context(), inventory.Template{Name: "t1", Source: "IMG_URL: x/debian"}, "test"))
	before := s.files()
	for _, got := range []answer{
		decode[answer](t, s.do(http.MethodPut, "/v1/images/debian", "new"), http.StatusConflict),
		decode[answer](t, s.do(http.MethodPut, "/v1/images/debian?content="+sumOf("new"), "new"), http.StatusConflict),
		decode[answer](t, s.do(http.MethodPost, "/v1/images", map[string]any{"name": "debian", "url": "https://images.example.com/x"}), http.StatusConflict),
		decode[answer](t, s.do(http.MethodPost, "/v1/images", map[string]any{"name": "debian", "path": path}), http.StatusConflict),
	} {
		require.Contains(t, got.Error, `image "debian" is already stored, and used by 4 machines (m1, m2, m3, …) and template t1`)
		require.Contains(t, got.Next, "--replace")
	}
	require.Equal(t, before, s.files(), "nothing is kept")

	require.Equal(t, http.StatusCreated, put("old", ""), "the same file")
	require.Equal(t, http.StatusCreated, put("new", "&replace=true"))
	require.Equal(t, http.StatusCreated, put("old", "&replace=true"))
	decode[inventory.Image](
		t,
		s.do(http.MethodPost, "/v1/images", map[string]any{"name": "debian", "path": path, "replace": true}),
		http.StatusCreated,
	)
}
