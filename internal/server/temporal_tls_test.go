package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestS57TemporalAsksForACertificate: on a host whose loopback others share, no
// program without the certificate in the data directory reaches any port of
// the embedded server. Its own parts, this server and the temporal command do.
func TestS57TemporalAsksForACertificate(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // ends a test that hangs
	defer cancel()
	ports, err := freePorts()
	require.NoError(t, err)
	cfg := testConfig(t)
	cfg.Temporal.MutualTLS, cfg.Temporal.Port, cfg.Temporal.UIPort = true, ports.temporal, ports.ui
	c := startedTemporal(ctx, t, cfg)

	identity := cfg.TemporalIdentity()
	for path, want := range map[string]fs.FileMode{identity: 0o600, filepath.Dir(identity): 0o700} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), path)
	}

	strange, err := embeddedTLS(filepath.Join(t.TempDir(), "strange.pem"))
	require.NoError(t, err)
	strange.InsecureSkipVerify = true
	own, err := embeddedTLS(identity)
	require.NoError(t, err)
	for port := ports.temporal; port < ports.temporal+4; port++ {
		for name, creds := range map[string]credentials.TransportCredentials{
			"without TLS":                      insecure.NewCredentials(),
			"with TLS and no certificate":      credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}),
			"with a certificate of its own":    credentials.NewTLS(strange),
			"with the certificate of the site": credentials.NewTLS(own),
		} {
			conn, err := grpc.NewClient(config.Join("127.0.0.1", port), grpc.WithTransportCredentials(creds))
			require.NoError(t, err)
			_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			require.NoError(t, conn.Close())
			if strings.HasSuffix(name, "of the site") {
				require.NotEqual(t, codes.Unavailable, status.Code(err), "port %d, %s: %v", port, name, err)
			} else {
				require.Equal(t, codes.Unavailable, status.Code(err), "port %d, %s: %v", port, name, err)
			}
		}
	}
	_, err = net.Dial("tcp", config.Join("127.0.0.1", ports.ui))
	require.Error(t, err, "the UI would show everything to everybody")
	uiOnSocket(ctx, t, filepath.Join(filepath.Dir(identity), "ui.sock"))
	t.Run("a second local user", func(t *testing.T) { refuseSecondUser(ctx, t, cfg.DataDir, identity) })

	// History, matching and the worker of this site work.
	run, err := c.ExecuteWorkflow(
		ctx,
		client.StartWorkflowOptions{ID: "elsewhere", TaskQueue: workflows.TaskQueue},
		inventory.TypeInspect,
		contract.InspectInput{Machine: "m1"},
	)
	require.NoError(t, err)
	require.ErrorContains(t, run.Get(ctx, nil), "must run under the id")
	// So does the server's own worker, which deletes namespaces and more.
	for polled := false; !polled; {
		d, err := c.WorkflowService().DescribeTaskQueue(ctx, &workflowservice.DescribeTaskQueueRequest{
			Namespace:     "temporal-system",
			TaskQueue:     &taskqueuepb.TaskQueue{Name: "default-worker-tq"},
			TaskQueueType: enumspb.TASK_QUEUE_TYPE_WORKFLOW,
		})
		require.NoError(t, err)
		polled = len(d.GetPollers()) > 0
	}

	program, err := filepath.Abs("../../.tools/temporal")
	require.NoError(t, err)
	require.FileExists(t, program, "run make deps")
	list := func(env map[string]string) (string, error) {
		c := exec.CommandContext(ctx, program, "workflow", "list", "--command-timeout", "20s")
		c.Env = []string{"HOME=" + t.TempDir()}
		for name, value := range env {
			c.Env = append(c.Env, name+"="+value)
		}
		out, err := c.CombinedOutput()
		return string(out), err
	}
	out, err := list(map[string]string{"TEMPORAL_ADDRESS": config.Join("127.0.0.1", ports.temporal)})
	require.Error(t, err, out)
	copied := filepath.Join(t.TempDir(), "a copy.pem")
	key, err := os.ReadFile(identity)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(copied, key, 0o600))
	for certificate, file := range map[string]string{"": identity, copied: copied} {
		env, err := TemporalEnv(cfg, certificate)
		require.NoError(t, err)
		require.Equal(t, map[string]string{
			"TEMPORAL_ADDRESS": config.Join("127.0.0.1", ports.temporal), "TEMPORAL_NAMESPACE": "default", "TEMPORAL_TLS": "true",
			"TEMPORAL_TLS_SERVER_NAME": "localhost", "TEMPORAL_TLS_CLIENT_CERT_PATH": file, "TEMPORAL_TLS_CLIENT_KEY_PATH": file,
			"TEMPORAL_TLS_SERVER_CA_CERT_PATH": file,
		}, env)
		out, err := list(env)
		require.NoError(t, err, out)
		require.Contains(t, out, "elsewhere")
	}
}

