package filesys

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// errLate ends an extraction.
var errLate = errors.New("late")

// extractAll is what archive2disk does with a stream, into dir.
func extractAll(ctx context.Context, dir, into string, in io.Reader) (*extraction, error) {
	x := NewExtraction(ctx, in)
	root, err := OpenTree(dir)
	if err != nil {
		return x, err
	}
	defer root.Close()
	err = x.ExtractInto(root, into)
	return x, err
}

// What is extracted is what GNU tar extracts, in each of its formats.
func TestArchiveIsExtractedAsGNUTarDoes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("owners, devices and trusted attributes need root")
	}
	source := disktest.SystemTree(t)
	want := disktest.DescribeTree(t, source)
	for _, format := range []string{"posix", "gnu"} {
		args := []string{"-C", source, "--format=" + format, "--sparse", "-cf", "-", "."}
		extract := []string{"--same-owner", "--numeric-owner", "-xpf", "-"}
		if format == "posix" {
			args = append([]string{"--xattrs", "--xattrs-include=*"}, args...)
			extract = append([]string{"--xattrs", "--xattrs-include=*"}, extract...)
		}
		archive, err := exec.Command("tar", args...).Output()
		require.NoError(t, err)

		theirs, ours := t.TempDir(), t.TempDir()
		cmd := exec.Command("tar", append([]string{"-C", theirs}, extract...)...)
		cmd.Stdin = bytes.NewReader(archive)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))

		// A second time over the first gives the same.
		for range 2 {
			old := unix.Umask(0o077)
			_, err = extractAll(t.Context(), ours, "/", bytes.NewReader(archive))
			unix.Umask(old)
			require.NoError(t, err)
			require.Equal(t, disktest.DescribeTree(t, theirs), disktest.DescribeTree(t, ours), format)
		}
		if format == "posix" {
			require.Equal(t, want, disktest.DescribeTree(t, ours), "what went in")
		}
	}
}

// hostileArchives try to write outside of the folder; outside is a folder next to it.
func hostileArchives(t testing.TB, outside string) map[string][]byte {
	victim := filepath.Join(outside, "victim")
	return map[string][]byte{
		"dots":          disktest.Archive(t, disktest.RegularFile("../outside/victim")),
		"dots inside":   disktest.Archive(t, disktest.Folder("a"), disktest.RegularFile("a/../../outside/victim")),
		"absolute":      disktest.Archive(t, disktest.RegularFile(victim)),
		"absolute link": disktest.Archive(t, disktest.Symlink("l", outside), disktest.RegularFile("l/victim")),
		"link upwards":  disktest.Archive(t, disktest.Symlink("l", "../outside"), disktest.RegularFile("l/victim")),
		"two links": disktest.Archive(
			t,
			disktest.Symlink("a", ".."),
			disktest.Symlink("b", "a/outside"),
			disktest.RegularFile("b/victim"),
		),
		"link to the file":        disktest.Archive(t, disktest.Symlink("l", victim), disktest.RegularFile("l")),
		"mode through a link":     disktest.Archive(t, disktest.Symlink("l", outside), disktest.Folder("l")),
		"hard link with dots":     disktest.Archive(t, disktest.Hardlink("h", "../outside/victim"), disktest.RegularFile("h")),
		"hard link absolute":      disktest.Archive(t, disktest.Hardlink("h", victim)),
		"hard link over a link":   disktest.Archive(t, disktest.Symlink("l", outside), disktest.Hardlink("h", "l/victim")),
		"hard link to a link":     disktest.Archive(t, disktest.Symlink("l", victim), disktest.Hardlink("h", "l"), disktest.RegularFile("h")),
		"hard link to the root":   disktest.Archive(t, disktest.Hardlink("h", "/")),
		"folder behind a link":    disktest.Archive(t, disktest.Symlink("l", outside), disktest.Folder("l/x")),
		"the root is a file":      disktest.Archive(t, disktest.RegularFile(".")),
		"link through the kernel": disktest.Archive(t, disktest.Symlink("l", "/proc/self/root"+outside), disktest.RegularFile("l/victim")),
	}
}

// requireUntouched holds outside against what newOutside made.
func requireUntouched(t testing.TB, outside, what string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(outside, "victim"))
	require.NoError(t, err, what)
	require.Equal(t, "as it was", string(b), what)
	st, err := os.Stat(outside)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), st.Mode().Perm(), what)
	var victim unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(outside, "victim"), &victim))
	require.EqualValues(t, 1, victim.Nlink, what)
	list, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, list, 1, what)
}

