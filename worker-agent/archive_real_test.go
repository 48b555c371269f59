package agent

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
)

// An archive of GNU tar, extracted into an empty file system of the real kernel, is there with
// everything after the file system was mounted again.
func TestArchive2DiskOnARealFileSystem(t *testing.T) {
	const length = 64 * mib
	files, disk, image := sparse(t, length+4*mib)
	newGPT(t, image, span{start: mib, size: length, name: "root"})
	loops := newLoopFiles(t, image, "ext4")
	part := filepath.Join(t.TempDir(), "fs")
	newFile(t, part, length)
	sh(t, "mkfs.ext4", "-q", part)
	put(t, part, image, mib)

	source := systemTree(t)
	archive, err := exec.Command("tar", "-C", source, "--format=posix", "--xattrs", "--xattrs-include=*", "--sparse", "-czf", "-", ".").
		Output()
	require.NoError(t, err)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(archive))
	}))
	defer web.Close()

	out, log, err := try(t, Config{Disks: files, Files: loops}, action.Archive2Disk, disk, map[string]string{
		"ARCHIVE_URL": web.URL + "/root.tar.gz", "TARFILE_CHECKSUM": fmt.Sprintf("%x", sha256.Sum256(archive)),
		"PARTITION": "PARTLABEL=root", "DEST_PATH": "/system",
	})
	require.NoError(t, err, log)
	want := describeTree(t, source)
	require.Equal(t, fmt.Sprint(len(want)), out["entries"])

	parts, err := loops.Partitions(t.Context(), "")
	require.NoError(t, err)
	dir, unmount, err := loops.Mount(t.Context(), parts[0].Path, "ext4", true)
	require.NoError(t, err)
	got := describeTree(t, filepath.Join(dir, "system"))
	require.NoError(t, unmount())
	require.Equal(t, want, got)
	sh(t, "e2fsck", "-fn", parts[0].Path)
}
