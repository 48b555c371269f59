package api

import (
	"context"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

// qcow2 is a qcow2 image of a disk whose size is a multiple of 64 KiB: header, refcount table, refcount block, L1 table,
// L2 table, and all of the disk.
func qcow2(disk []byte) []byte {
	const cluster = 64 << 10
	big := binary.BigEndian
	b := make([]byte, 5*cluster, 5*cluster+len(disk))
	copy(b, "QFI\xfb")
	big.PutUint32(b[4:], 3)
	big.PutUint32(b[20:], 16)
	big.PutUint64(b[24:], uint64(len(disk)))
	big.PutUint32(b[36:], 1) // L1 entries
	big.PutUint64(b[40:], 3*cluster)
	big.PutUint64(b[48:], 1*cluster)
	big.PutUint32(b[56:], 1) // clusters of the refcount table
	big.PutUint32(b[96:], 4)
	big.PutUint32(b[100:], 104)

	big.PutUint64(b[1*cluster:], 2*cluster)
	big.PutUint64(b[3*cluster:], 4*cluster)
	for n := range 5 + len(disk)/cluster {
		big.PutUint16(b[2*cluster+2*n:], 1)
	}
	for n := range len(disk) / cluster {
		big.PutUint64(b[4*cluster+8*n:], uint64(5+n)*cluster)
	}
	return append(b, disk...)
}

// bigDisk is a disk of two frames, and the second one is not full.
func bigDisk() []byte {
	disk := diskOf(diskimage.FrameSize+1<<20, 8192)
	copy(disk[2<<20:], noise(3<<20))
	return disk
}

// However a disk image was given, agents get the same file.
func TestADiskImageIsServedAsFrames(t *testing.T) {
	s := newSite(t)
	disk := bigDisk()
	var first inventory.Image
	for _, c := range []struct{ format, file string }{
		{"raw", string(disk)}, {"gz", gz(t, disk)}, {"zst", zst(t, disk)}, {"qcow2", string(qcow2(disk))},
	} {
		i := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/x?sha256="+sumOf(c.file), c.file), http.StatusCreated)
		require.Equal(t, &inventory.ImageSource{Format: c.format, Size: int64(len(c.file)), SHA256: sumOf(c.file)}, i.Source)
		require.False(t, i.FirstSeen)
		require.Equal(t, sumOf(string(disk)), i.ContentSHA256)
		require.Equal(t, int64(len(disk)), i.DiskSize)
		require.Contains(t, i.Contents, "MBR, 1 partition (ext4); ")
		require.Equal(t, []string{i.File}, s.files(), "neither the upload nor the old image stays")
		require.Equal(t, []string{string(disk)}, s.contents())
		if first.Name == "" {
			first = i
		}
		i.Source, i.Created = first.Source, first.Created
		require.Equal(t, first, i)
	}

	require.Equal(t, "zst", first.Format)
	st, err := os.Stat(filepath.Join(s.cfg.ImageDir, first.File))
	require.NoError(t, err)
	require.Equal(t, st.Size(), first.Size)
	require.True(t, decode[imageCheck](t, s.do(http.MethodPost, "/v1/images/x/verify", nil), http.StatusOK).OK)
}

// What is not to be converted stays as it is, byte by byte.
func TestAnImageIsKeptAsItIs(t *testing.T) {
	s := newSite(t)
	disk := string(diskOf(4<<20, 4096))
	for _, c := range []struct{ query, file string }{
		{"asIs=true", disk}, {"asIs=true", gz(t, []byte(disk))}, {"use=installer", disk}, {"use=installer", string(qcow2([]byte(disk)))},
	} {
		i := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/x?"+c.query, c.file), http.StatusCreated)
		require.Nil(t, i.Source)
		require.Equal(t, sumOf(c.file), i.SHA256)
		require.True(t, i.FirstSeen)
		b, err := os.ReadFile(filepath.Join(s.cfg.ImageDir, i.File))
		require.NoError(t, err)
		require.Equal(t, sumOf(c.file), sumOf(string(b)))
	}

	before := s.files()
	a := decode[answer](t, s.do(http.MethodPut, "/v1/images/x?asIs=true", qcow2([]byte(disk))), http.StatusBadRequest)
	require.Contains(t, a.Error, "agents cannot read a qcow2 image as it is")
	require.Contains(t, a.Error, "--as-is")
	require.Equal(t, before, s.files())
}

// An image from a URL is converted, too, and its digest is the digest of the file at the URL.
func TestAFetchedImageIsConverted(t *testing.T) {
	disk := diskOf(4<<20, 4096)
	file := qcow2(disk)
	publisher := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(file) // a client that disconnects fails the test
	}))
	t.Cleanup(publisher.Close)
	s := newSite(t, func(c *siteConfig) { c.FetchHosts = []string{"127.0.0.1"} })
	fetch := func(sum string, asIs bool) *httptest.ResponseRecorder {
		in := map[string]any{"name": "x", "url": publisher.URL + "/disk.qcow2", "sha256": sum, "asIs": asIs}
		return s.do(http.MethodPost, "/v1/images", in)
	}

	require.Equal(t, http.StatusBadRequest, fetch(sumOf("other"), false).Code)
	require.Equal(t, http.StatusBadRequest, fetch(sumOf(string(file)), true).Code)
	require.Empty(t, s.files())
	i := decode[inventory.Image](t, fetch(sumOf(string(file)), false), http.StatusCreated)
	require.Equal(t, "qcow2", i.Source.Format)
	require.False(t, i.FirstSeen)
	require.Equal(t, []string{string(disk)}, s.contents())
}

