package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/action"
)

// systemTree makes a folder with everything that the root of an installed system may hold.
func systemTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	long := strings.Repeat("long/", 30) + "ünïcode"
	for _, d := range []string{"bin", "etc/empty", "var/log", "dev", filepath.Dir(long)} {
		require.NoError(t, os.MkdirAll(in(d), 0o755))
	}

	for name, contents := range map[string]string{"bin/su": "setuid", "etc/passwd": "root:x:0:0", "etc/none": "", long: "deep"} {
		require.NoError(t, os.WriteFile(in(name), []byte(contents), 0o600))
	}
	require.NoError(t, os.Link(in("etc/passwd"), in("etc/passwd-")))
	require.NoError(t, os.Link(in("etc/passwd"), in("var/third")))
	for name, target := range map[string]string{"lib": "usr/lib", "etc/absolute": "/etc/passwd", "etc/up": "../../../x", "loop": "loop"} {
		require.NoError(t, os.Symlink(target, in(name)))
	}
	require.NoError(t, unix.Mkfifo(in("dev/fifo"), 0o600))
	require.NoError(t, unix.Mknod(in("dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	require.NoError(t, unix.Mknod(in("dev/sda"), unix.S_IFBLK|0o660, int(unix.Mkdev(8, 0))))

	holes, err := os.Create(in("var/sparse"))
	require.NoError(t, err)
	_, err = holes.WriteAt([]byte("in the middle"), 3*mib)
	require.NoError(t, err)
	require.NoError(t, holes.Truncate(9*mib+1))
	require.NoError(t, holes.Close())
	require.NoError(t, os.WriteFile(in("var/swap"), make([]byte, mib), 0o600))

	require.NoError(t, unix.Lsetxattr(in("etc/passwd"), "user.comment", []byte("a\x00b"), 0))
	require.NoError(t, unix.Lsetxattr(in("var"), "user.folder", []byte("x"), 0))
	require.NoError(t, unix.Lsetxattr(in("lib"), "trusted.link", []byte("y"), 0))
	require.NoError(t, os.Lchown(in("bin/su"), 0, 42))
	require.NoError(t, os.Lchown(in("var/log"), 1000, 1001))
	require.NoError(t, os.Lchown(in("lib"), 1000, 1001))
	require.NoError(t, os.Lchown(in("dev/fifo"), 70000, 70001))
	for name, mode := range map[string]uint32{"bin/su": 0o4755, "var/log": 0o2775, "var": 0o1777, "etc/none": 0, "dev/sda": 0o660} {
		require.NoError(t, unix.Chmod(in(name), mode))
	}
	// A capability, revision 2: cap_net_raw, permitted and effective.
	capability := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	require.NoError(t, unix.Lsetxattr(in("etc/none"), "security.capability", capability, 0))

	n := 0
	require.NoError(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		n++
		times := []unix.Timespec{{Sec: 1}, {Sec: 1_000_000_000 + int64(n), Nsec: int64(n) * 1001}}
		return unix.UtimesNanoAt(unix.AT_FDCWD, p, times, unix.AT_SYMLINK_NOFOLLOW)
	}))
	return dir
}

// describeTree says everything of each file below dir, by its name.
func describeTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}

		text := fmt.Sprintf("mode %o owner %d:%d links %d device %d time %d.%d", st.Mode, st.Uid, st.Gid, st.Nlink, st.Rdev, st.Mtim.Sec,
			st.Mtim.Nsec)
		names := make([]byte, 4096)
		n, err := unix.Llistxattr(p, names)
		if err != nil {
			return err
		}
		list := strings.Split(string(names[:n]), "\x00")
		slices.Sort(list)
		for _, name := range list {
			if name != "" {
				n, err := unix.Lgetxattr(p, name, names)
				if err != nil {
					return err
				}
				text += fmt.Sprintf(" %s=%q", name, names[:n])
			}
		}

		switch {
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			text += " to " + target
		case e.Type().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			// The same blocks: what is sparse stays so, and nothing else gets holes.
			text += fmt.Sprintf(" size %d holes %v sum %x", st.Size, st.Blocks*512 < st.Size, sha256.Sum256(b))
		}
		name, err := filepath.Rel(dir, p)
		all[name] = text
		return err
	}))
	return all
}

// extractAll is what archive2disk does with a stream, into dir.
func extractAll(ctx context.Context, dir, into string, in io.Reader) (extraction, error) {
	x := extraction{ctx: ctx, in: tar.NewReader(in)}
	root, err := openTree(dir)
	if err != nil {
		return x, err
	}
	defer root.close()
	err = x.extractInto(root, into)
	return x, err
}

// What is extracted is what GNU tar extracts, in each of its formats.
func TestArchiveIsExtractedAsGNUTarDoes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("owners, devices and trusted attributes need root")
	}
	source := systemTree(t)
	want := describeTree(t, source)
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
			require.Equal(t, describeTree(t, theirs), describeTree(t, ours), format)
		}
		if format == "posix" {
			require.Equal(t, want, describeTree(t, ours), "what went in")
		}
	}
}