// newOutside returns a folder to extract into, and one next to it.
func newOutside(t testing.TB) (root, outside string) {
	t.Helper()
	dir := t.TempDir()
	root, outside = filepath.Join(dir, "root"), filepath.Join(dir, "outside")
	for _, d := range []string{root, outside} {
		require.NoError(t, os.Mkdir(d, 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(outside, "victim"), []byte("as it was"), 0o600))
	return root, outside
}

// No archive writes outside of the folder, and none links to what is there (security S21).
func TestArchiveStaysInItsFolder(t *testing.T) {
	_, shape := newOutside(t)
	for name := range hostileArchives(t, shape) {
		root, outside := newOutside(t)
		_, err := extractAll(t.Context(), root, "/", bytes.NewReader(hostileArchives(t, outside)[name]))
		requireUntouched(t, outside, name)
		if strings.Contains(name, "dots") {
			require.ErrorContains(t, err, `contains ".."`, name)
		}
	}

	// A link in the file system, and one on the way to the folder itself.
	root, outside := newOutside(t)
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "way")))
	_, err := extractAll(t.Context(), root, "/way/in", bytes.NewReader(disktest.Archive(t, disktest.RegularFile("victim"))))
	require.Error(t, err)
	requireUntouched(t, outside, "DEST_PATH")

	// An absolute link means the same as in the installed system.
	root, _ = newOutside(t)
	_, err = extractAll(
		t.Context(),
		root,
		"/new/place",
		bytes.NewReader(disktest.Archive(t, disktest.Folder("usr/lib"), disktest.Symlink("lib", "/usr/lib"),
			disktest.RegularFile("lib/x"), disktest.RegularFile("/y"))),
	)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "new/place/usr/lib/x"))
	require.FileExists(t, filepath.Join(root, "new/place/y"))
}

// What is wrong with an archive is an error that names the entry.
func TestArchiveThatIsDamaged(t *testing.T) {
	good := disktest.Archive(t, disktest.RegularFile("a"), disktest.RegularFile("etc/b"))
	for name, x := range map[string]struct {
		archive []byte
		want    string
	}{
		"empty":       {nil, "the archive is empty"},
		"only zeros":  {make([]byte, 4096), "the archive is empty"},
		"text":        {bytes.Repeat([]byte("no tar"), 500), "reading the archive after 0 entries"},
		"cut":         {good[:3*512+2], `entry 2 ("etc/b")`},
		"cut header":  {good[:2*512+100], "reading the archive after 1 entries"},
		"no name":     {disktest.Archive(t, disktest.RegularFile("a"), disktest.Hardlink("b", "missing/c")), `entry 2 ("b"): link target "missing/c"`},
		"a folder":    {disktest.Archive(t, disktest.RegularFile("d/x"), disktest.RegularFile("d")), `entry 2 ("d"): removing the existing file`},
		"link target": {disktest.Archive(t, disktest.Hardlink("h", "none")), `making a hard link to "none"`},
	} {
		root, _ := newOutside(t)
		_, err := extractAll(t.Context(), root, "/", bytes.NewReader(x.archive))
		require.ErrorContains(t, err, x.want, name)
	}

	stopped, stop := context.WithCancelCause(t.Context())
	stop(errLate)
	root, _ := newOutside(t)
	_, err := extractAll(stopped, root, "/", bytes.NewReader(good))
	require.ErrorIs(t, err, errLate)
}

// FuzzTar: whatever is extracted, nothing outside of the folder changes (security S21).
func FuzzTar(f *testing.F) {
	_, outside := newOutside(f)
	for _, b := range hostileArchives(f, outside) {
		f.Add(b)
	}
	f.Add(
		disktest.Archive(
			f,
			disktest.Folder("a"),
			disktest.RegularFile("a/b"),
			disktest.Hardlink("c", "a/b"),
			disktest.Symlink("d", "a"),
			disktest.RegularFile("d/e"),
		),
	)
	f.Fuzz(func(t *testing.T, archive []byte) {
		root, outside := newOutside(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // a file may claim petabytes of holes
		defer cancel()
		x, err := extractAll(ctx, root, "/", bytes.NewReader(archive))
		if err == nil && x.Entries == 0 {
			t.Error("nothing was extracted, and there is no error")
		}
		requireUntouched(t, outside, "fuzz")
		// The owner may be another, and the mode 0: only the root can clean up then.
		_ = filepath.WalkDir(root, func(p string, e fs.DirEntry, _ error) error {
			if e != nil && e.IsDir() {
				return os.Chmod(p, 0o700)
			}
			return nil
		})
	})
}
