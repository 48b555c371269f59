package actions

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/worker-agent/disk/filesystest"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/stretchr/testify/require"
)

// The action fetches, extracts, compares the digest of what was served, and reports.
func TestArchive2Disk(t *testing.T) {
	// Padding behind the archive's end, as GNU tar writes it, belongs to the digest.
	archive := append(disktest.Archive(t, disktest.RegularFile("etc/a"), disktest.Symlink("l", "etc/a")), make([]byte, 10240)...)
	served := map[string][]byte{}
	for _, format := range []string{"raw", "gz", "zst", "xz", "bzip2"} {
		served["/"+format] = disktest.Pack(t, archive, format)
	}
	served["/cut"] = served["/gz"][:len(served["/gz"])-4]
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, ok := served[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(b))
	}))
	defer web.Close()

	root := t.TempDir()
	part := filesystest.ExtPartition(t, 2, 8192)
	s := newWorker(t)
	disks, disk, _ := disktest.OldDisk(t, 8*blockdev.MiB)
	cfg := s.config()
	cfg.Disks, cfg.Files = disks, &filesystest.FakeFiles{Parts: []filesys.Partition{part}, Dirs: map[string]string{part.Path: root}}
	s.start(cfg)

	n := 0
	extract := func(name, digest string) action.Result {
		n++
		return s.result(s.give(n, action.Archive2Disk, disk, map[string]string{
			"ARCHIVE_URL": web.URL + name, "TARFILE_CHECKSUM": digest, "DEST_DISK": "/dev/alias2", "DEST_PATH": name,
			"ARCHIVE_TYPE": "targz",
		}))
	}
	digest := func(name string) string { return fmt.Sprintf("%x", sha256.Sum256(served[name])) }
	for _, name := range []string{"/raw", "/gz", "/zst", "/xz", "/bzip2"} {
		res := extract(name, "sha256:"+digest(name))
		require.Equal(t, action.Success, res.State, "%s: %s", name, res.Message)
		require.Equal(t, map[string]string{
			"device": part.Path, "sha256": digest(name), "entries": "2", "bytes": "5",
		}, res.Output)
		b, err := os.ReadFile(filepath.Join(root, name, "etc/a"))
		require.NoError(t, err)
		require.Equal(t, "etc/a", string(b))
	}

	for _, x := range []struct{ name, digest, want string }{
		{"/gz", digest("/raw"), "SHA-256 is"},
		{"/cut", digest("/cut"), "extracting"},
		{"/none", digest("/raw"), "the server answers 404"},
		{"/raw", "", "digest is missing; set TARFILE_CHECKSUM"},
	} {
		res := extract(x.name, x.digest)
		require.Equal(t, action.Failed, res.State, x.name)
		require.Contains(t, res.Message, x.want)
	}
}
