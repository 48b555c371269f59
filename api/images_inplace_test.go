package api

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// A file of a share is registered without a copy, judged like an upload, and never deleted.
func TestImageInPlace(t *testing.T) {
	share := t.TempDir()
	s := newSite(t, func(c *siteConfig) { c.Shares = []string{share} })
	path := filepath.Join(share, "debian.raw.gz")
	text := gz(t, []byte(strings.Repeat("not much of a disk ", 1000)))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	add := func(in map[string]any, status int) inventory.Image {
		t.Helper()
		in["name"] = "debian-12"
		w := s.do(http.MethodPost, "/v1/images", in)
		if status != http.StatusCreated {
			require.Equal(t, status, w.Code, w.Body)
			return inventory.Image{}
		}
		return decode[inventory.Image](t, w, status)
	}

	// A copy that had the name goes; a file served in place does not belong to the server.
	decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/debian-12", "raw bytes"), http.StatusCreated)
	require.Len(t, s.files(), 1)
	i := add(map[string]any{"path": path, "sha256": sumOf(text)}, http.StatusCreated)
	require.Empty(t, s.files())
	require.Equal(t, path, i.InPlace.Path)
	require.Equal(t, sumOf(text), i.SHA256)
	require.Equal(t, "gz", i.Format)
	require.Nil(t, i.Source, "it is served as it is")
	require.EqualValues(t, 19000, i.DiskSize, "it was read to its end")
	require.False(t, i.FirstSeen)

	check := func() imageCheck {
		t.Helper()
		return decode[imageCheck](t, s.do(http.MethodPost, "/v1/images/debian-12/verify", nil), http.StatusOK)
	}
	require.True(t, check().OK)
	require.NoError(t, os.WriteFile(path, []byte(text+"more"), 0o644))
	require.False(t, check().OK)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))

	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("secret"), 0o644))
	require.NoError(t, os.Symlink(outside, filepath.Join(share, "link")))
	require.NoError(t, os.WriteFile(filepath.Join(share, "cut.gz"), []byte(text[:len(text)/2]), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(share, "disk.qcow2"), []byte("QFI\xfb\x00\x00\x00\x03"+strings.Repeat("\x00", 600)), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(share, "container.tar"), tools.Layout(t), 0o644))
	for _, in := range []map[string]any{
		{"path": filepath.Join(share, "container.tar")},
		{"path": outside},
		{"path": filepath.Join(share, "link")},
		{"path": filepath.Join(share, "missing")},
		{"path": "debian.raw.gz"},
		{"path": filepath.Join(share, "cut.gz")},
		{"path": filepath.Join(share, "disk.qcow2")},
		{"path": path, "sha256": sumOf("other")},
		{"path": path, "sha512": strings.Repeat("0", 128)},
		{"path": path, "url": "https://images.example.com/x"},
	} {
		add(in, http.StatusBadRequest)
	}
	same := decode[inventory.Image](t, s.do(http.MethodGet, "/v1/images/debian-12", nil), http.StatusOK)
	require.Equal(t, i.SHA256, same.SHA256, "a refusal changes nothing")

	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/images/debian-12", nil).Code)
	require.FileExists(t, path)
	require.WithinDuration(t, time.Now(), i.InPlace.ModTime, time.Hour)
}
