package disktest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// SystemTree creates a folder with every kind of file that the root of an installed system may contain.
func SystemTree(t *testing.T) string {
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
	_, err = holes.WriteAt([]byte("in the middle"), 3*blockdev.MiB)
	require.NoError(t, err)
	require.NoError(t, holes.Truncate(9*blockdev.MiB+1))
	require.NoError(t, holes.Close())
	require.NoError(t, os.WriteFile(in("var/swap"), make([]byte, blockdev.MiB), 0o600))

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

// DescribeTree returns a description of all properties of each file below dir, by relative path.
func DescribeTree(t *testing.T, dir string) map[string]string {
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
			// Compare only whether there are holes: sparse files must stay sparse, and no other file may get holes.
			text += fmt.Sprintf(" size %d holes %v sum %x", st.Size, st.Blocks*512 < st.Size, sha256.Sum256(b))
		}
		name, err := filepath.Rel(dir, p)
		all[name] = text
		return err
	}))
	return all
}
