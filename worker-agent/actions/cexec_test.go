package actions

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"github.com/stretchr/testify/require"
)

// RunInside implements Commander.
func (l *loopFiles) RunInside(ctx context.Context, root string, words, env []string, log func(string)) (int, error) {
	return filesys.HostFilesystems{}.RunInside(ctx, root, words, env, log)
}

// newSystem returns a disk whose first partition has a system with a shell and a few programs of this host.
func newSystem(t *testing.T) (*loopFiles, disk.FileDisks, *action.Disk) {
	t.Helper()
	const length = 64 * blockdev.MiB
	files, disk, image := disktest.Sparse(t, length+4*blockdev.MiB)
	disktest.NewGPT(t, image, parttable.Span{Start: blockdev.MiB, Size: length, Name: "root"})
	loops := newLoopFiles(t, image, "ext4")

	root := t.TempDir()
	for _, program := range []string{"sh", "cat", "sleep", "id", "ls"} {
		file, err := exec.LookPath(program)
		require.NoError(t, err)
		libraries, err := exec.Command("ldd", file).Output()
		require.NoError(t, err)
		for _, f := range append(strings.Fields(string(libraries)), file) {
			if !strings.HasPrefix(f, "/") {
				continue
			}
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(f)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(root, f), b, 0o755))
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "etc"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/os-release"), []byte("ID=lab\n"), 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "run/devices"), 0o755))
	require.NoError(t, os.Symlink("/run/devices", filepath.Join(root, "dev"))) // stays inside the system

	part := filepath.Join(t.TempDir(), "fs")
	disktest.NewFile(t, part, length)
	disktest.Run(t, "mkfs.ext4", "-q", "-d", root, part)
	disktest.Put(t, part, image, blockdev.MiB)
	return loops, files, disk
}

// mounts returns the mounts of this process below the folders of temporary mounts.
func mounts(t *testing.T) (out []string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, filepath.Join(os.TempDir(), "mnt")) {
			out = append(out, line)
		}
	}
	return out
}

// TestCExec: commands run in the installed system with its files, the agent's devices and their real exit codes, and
// nothing of them is left.
func TestCExec(t *testing.T) {
	loops, files, disk := newSystem(t)
	cfg := Machine{Disks: files, Files: loops}
	before := mounts(t)

	out, log, err := try(t, cfg, action.CExec, disk, map[string]string{
		"CMD_LINE": `cat /etc/os-release; sh -c 'echo "$COLOR $CMD_LINE." >/etc/made; id -u'; ls /dev/null /proc/self/exe /sys/class`,
		"CHROOT":   "y", "COLOR": "deep blue",
	})
	require.NoError(t, err, log)
	require.Equal(t, "3", out["commands"])
	for _, line := range []string{"\nID=lab\n", "\n0\n", "\n/dev/null\n"} {
		require.Contains(t, log, line)
	}
	require.Equal(t, before, mounts(t))

	out, log, err = try(t, cfg, action.CExec, disk, map[string]string{
		"CMD_LINE": `read line </etc/made && echo "it says $line" && exit 7`, "DEFAULT_INTERPRETER": "/usr/bin/sh -c",
	})
	var exit *exitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.code)
	require.ErrorContains(t, err, "command 1 of 1: /usr/bin/sh: exit code 7; see the log")
	require.Contains(t, log, "\nit says deep blue .\n", "cexec's own variables are not the command's")
	require.Empty(t, out["commands"])

	for name, c := range map[string]struct{ command, says string }{
		"no such program": {"frobnicate", `the installed system has no program "frobnicate"`},
		"of this host":    {"/usr/bin/losetup", "the installed system has no program"},
		"the second":      {"id; cat /nowhere; id", "command 2 of 3: cat: exit code 1"},
		"a long line":     {"sh -c 'i=0; while [ $i -lt 20000 ]; do printf 0123456789; i=$((i+1)); done; exit 3'", "exit code 3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, log, err := try(t, cfg, action.CExec, disk, map[string]string{"CMD_LINE": c.command})
			require.ErrorContains(t, err, c.says, log)
			require.Equal(t, before, mounts(t))
		})
	}
}

// S22: the commands see no credential of another action: not in their environment, and not in what is mounted.
func TestS22CommandsSeeNoCredentials(t *testing.T) {
	loops, files, disk := newSystem(t)
	env := map[string]string{
		"CMD_LINE":            `cat /proc/self/environ /proc/self/mounts`,
		"DEFAULT_INTERPRETER": "sh -c", "COLOR": "blue",
	}
	for _, name := range action.Credentials {
		env[name] = "http://user:geheim@192.0.2.1/x"
	}
	_, log, err := try(t, Machine{Disks: files, Files: loops}, action.CExec, disk, env)
	require.NoError(t, err, log)
	require.Contains(t, log, "COLOR=blue", "the environment was not shown")
	require.NotContains(t, log, "geheim")
}

// TestCExecEndsWhatItStarted: an order to stop ends the command, a command's end ends what it left behind, and the file
// system is unmounted.
func TestCExecEndsWhatItStarted(t *testing.T) {
	loops, files, disk := newSystem(t)
	before := mounts(t)
	_, log, err := try(t, Machine{Disks: files, Files: loops}, action.CExec, disk, map[string]string{
		"CMD_LINE": "sleep 4321 >/dev/null 2>&1 & cd /etc; echo left", "DEFAULT_INTERPRETER": "sh -c",
	})
	require.NoError(t, err, log)
	require.Equal(t, before, mounts(t))
	require.Error(t, exec.Command("pgrep", "-f", "^sleep 4321$").Run(), "the process in the background has ended")

	as := action.Assignment{Disk: disk, Action: action.Action{
		Name: "x", Image: action.CExec, Environment: map[string]string{"CMD_LINE": "sleep 4322"},
	}}
	ctx, stop := context.WithTimeoutCause(t.Context(), time.Second, errTimedOut)
	defer stop()
	err = newTask(Machine{Disks: files, Files: loops}, as).perform(ctx, as)
	require.ErrorIs(t, err, errTimedOut)
	require.Equal(t, before, mounts(t))
	require.Error(t, exec.Command("pgrep", "-f", "^sleep 4322$").Run())
}