// archiveOf returns an archive of headers; the contents of each file are its name.
func archiveOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		h.Uid, h.Gid, h.ModTime = os.Getuid(), os.Getgid(), time.Unix(1e9, 0)
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte(h.Name))
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
func symlink(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

func hardlink(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
}
func folder(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }

// hostileArchives try to write outside of the folder; outside is one beside it.
func hostileArchives(t testing.TB, outside string) map[string][]byte {
	victim := filepath.Join(outside, "victim")
	return map[string][]byte{
		"dots":                    archiveOf(t, file("../outside/victim")),
		"dots inside":             archiveOf(t, folder("a"), file("a/../../outside/victim")),
		"absolute":                archiveOf(t, file(victim)),
		"absolute link":           archiveOf(t, symlink("l", outside), file("l/victim")),
		"link upwards":            archiveOf(t, symlink("l", "../outside"), file("l/victim")),
		"two links":               archiveOf(t, symlink("a", ".."), symlink("b", "a/outside"), file("b/victim")),
		"link to the file":        archiveOf(t, symlink("l", victim), file("l")),
		"mode through a link":     archiveOf(t, symlink("l", outside), folder("l")),
		"hard link with dots":     archiveOf(t, hardlink("h", "../outside/victim"), file("h")),
		"hard link absolute":      archiveOf(t, hardlink("h", victim)),
		"hard link over a link":   archiveOf(t, symlink("l", outside), hardlink("h", "l/victim")),
		"hard link to a link":     archiveOf(t, symlink("l", victim), hardlink("h", "l"), file("h")),
		"hard link to the root":   archiveOf(t, hardlink("h", "/")),
		"folder behind a link":    archiveOf(t, symlink("l", outside), folder("l/x")),
		"the root is a file":      archiveOf(t, file(".")),
		"link through the kernel": archiveOf(t, symlink("l", "/proc/self/root"+outside), file("l/victim")),
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

// newOutside returns a folder to extract into, and one beside it.
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
			require.ErrorContains(t, err, `has ".."`, name)
		}
	}

	// A link in the file system, and one on the way to the folder itself.
	root, outside := newOutside(t)
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "way")))
	_, err := extractAll(t.Context(), root, "/way/in", bytes.NewReader(archiveOf(t, file("victim"))))
	require.Error(t, err)
	requireUntouched(t, outside, "DEST_PATH")

	// An absolute link means the same as in the installed system.
	root, _ = newOutside(t)
	_, err = extractAll(t.Context(), root, "/new/place", bytes.NewReader(archiveOf(t, folder("usr/lib"), symlink("lib", "/usr/lib"),
		file("lib/x"), file("/y"))))
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(root, "new/place/usr/lib/x"))
	require.FileExists(t, filepath.Join(root, "new/place/y"))
}

// What is wrong with an archive is an error that names the entry.
func TestArchiveThatIsDamaged(t *testing.T) {
	good := archiveOf(t, file("a"), file("etc/b"))
	for name, x := range map[string]struct {
		archive []byte
		want    string
	}{
		"empty":       {nil, "the archive is empty"},
		"only zeros":  {make([]byte, 4096), "the archive is empty"},
		"text":        {bytes.Repeat([]byte("no tar"), 500), "reading the archive behind 0 entries"},
		"cut":         {good[:3*512+2], `entry 2, "etc/b"`},
		"cut header":  {good[:2*512+100], "reading the archive behind 1 entries"},
		"no name":     {archiveOf(t, file("a"), hardlink("b", "missing/c")), `entry 2, "b": its target "missing/c"`},
		"a folder":    {archiveOf(t, file("d/x"), file("d")), `entry 2, "d": removing what is there`},
		"link target": {archiveOf(t, hardlink("h", "none")), `linking it to "none"`},
	} {
		root, _ := newOutside(t)
		_, err := extractAll(t.Context(), root, "/", bytes.NewReader(x.archive))
		require.ErrorContains(t, err, x.want, name)
	}

	stopped, stop := context.WithCancelCause(t.Context())
	stop(errTimedOut)
	root, _ := newOutside(t)
	_, err := extractAll(stopped, root, "/", bytes.NewReader(good))
	require.ErrorIs(t, err, errTimedOut)
}

// The action fetches, extracts, compares the digest of what was served, and reports.
func TestArchive2Disk(t *testing.T) {
	// Padding behind the archive's end, as GNU tar writes it, belongs to the digest.
	archive := append(archiveOf(t, file("etc/a"), symlink("l", "etc/a")), make([]byte, 10240)...)
	served := map[string][]byte{}
	for _, format := range []string{"raw", "gz", "zst", "xz", "bzip2"} {
		served["/"+format] = pack(t, archive, format)
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
	part := extPartition(t, 2, 8192)
	s := newFakeServer(t)
	disks, disk, _ := testDisk(t, 8*mib)
	cfg := s.config()
	cfg.Disks, cfg.Files = disks, &fakeFiles{parts: []Partition{part}, dirs: map[string]string{part.Path: root}}
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
		{"/gz", digest("/raw"), "its SHA-256 is"},
		{"/cut", digest("/cut"), "extracting"},
		{"/none", digest("/raw"), "the server answers 404"},
		{"/raw", "", "give its digest, TARFILE_CHECKSUM"},
	} {
		res := extract(x.name, x.digest)
		require.Equal(t, action.Failed, res.State, x.name)
		require.Contains(t, res.Message, x.want)
	}
}

// FuzzTar: whatever is extracted, nothing outside of the folder changes (security S21).
func FuzzTar(f *testing.F) {
	_, outside := newOutside(f)
	for _, b := range hostileArchives(f, outside) {
		f.Add(b)
	}
	f.Add(archiveOf(f, folder("a"), file("a/b"), hardlink("c", "a/b"), symlink("d", "a"), file("d/e")))
	f.Fuzz(func(t *testing.T, archive []byte) {
		root, outside := newOutside(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // a file may claim petabytes of holes
		defer cancel()
		x, err := extractAll(ctx, root, "/", bytes.NewReader(archive))
		if err == nil && x.entries == 0 {
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
