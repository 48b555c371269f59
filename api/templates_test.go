package api

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
