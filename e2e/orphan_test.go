package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/lab/freeport"
)

// TestKilledServerLeavesNoOrphan kills "ingot serve" of an unprivileged user with SIGKILL. Its
// Temporal child must end on its own, ready or still starting, with and without file capabilities
// on the program. With file capabilities, the kernel's parent-death signal is lost.
func TestKilledServerLeavesNoOrphan(t *testing.T) {
	ctx := needLab(t)
	for name, capabilities := range map[string]uint32{
		"without file capabilities": 0,
		"with file capabilities":    1<<unix.CAP_NET_RAW | 1<<unix.CAP_NET_BIND_SERVICE,
	} {
		t.Run(name, func(t *testing.T) {
			u := unprivileged(t, capabilities)
			for _, when := range []string{"Temporal is ready", "temporal server started"} {
				serve := u.serve(ctx, t)
				until(ctx, t, when, func() bool { return strings.Contains(u.said(t), when) && len(u.processes(t)) == 2 })
				for _, pid := range u.processes(t) {
					require.Equal(t, capabilities, effective(t, pid), "the capabilities of process %d", pid)
				}
				require.NoError(t, serve.Process.Kill())
				_ = serve.Wait() // it was killed
				until(ctx, t, "no process is left", func() bool { return len(u.processes(t)) == 0 })
				t.Logf("killed when the log said %q: no process is left", when)
			}
			// The next server can use the data at once.
			serve := u.serve(ctx, t)
			until(ctx, t, "the next one is ready", func() bool { return strings.Contains(u.said(t), "Temporal is ready") })
			require.NoError(t, serve.Process.Signal(syscall.SIGTERM))
			require.NoError(t, serve.Wait())
			require.Empty(t, u.processes(t))
		})
	}
}

// user is an unprivileged user with a separate installation on loopback.
type user struct {
	dir, program string
}

// nobodyID is the id of the user nobody.
const nobodyID = 65534

func unprivileged(t *testing.T, capabilities uint32) user {
	t.Helper()
	u := user{dir: keepDir(t)}
	u.program = filepath.Join(u.dir, "ingot")
	copyFile(t, filepath.Join("../bin/ingot"), u.program)
	if capabilities != 0 {
		// Like setcap: linux/capability.h, vfs_cap_data of revision 2, effective.
		var v []byte
		for _, n := range []uint32{0x02000001, capabilities, 0, 0, 0} {
			v = binary.LittleEndian.AppendUint32(v, n)
		}
		require.NoError(t, unix.Setxattr(u.program, "security.capability", v, 0))
	}
	ports, err := freeport.Find(7)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(u.dir, "etc/ingot"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(u.dir, "etc/ingot/ingot.yaml"), fmt.Appendf(nil,
		"listen: 127.0.0.1:%d\ntemporal: {port: %d, ui_port: %d, ui_listen: '127.0.0.1:%d'}\nmin_free_mib: 1\nreserve_mib: 1\n",
		ports, ports+1, ports+5, ports+6), 0o600))
	for _, d := range []string{"", "etc", "etc/ingot", "etc/ingot/ingot.yaml"} {
		require.NoError(t, os.Chown(filepath.Join(u.dir, d), nobodyID, nobodyID))
	}
	return u
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer func() { _ = in.Close() }() // opened only for reading
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
}

// serve starts the server with an empty log.
func (u user) serve(ctx context.Context, t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(ctx, u.program, "serve", "--log-level", "debug")
	c.Dir = u.dir
	c.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + u.dir,
		"XDG_CONFIG_HOME=" + filepath.Join(u.dir, "etc"),
		"XDG_STATE_HOME=" + filepath.Join(u.dir, "state"),
	}
	log, err := os.Create(filepath.Join(u.dir, "log"))
	require.NoError(t, err)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyID, Gid: nobodyID}}
	err = c.Start()
	require.NoError(t, log.Close()) // the process has its own descriptor
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, pid := range u.processes(t) { // the rest of a failed test
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	return c
}

func (u user) said(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(u.dir, "log"))
	require.NoError(t, err)
	return string(b)
}

// processes returns the processes that run this user's program.
func (u user) processes(t *testing.T) (pids []int) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	for _, l := range links {
		// A zombie has no program, and a process that has just ended has no link.
		if to, err := os.Readlink(l); err == nil && to == u.program {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(l)))
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// effective returns the effective capabilities of a process.
func effective(t *testing.T, pid int) uint32 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(b), "CapEff:")
	require.True(t, ok)
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	require.NoError(t, err)
	return uint32(n)
}
