package keptsocket_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/lab/manager"
)

// serveAt is set in a process of the service: the address where it answers connections with its process ID.
const serveAt = "INGOT_TEST_SERVE_AT"

func TestMain(m *testing.M) {
	addr := os.Getenv(serveAt)
	if addr == "" {
		os.Exit(m.Run())
	}
	l, err := keptsocket.Listen(context.Background(), "tcp4", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := keptsocket.Ready(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() { // the end of standard input is a regular stop
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close()
		os.Exit(0)
	}()
	fmt.Println("serves")
	for {
		c, err := l.Accept()
		if err != nil {
			select {} // closed: the process is about to end
		}
		fmt.Fprint(c, os.Getpid())
		_ = c.Close()
	}
}

// service is a process that listens.
type service struct {
	*exec.Cmd
	stop io.Closer
}

func start(t *testing.T, m *manager.Manager, addr string) service {
	t.Helper()
	command, env, kept, err := m.Service()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], os.Args[0])...)
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = append(append(os.Environ(), env...), serveAt+"="+addr), kept, os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for _, f := range kept {
		require.NoError(t, f.Close())
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // most have ended before
	_, err = out.Read(make([]byte, 16))
	require.NoError(t, err)
	return service{cmd, in}
}

// A connection that arrives after a crash waits for the next process. After a regular stop it is refused.
func TestConnectionsWaitForTheNextProcess(t *testing.T) {
	m, err := manager.New(filepath.Join(t.TempDir(), "notify"))
	require.NoError(t, err)
	defer m.Close()
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	addr := free.Addr().String()
	require.NoError(t, free.Close())

	require.False(t, m.Ready())
	first := start(t, m, addr)
	require.Eventually(t, m.Ready, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, 1, m.Kept())
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()
	c, err := net.Dial("tcp4", addr)
	require.NoError(t, err, "the connection is refused while the service is away")
	defer c.Close()

	second := start(t, m, addr)
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(second.Process.Pid), string(answer))

	require.NoError(t, second.stop.Close())
	require.NoError(t, second.Wait())
	require.Eventually(t, func() bool { return m.Kept() == 0 }, 10*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool { // systemd closes its copy later
		c, err := net.Dial("tcp4", addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, 10*time.Second, 10*time.Millisecond, "a stopped service still accepts connections")
}

// A service manager that does not hear that the service is ready would wait for it forever.
func TestReadyReportsAnError(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	require.NoError(t, keptsocket.Ready(), "without a service manager")

	path := filepath.Join(t.TempDir(), "notify")
	t.Setenv("NOTIFY_SOCKET", path)
	require.ErrorContains(t, keptsocket.Ready(), path)

	m, err := manager.New(path)
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, keptsocket.Ready())
	require.Eventually(t, m.Ready, 10*time.Second, time.Millisecond)
}

// A process binds again what it has just closed, and a port that the previous process had at another address, although the
// service manager closes its copies later.
func TestPortIsBoundAgain(t *testing.T) {
	m, err := manager.New(filepath.Join(t.TempDir(), "notify"))
	require.NoError(t, err)
	defer m.Close()
	_, env, _, err := m.Service()
	require.NoError(t, err)
	name, path, _ := strings.Cut(env[0], "=")
	t.Setenv(name, path)
	addr := "127.0.0.1:0"
	for range 3 {
		l, err := keptsocket.Listen(t.Context(), "tcp", addr)
		require.NoError(t, err)
		addr = l.Addr().String()
		require.Eventually(t, func() bool { return m.Kept() == 1 }, 10*time.Second, 10*time.Millisecond)
		require.NoError(t, l.Close())
	}

	t.Setenv(name, "")
	first := start(t, m, addr)
	require.Eventually(t, func() bool { return m.Kept() == 1 }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	start(t, m, "0.0.0.0:"+port)
}