// uiOnSocket checks that the UI works on a socket that only this user can open, and that it only reads.
func uiOnSocket(ctx context.Context, t *testing.T, socket string) {
	t.Helper()
	ui := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return temporalchild.DialUI(ctx, socket)
	}}}
	ask := func(method, path string) (int, string) {
		for { // the UI starts in parallel with the server
			r, err := http.NewRequestWithContext(ctx, method, "http://ui"+path, nil)
			require.NoError(t, err)
			resp, err := ui.Do(r)
			if err != nil {
				require.NoError(t, ctx.Err())
				continue
			}
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, errors.Join(err, resp.Body.Close()))
			if resp.StatusCode != http.StatusServiceUnavailable {
				return resp.StatusCode, string(body)
			}
		}
	}
	code, body := ask(http.MethodGet, "/api/v1/namespaces/default")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, body, `"name": "default"`)
	code, body = ask(http.MethodGet, "/")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, strings.ToLower(body), "<!doctype html>")
	code, body = ask(http.MethodPost, "/api/v1/namespaces/default/workflows/x/cancel")
	require.Equal(t, http.StatusMethodNotAllowed, code, body)

	info, err := os.Stat(socket)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
}

// startedTemporal runs the child and the worker of a server until the test
// ends, and returns the server's own client.
func startedTemporal(ctx context.Context, t *testing.T, cfg config.Config) client.Client {
	t.Helper()
	s := testServer(t, cfg)
	stop := s.temporal.supervise(ctx)
	working, stopWorking := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.temporal.Run(working, s.do) }()
	t.Cleanup(func() {
		stopWorking()
		require.NoError(t, <-done)
		require.NoError(t, stop())
	})
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		if c, ok := s.temporal.Client(); ok {
			return c
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal("Temporal is not ready: " + s.temporal.status().Error)
		}
	}
}

// refuseSecondUser checks that another user of the host can read neither the files of Temporal and its processes, nor connect to the
// socket of its UI. The same commands work for the server's own user, so that a refusal is not a wrong path.
func refuseSecondUser(ctx context.Context, t *testing.T, dir, identity string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	for up := dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		require.NoError(t, os.Chmod(up, 0o755)) // #nosec G302 -- only what Ingot itself protects must stop the other user
	}
	entries, err := os.ReadDir(filepath.Dir(identity))
	require.NoError(t, err)
	child := ""
	threads, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	for _, file := range threads {
		if b, err := os.ReadFile(file); err == nil && child == "" { // a thread may have ended
			child, _, _ = strings.Cut(string(b), " ")
		}
	}
	require.NotEmpty(t, child)
	scripts := []string{
		"cat /proc/" + child + "/environ", "ls /proc/" + child + "/fd", "cat /proc/" + child + "/maps",
		`perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un($ARGV[0])) or die "$!"' ` +
			filepath.Join(filepath.Dir(identity), "ui.sock"),
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			scripts = append(scripts, "cat "+filepath.Join(filepath.Dir(identity), e.Name()))
		}
	}
	for _, script := range scripts {
		own, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput()
		require.NoError(t, err, "%s: %s", script, own)
		other := exec.CommandContext(ctx, "sh", "-c", script)
		other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := other.CombinedOutput()
		require.Error(t, err, "%s: %s", script, out)
		require.Contains(t, string(out), "Permission denied", script)
	}
}
