package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	"github.com/ingotmetal/ingot/workflows"
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
	file := filepath.Join(filepath.Dir(cfg.DataDir), "ingot.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "data_dir: %s\nkey_file: %s\ntemporal: {port: %d, ui_port: %d, mutual_tls: true}\n",
		cfg.DataDir, cfg.KeyFile, ports.temporal, ports.ui), 0o600))
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

	// History, matching and the worker of this site work.
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "elsewhere", TaskQueue: workflows.TaskQueue}, workflows.InspectType, workflows.InspectInput{Machine: "m1"})
	require.NoError(t, err)
	require.ErrorContains(t, run.Get(ctx, nil), "must run under the id")
	// So does the server's own worker, which deletes namespaces and more.
	for polled := false; !polled; {
		d, err := c.WorkflowService().DescribeTaskQueue(ctx, &workflowservice.DescribeTaskQueueRequest{
			Namespace: "temporal-system", TaskQueue: &taskqueuepb.TaskQueue{Name: "default-worker-tq"}, TaskQueueType: enumspb.TASK_QUEUE_TYPE_WORKFLOW,
		})
		require.NoError(t, err)
		polled = len(d.GetPollers()) > 0
	}

	program, err := filepath.Abs("../../.tools/temporal")
	require.NoError(t, err)
	require.FileExists(t, program, "run make deps")
	list := func(env string) (string, error) {
		sh := exec.CommandContext(ctx, "/bin/sh", "-c", env+"\nexec "+shellWord(program)+" workflow list --command-timeout 20s")
		sh.Env = []string{"HOME=" + t.TempDir()}
		out, err := sh.CombinedOutput()
		return string(out), err
	}
	out, err := list("export TEMPORAL_ADDRESS=" + config.Join("127.0.0.1", ports.temporal))
	require.Error(t, err, out)
	copied := filepath.Join(t.TempDir(), "a copy.pem")
	key, err := os.ReadFile(identity)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(copied, key, 0o600))
	for _, args := range [][]string{{}, {"--certificate", copied}} {
		env := printedEnv(t, file, args...)
		require.Equal(t, len(args) == 0, strings.Contains(env, identity))
		out, err := list(env)
		require.NoError(t, err, out)
		require.Contains(t, out, "elsewhere")
	}
	var values map[string]string
	require.NoError(t, json.Unmarshal([]byte(printedEnv(t, file, "--output", "json")), &values))
	require.Equal(t, map[string]string{
		"TEMPORAL_ADDRESS": config.Join("127.0.0.1", ports.temporal), "TEMPORAL_NAMESPACE": "default", "TEMPORAL_TLS": "true",
		"TEMPORAL_TLS_SERVER_NAME": "localhost", "TEMPORAL_TLS_CLIENT_CERT_PATH": identity, "TEMPORAL_TLS_CLIENT_KEY_PATH": identity,
		"TEMPORAL_TLS_SERVER_CA_CERT_PATH": identity,
	}, values)
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
			_, _, problem := s.temporal.where()
			t.Fatal("Temporal is not ready: " + problem)
		}
	}
}

// printedEnv is what "ingot temporal env" prints.
func printedEnv(t *testing.T, file string, args ...string) string {
	t.Helper()
	root := rootCmd()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append([]string{"temporal", "env", "--config", file}, args...))
	require.NoError(t, root.ExecuteContext(t.Context()))
	return out.String()
}

// TestTemporalEnvOfAnotherCluster: what the configuration says of a cluster by
// address, in words that a shell leaves as they are.
func TestTemporalEnvOfAnotherCluster(t *testing.T) {
	cfg := testConfig(t)
	env, err := temporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"TEMPORAL_ADDRESS": "127.0.0.1:7233", "TEMPORAL_NAMESPACE": "default"}, env)

	ca := filepath.Join(t.TempDir(), "it's a CA.pem")
	require.NoError(t, os.WriteFile(ca, []byte("CA"), 0o600))
	cfg.Temporal.Address, cfg.Temporal.TLSCA = "temporal.example:7233", ca
	env, err = temporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"TEMPORAL_ADDRESS": "temporal.example:7233", "TEMPORAL_NAMESPACE": "default", "TEMPORAL_TLS": "true", "TEMPORAL_TLS_SERVER_CA_CERT_PATH": ca,
	}, env)
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "X="+shellWord(ca)+"; printf %s \"$X\"").Output()
	require.NoError(t, err)
	require.Equal(t, ca, string(out))

	cfg.Temporal.Address, cfg.Temporal.MutualTLS = "", true
	_, err = temporalEnv(cfg, "")
	require.ErrorContains(t, err, "no such file")
	_, err = newTemporal(cfg, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	env, err = temporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, cfg.TemporalIdentity(), env["TEMPORAL_TLS_CLIENT_KEY_PATH"])
}
