package api

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// free is the free space of a directory's disk.
func free(t *testing.T, dir string) int64 {
	t.Helper()
	n, err := diskreserve.Free(dir)
	require.NoError(t, err)
	return n
}

// otherDisk is a directory on another file system than the temporary directories.
func otherDisk(t *testing.T) string {
	t.Helper()
	//nolint:usetesting // must lie elsewhere
	dir, err := os.MkdirTemp("/dev/shm", "ingot-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func TestRunsAndUploadsNeedSpace(t *testing.T) {
	data := t.TempDir()
	const reserveSize = 1 << 30
	held := true
	s := newSite(t, func(c *siteConfig) {
		c.DataDir, c.MinFree = data, free(t, data)-reserveSize/2
		c.Reserve = func() diskreserve.State { return diskreserve.State{Size: reserveSize, Held: held} }
	})
	s.AddMachine("m1", mac)
	require.Equal(t, http.StatusCreated, s.do(http.MethodPut, "/v1/images/debian-12", "text").Code)
	require.Equal(t, http.StatusAccepted, s.do(http.MethodPost, "/v1/machines/m1/inspect", nil).Code)

	held = false // what is free now belongs to those that run already
	for _, path := range []string{"/v1/machines/m1/provision", "/v1/machines/m1/inspect"} {
		a := decode[answer](t, s.do(http.MethodPost, path, nil), http.StatusInsufficientStorage)
		require.Equal(t, httpapi.CodeNoSpace, a.Code)
		require.Contains(t, a.Error, data)
		require.Contains(t, a.Error, "ingot image prune")
		require.Equal(t, "ingot image prune", a.Next)
	}
	a := decode[answer](t, s.do(http.MethodPut, "/v1/images/other", "text"), http.StatusInsufficientStorage)
	require.Contains(t, a.Error, "ingot image prune")
	require.Equal(t, http.StatusOK, s.do(http.MethodPost, "/v1/machines/m1/netboot", `{"arm":false}`).Code)

	st := decode[apitypes.Status](t, s.do(http.MethodGet, "/v1/status", nil), http.StatusOK)
	require.Len(t, st.Space, 1, "one disk")
	require.True(t, st.Space[0].Low)
	require.False(t, st.Space[0].Reserve.Held)
	require.Contains(t, st.Space[0].Message, "the disk was full")
}

func TestImagesHaveTheirOwnDisk(t *testing.T) {
	data, images := t.TempDir(), otherDisk(t)
	dataFree, imagesFree := free(t, data), free(t, images)
	if dataFree < imagesFree {
		data, images, dataFree, imagesFree = images, data, imagesFree, dataFree
	}
	s := newSite(t, func(c *siteConfig) { c.DataDir, c.ImageDir, c.MinFree = data, images, (dataFree+imagesFree)/2 })
	s.AddMachine("m1", mac)
	st := decode[apitypes.Status](t, s.do(http.MethodGet, "/v1/status", nil), http.StatusOK)
	require.Len(t, st.Space, 2)
	a := decode[answer](t, s.do(http.MethodPut, "/v1/images/debian-12", "text"), http.StatusInsufficientStorage)
	require.Contains(t, a.Error, images)
	require.NotEqual(
		t,
		http.StatusInsufficientStorage,
		s.do(http.MethodPost, "/v1/machines/m1/inspect", nil).Code,
		"runs write to the other disk",
	)
	require.NoFileExists(t, filepath.Join(images, upload{image: inventory.Image{Name: "debian-12"}}.part()))
}

// A write that finds no room is 507 with the remedy; agents send it again.
func TestFullDiskIs507(t *testing.T) {
	code, word := httpapi.StatusOf(fmt.Errorf("reporting: %w", inventory.ErrFull))
	require.Equal(t, http.StatusInsufficientStorage, code)
	require.Equal(t, httpapi.CodeNoSpace, word)
}