// A disk that is full while an image is converted keeps the old image, and the upload for another attempt.
func TestAConversionLeavesSpace(t *testing.T) {
	calls, room := 0, 1<<30
	s := newSite(t, func(c *siteConfig) {
		c.DataDir = filepath.Dir(c.ImageDir)
		c.Reserve = func() diskreserve.State {
			if calls++; calls > room {
				return diskreserve.State{Size: 1 << 60}
			}
			return diskreserve.State{Size: 1, Held: true}
		}
	})
	old := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/x", "an old image"), http.StatusCreated)
	disk := string(bigDisk())
	path := "/v1/images/x?content=" + sumOf(disk)

	calls, room = 0, 2 // when the upload begins, and for the first frame
	require.Equal(t, http.StatusInsufficientStorage, s.do(http.MethodPut, path, disk).Code)
	require.ElementsMatch(t, []string{"an old image", disk}, s.contents())
	require.Equal(t, old.SHA256, decode[inventory.Image](t, s.do(http.MethodGet, "/v1/images/x", nil), http.StatusOK).SHA256)
	calls = 0
	require.Equal(t, http.StatusInsufficientStorage, s.do(http.MethodPut, "/v1/images/y", disk).Code)
	require.ElementsMatch(t, []string{"an old image", disk}, s.contents(), "an upload without a digest cannot go on")

	room = 1 << 30
	decode[inventory.Image](t, s.do(http.MethodPut, path+"&offset=17825792&size=17825792", nil), http.StatusCreated)
	require.Equal(t, []string{disk}, s.contents())
}

// What a killed server has left of a conversion is removed, unless it is being written.
func TestAnInterruptedConversionIsRemoved(t *testing.T) {
	s := newSite(t)
	left := filepath.Join(s.cfg.ImageDir, upload{image: inventory.Image{Name: "x"}}.converted())
	require.NoError(t, os.WriteFile(left, []byte("the beginning"), 0o600))
	_, unlock, err := s.api.images.lockUpload("x")
	require.NoError(t, err)
	s.api.RemoveUnusedImages(t.Context())
	require.FileExists(t, left)
	unlock()
	s.api.RemoveUnusedImages(t.Context())
	require.NoFileExists(t, left)
}

// killedStore is a server that is killed while it stores an image: nothing is cleaned up.
type killedStore struct {
	Store
	expect, before, after bool
}

func (s killedStore) ExpectImageFile(ctx context.Context, digest string) error {
	if s.expect {
		panic("killed before the rename")
	}
	return s.Store.ExpectImageFile(ctx, digest)
}

func (s killedStore) PutImage(ctx context.Context, i inventory.Image, by string) error {
	if s.before {
		panic("killed after the rename")
	}
	err := s.Store.PutImage(ctx, i, by)
	if s.after {
		panic("killed after the commit")
	}
	return err
}

// After a kill at any moment there is the old image or the new one, whole, and the same command ends with the new one.
func TestAKilledImportKeepsAWholeImage(t *testing.T) {
	disk := string(bigDisk())
	path := "/v1/images/x?content=" + sumOf(disk)
	for name, c := range map[string]struct {
		calls  int // of Reserve until the kill
		store  killedStore
		stored string
	}{
		"during the conversion": {calls: 3, stored: "an old image"},
		"before the rename":     {calls: 99, store: killedStore{expect: true}, stored: "an old image"},
		"after the rename":      {calls: 99, store: killedStore{before: true}, stored: "an old image"},
		"after the commit":      {calls: 99, store: killedStore{after: true}, stored: disk},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/x", "an old image"), http.StatusCreated)
			whole := s.cfg
			calls := 0
			s.restart(func(cfg *siteConfig) {
				c.store.Store = fakesite.InventoryOf(s.Store)
				cfg.Store, cfg.DataDir = c.store, filepath.Dir(cfg.ImageDir)
				cfg.Reserve = func() diskreserve.State {
					if calls++; calls == c.calls {
						panic("killed during the conversion")
					}
					return diskreserve.State{Size: 1, Held: true}
				}
			})
			require.Equal(t, http.StatusInternalServerError, s.do(http.MethodPut, path, disk).Code)

			s.restart(func(cfg *siteConfig) { *cfg = whole })
			s.api.RemoveUnusedImages(t.Context())
			i := decode[inventory.Image](t, s.do(http.MethodGet, "/v1/images/x", nil), http.StatusOK)
			require.Equal(t, sumOf(c.stored), i.ContentSHA256)
			require.True(t, decode[imageCheck](t, s.do(http.MethodPost, "/v1/images/x/verify", nil), http.StatusOK).OK)
			require.NoFileExists(t, filepath.Join(s.cfg.ImageDir, upload{image: inventory.Image{Name: "x"}}.converted()))

			at := s.do(http.MethodHead, "/v1/images/x/upload?content="+sumOf(disk), nil).Header().Get(uploadOffset)
			require.Equal(t, "17825792", at, "nothing has to be sent again")
			i = decode[inventory.Image](t, s.do(http.MethodPut, path+"&offset="+at+"&size="+at, nil), http.StatusCreated)
			require.Equal(t, sumOf(disk), i.ContentSHA256)
			require.Equal(t, []string{i.File}, s.files())
		})
	}
}
