package actions

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

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"github.com/stretchr/testify/require"
)

// An archive of GNU tar, extracted into an empty file system of the real kernel, is there with
// everything after the file system was mounted again.
func TestArchive2DiskOnARealFileSystem(t *testing.T) {
	const length = 64 * blockdev.MiB
	files, disk, image := disktest.Sparse(t, length+4*blockdev.MiB)
	disktest.NewGPT(t, image, parttable.Span{Start: blockdev.MiB, Size: length, Name: "root"})
	loops := newLoopFiles(t, image, "ext4")
	part := filepath.Join(t.TempDir(), "fs")
	disktest.NewFile(t, part, length)
	disktest.Run(t, "mkfs.ext4", "-q", part)
	disktest.Put(t, part, image, blockdev.MiB)

	source := disktest.SystemTree(t)
	archive, err := exec.Command("tar", "-C", source, "--format=posix", "--xattrs", "--xattrs-include=*", "--sparse", "-czf", "-", ".").
		Output()
	require.NoError(t, err)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(archive))
	}))
	defer web.Close()

	out, log, err := try(t, Machine{Disks: files, Files: loops}, action.Archive2Disk, disk, map[string]string{
		"ARCHIVE_URL": web.URL + "/root.tar.gz", "TARFILE_CHECKSUM": fmt.Sprintf("%x", sha256.Sum256(archive)),
		"PARTITION": "PARTLABEL=root", "DEST_PATH": "/system",
	})
	require.NoError(t, err, log)
	want := disktest.DescribeTree(t, source)
	require.Equal(t, fmt.Sprint(len(want)), out["entries"])

	parts, err := loops.Partitions(t.Context(), "")
	require.NoError(t, err)
	dir, unmount, err := loops.Mount(t.Context(), parts[0].Path, "ext4", true)
	require.NoError(t, err)
	got := disktest.DescribeTree(t, filepath.Join(dir, "system"))
	require.NoError(t, unmount())
	require.Equal(t, want, got)
	disktest.Run(t, "e2fsck", "-fn", parts[0].Path)
}
