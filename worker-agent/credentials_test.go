package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/filesystest"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/stretchr/testify/require"
)

// requests records the headers that a server was sent.
type requests struct {
	mu  sync.Mutex
	all []http.Header
}

func (r *requests) add(h http.Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, h.Clone())
}

func (r *requests) headers() []http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// S22: the credentials of an image go to their server only: not to where it redirects, not into the log, the progress or the
// result, and not onto the disk. The same holds for the agent's own token.
func TestS22CredentialsGoToTheirServerOnly(t *testing.T) {
	t.Parallel()
	image := disktest.TestImage()
	var first, second requests
	// The same address with another name: redirects within one host may keep headers.
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		second.add(r.Header)
		if strings.HasSuffix(r.URL.Path, "user-data") {
			_, _ = fmt.Fprint(w, "#cloud-config") // the agent asked for it
			return
		}
		_, _ = w.Write(image) // as above
	}))
	defer other.Close()
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first.add(r.Header)
		http.Redirect(w, r, elsewhere+r.URL.Path, http.StatusFound)
	}))
	defer mirror.Close()

	root := t.TempDir()
	part := filesystest.ExtPartition(t, 12, 8192)
	s := newFakeServer(t)
	s.files = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere+"/x", http.StatusFound) }
	disks, disk, file := disktest.OldDisk(t, disktest.ImageDiskSize)
	cfg := s.config()
	cfg.Disks, cfg.Files = disks, &filesystest.FakeFiles{Parts: []filesys.Partition{part}, Dirs: map[string]string{part.Path: root}}
	s.start(cfg)

	guarded := strings.Replace(mirror.URL, "http://", "http://user:geheim@", 1)
	digest := fmt.Sprintf("%x", sha256.Sum256(image))
	res := s.result(s.give(1, action.Image2Disk, disk, map[string]string{
		"IMG_URL": guarded + "/disk.raw?token=s3cret", "IMG_SHA256": digest, "DEST_DISK": "/dev/alias",
	}))
	require.Equal(t, action.Success, res.State, res.Message)
	res = s.result(s.give(2, action.WriteFile, disk, map[string]string{
		"HEGEL_URLS": guarded, "DEST_PATH": "/user-data", "FS_TYPE": "ext4", "DEST_DISK": "/dev/alias12",
	}))
	require.Equal(t, action.Success, res.State, res.Message)
	res = s.result(s.give(3, action.Image2Disk, disk, map[string]string{
		"IMG_URL": guarded + "/no-such-image?token=s3cret", "IMG_SHA256": strings.Repeat("0", 64), "DEST_DISK": "/dev/alias",
	}))
	require.Equal(t, action.Failed, res.State)

	require.Len(t, first.headers(), 3)
	for _, h := range first.headers() {
		require.True(t, strings.HasPrefix(h.Get("Authorization"), "Basic "), "its own credentials, and not the agent's token: %v", h)
	}
	require.Len(t, second.headers(), 3)
	for _, h := range second.headers() {
		for _, name := range []string{"Authorization", "Cookie", "Referer"} {
			require.Empty(t, h.Get(name), name)
		}
	}

	// This server may not send the agent, with its token, to another.
	res = s.result(s.give(4, action.Image2Disk, disk, map[string]string{
		"IMG_URL": s.http.URL + "/agent/v1/images/x", "IMG_SHA256": digest, "DEST_DISK": "/dev/alias",
	}))
	require.Equal(t, action.Failed, res.State)
	require.Contains(t, res.Message, "302")
	require.Len(t, second.headers(), 3)

	// An error of the connection does not repeat the address either.
	unproven := httptest.NewUnstartedServer(http.NotFoundHandler())
	unproven.Config.ErrorLog = log.New(io.Discard, "", 0)
	unproven.StartTLS()
	defer unproven.Close()
	res = s.result(s.give(5, action.Image2Disk, disk, map[string]string{
		"IMG_URL":    strings.Replace(unproven.URL, "https://", "https://user:geheim@", 1) + "/x?token=s3cret",
		"IMG_SHA256": digest, "DEST_DISK": "/dev/alias",
	}))
	require.Equal(t, action.Failed, res.State)
	require.Contains(t, res.Message, unproven.URL+"/x")

	s.locked(func() {
		said, err := json.Marshal([]any{s.reports, s.beats})
		require.NoError(t, err)
		for _, secret := range []string{"geheim", "s3cret", "Bearer"} {
			require.NotContains(t, string(said), secret)
			require.False(t, bytes.Contains(disktest.MapFile(t, file), []byte(secret)), "%s is on the disk", secret)
		}
	})
}
