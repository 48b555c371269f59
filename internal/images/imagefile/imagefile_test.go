package imagefile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

var lab = flag.Bool("lab", false, "run the test that needs root and makes a mount namespace")

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// added returns the image of a file as it is now.
func added(t *testing.T, f *Files, path string) inventory.Image {
	t.Helper()
	x, err := f.OpenShared(path)
	require.NoError(t, err)
	defer x.Close()
	sum, err := x.SHA256()
	require.NoError(t, err)
	return inventory.Image{Name: "i", File: sum, SHA256: sum, Size: x.state.size, InPlace: x.Place(path)}
}

func content(t *testing.T, file *os.File, err error) string {
	t.Helper()
	require.NoError(t, err)
	b, err := io.ReadAll(file)
	require.NoError(t, errors.Join(err, file.Close()))
	return string(b)
}

// S51: a path stays in its share, whatever links are there, and only regular files are opened.
func TestS51SharesAreConfined(t *testing.T) {
	dir := t.TempDir()
	share, outside := filepath.Join(dir, "share"), filepath.Join(dir, "outside")
	write(t, filepath.Join(share, "a.raw"), "a")
	write(t, filepath.Join(share, "sub", "b.raw"), "b")
	write(t, outside, "secret")
	for link, to := range map[string]string{
		"absolute": outside, "up": "../outside", "inside": "sub/b.raw", "loop": "loop", "dir": dir,
	} {
		require.NoError(t, os.Symlink(to, filepath.Join(share, link)))
	}
	require.NoError(t, syscall.Mkfifo(filepath.Join(share, "fifo"), 0o644))
	f := New("", []string{"/nowhere", share})
	for _, name := range []string{"a.raw", "sub/b.raw", "inside"} {
		x, err := f.OpenShared(filepath.Join(share, name))
		require.NoError(t, err, name)
		require.NoError(t, x.Close())
	}
	for path, want := range map[string]error{
		filepath.Join(share, "absolute"):       inventory.ErrInvalid,
		filepath.Join(share, "up"):             inventory.ErrInvalid,
		filepath.Join(share, "loop"):           inventory.ErrInvalid,
		filepath.Join(share, "dir", "outside"): inventory.ErrInvalid,
		filepath.Join(share, "fifo"):           inventory.ErrInvalid,
		filepath.Join(share, "sub"):            inventory.ErrInvalid,
		share:                                  inventory.ErrInvalid,
		share + "/../outside":                  inventory.ErrInvalid,
		outside:                                inventory.ErrInvalid,
		share + "x/a.raw":                      inventory.ErrInvalid,
		"a.raw":                                inventory.ErrInvalid,
		filepath.Join(share, "missing"):        inventory.ErrNotFound,
		"/nowhere/a.raw":                       inventory.ErrNotFound,
	} {
		x, err := f.OpenShared(path)
		require.ErrorIs(t, err, want, path)
		require.Nil(t, x.File, path)
	}
	_, err := New("", nil).OpenShared(filepath.Join(share, "a.raw"))
	require.ErrorContains(t, err, "images.shares")
}

// S51: a file in place is served while it has the content that it was added with. Its digest is computed
// again only after it was written or touched.
func TestInPlace(t *testing.T) {
	dir, share := t.TempDir(), t.TempDir()
	path := filepath.Join(share, "a.raw")
	write(t, path, "the image")
	f := New(dir, []string{share})
	i := added(t, f, path)
	none := func(context.Context) ([]inventory.Image, error) { return nil, nil }
	all := func(context.Context) ([]inventory.Image, error) { return []inventory.Image{{Name: "other"}, i}, nil }
	file, err := f.Open(i)
	require.Equal(t, "the image", content(t, file, err))
	file, err = f.OpenDigest(t.Context(), "i", i.SHA256, all)
	require.Equal(t, "the image", content(t, file, err))
	_, err = f.OpenDigest(t.Context(), "i", i.SHA256, none)
	require.ErrorIs(t, err, inventory.ErrNotFound)

	// Only its times have changed.
	require.NoError(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
	file, err = f.Open(i)
	require.Equal(t, "the image", content(t, file, err))

	// Other content of the same length, with the time set back: ctime shows it.
	write(t, path, "an image!")
	require.NoError(t, os.Chtimes(path, i.InPlace.ModTime, i.InPlace.ModTime))
	for range 2 {
		_, err = f.Open(i)
		require.ErrorIs(t, err, inventory.ErrConflict)
		require.ErrorContains(t, err, path+" has changed since it was added")
	}
	_, err = f.OpenDigest(t.Context(), "i", i.SHA256, all)
	require.ErrorIs(t, err, inventory.ErrConflict)
	// A server that was started after that believes size and time, and the agent's check of the digest is left.
	// With another size or time it looks.
	require.NoError(t, os.Chtimes(path, time.Unix(2, 0), time.Unix(2, 0)))
	_, err = New(dir, []string{share}).Open(i)
	require.ErrorIs(t, err, inventory.ErrConflict)

	write(t, path, "the image") // it is put back
	file, err = f.Open(i)
	require.Equal(t, "the image", content(t, file, err))
	require.NoError(t, os.Remove(path))
	_, err = f.Open(i)
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "mount the share")

	// A file of the same digest in the image directory is served, too.
	write(t, filepath.Join(dir, i.SHA256), "the image")
	file, err = f.OpenDigest(t.Context(), "i", i.SHA256, all)
	require.Equal(t, "the image", content(t, file, err))
	require.Equal(t, sumOf("the image"), i.SHA256)
}

func TestAFileThatIsBeingWritten(t *testing.T) {
	share := t.TempDir()
	path := filepath.Join(share, "a.raw")
	write(t, path, "half")
	x, err := New("", []string{share}).OpenShared(path)
	require.NoError(t, err)
	defer x.Close()
	require.NoError(t, x.Unchanged())
	write(t, path, "half and half")
	require.ErrorIs(t, x.Unchanged(), inventory.ErrConflict)
	_, err = x.SHA256()
	require.ErrorIs(t, err, inventory.ErrConflict)
}

const inNamespace = "INGOT_IMAGEFILE_LAB"

// A share that is mounted read-only, as an NFS export is, serves its files; without the mount they are
// missing, and nothing else is served.
func TestLabReadOnlyMount(t *testing.T) {
	if share := os.Getenv(inNamespace); share != "" {
		path := filepath.Join(share, "a.raw")
		f := New(t.TempDir(), []string{share})
		require.Error(t, os.WriteFile(path, nil, 0o644), "the mount is read-only")
		i := added(t, f, path)
		file, err := f.Open(i)
		require.Equal(t, "the image", content(t, file, err))
		require.NoError(t, syscall.Unmount(share, 0))
		_, err = f.Open(i)
		require.ErrorIs(t, err, inventory.ErrConflict)
		return
	}
	if !*lab {
		t.Skip("needs root and a mount namespace: go test -lab")
	}
	dir := t.TempDir()
	export, share := filepath.Join(dir, "export"), filepath.Join(dir, "share")
	write(t, filepath.Join(export, "a.raw"), "the image")
	require.NoError(t, os.Mkdir(share, 0o755))
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-ec",
		`mount --bind "$1" "$2"; mount -o remount,bind,ro "$2"; exec "$3" -test.run "^$4\$" -test.v`,
		"sh", export, share, os.Args[0], t.Name())
	cmd.Env = append(os.Environ(), inNamespace+"="+share)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.True(t, strings.Contains(string(out), "--- PASS: "+t.Name()), "the test ran in the namespace")
}
