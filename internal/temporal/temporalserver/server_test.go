package temporalserver_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.temporal.io/server/schema"
	"google.golang.org/grpc"

	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// dial connects a client through the supervisor to the running child.
func dial(t *testing.T, s *temporalchild.Supervisor, cfg temporalchild.Config) client.Client {
	t.Helper()
	c, err := client.DialContext(testContext(t), client.Options{
		HostPort:          net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Ports.Frontend)),
		Namespace:         cfg.Namespace,
		Logger:            sdklog.NewStructuredLogger(testLogger(t)),
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{grpc.WithContextDialer(s.DialContext)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func describe(
	t *testing.T,
	c client.Client,
	cfg temporalchild.Config,
) (retention time.Duration, attributes map[string]enumspb.IndexedValueType) {
	t.Helper()
	ns, err := c.WorkflowService().DescribeNamespace(testContext(t), &workflowservice.DescribeNamespaceRequest{Namespace: cfg.Namespace})
	if err != nil {
		t.Fatal(err)
	}
	sa, err := c.OperatorService().
		ListSearchAttributes(testContext(t), &operatorservice.ListSearchAttributesRequest{Namespace: cfg.Namespace})
	if err != nil {
		t.Fatal(err)
	}
	return ns.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration(), sa.GetCustomAttributes()
}

func wantKeywords(t *testing.T, got map[string]enumspb.IndexedValueType, names []string) {
	t.Helper()
	for _, name := range names {
		if got[name] != enumspb.INDEXED_VALUE_TYPE_KEYWORD {
			t.Errorf("search attribute %s is %s, want Keyword", name, got[name])
		}
	}
}

// The first start creates everything; the second keeps the identity and updates the namespace.
func TestFirstAndSecondStart(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	s, stop := supervise(t, cfg)
	first := await(t, s)
	c := dial(t, s, cfg)
	retention, attributes := describe(t, c, cfg)
	if retention != 30*24*time.Hour {
		t.Errorf("retention is %s, want 30 days", retention)
	}
	wantKeywords(t, attributes, []string{"IngotMachine", "IngotTemplate", "IngotPhase", "IngotCluster"})

	info, err := c.WorkflowService().GetClusterInfo(testContext(t), &workflowservice.GetClusterInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if info.GetClusterId() != first.ClusterID || info.GetClusterName() != first.ClusterName || info.GetInitialFailoverVersion() == 0 {
		t.Errorf("the server says %s %s %d, its report %+v", info.GetClusterId(), info.GetClusterName(),
			info.GetInitialFailoverVersion(), first)
	}
	if err := temporalchild.Verify(testContext(t), c.WorkflowService(), first.ClusterID); err != nil {
		t.Error(err)
	}
	err = temporalchild.Verify(testContext(t), c.WorkflowService(), "another")
	if err == nil || !strings.Contains(err.Error(), first.ClusterID) {
		t.Errorf("verifying against another cluster's id gave %v", err)
	}
	logMemory(t, first.PID)
	stop()
	if st := s.State(); st.Up {
		t.Errorf("after the end of Run the state is %+v", st)
	}

	cfg.Retention = 7 * 24 * time.Hour
	cfg.SearchAttributes = append(cfg.SearchAttributes, "IngotExtra")
	s, _ = supervise(t, cfg)
	second := await(t, s)
	if second.ClusterID != first.ClusterID || second.ClusterName != first.ClusterName {
		t.Errorf("identity changed from %+v to %+v", first, second)
	}
	retention, attributes = describe(t, dial(t, s, cfg), cfg)
	if retention != cfg.Retention {
		t.Errorf("retention is %s, want %s", retention, cfg.Retention)
	}
	wantKeywords(t, attributes, cfg.SearchAttributes)
	// The attribute can be used at once, not only after the minute for which the server caches
	// attributes.
	_, err = dial(t, s, cfg).ExecuteWorkflow(testContext(t), client.StartWorkflowOptions{
		TaskQueue:             "none",
		TypedSearchAttributes: temporal.NewSearchAttributes(temporal.NewSearchAttributeKeyKeyword("IngotExtra").ValueSet("x")),
	}, "Nothing")
	if err != nil {
		t.Errorf("using an attribute that was added at this start: %v", err)
	}
}

func logMemory(t *testing.T, pid int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Name") || strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "RssAnon") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// A second server in another directory is another site. A second server on the same file is
// refused.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	var servers [2]temporalchild.Server
	var cfg temporalchild.Config
	for i := range servers {
		cfg = testConfig(t)
		r := runChild(t, cfg)
		if r.Ready == nil {
			t.Fatal(r.Failure)
		}
		servers[i] = *r.Ready
	}
	if servers[0].ClusterID == servers[1].ClusterID || servers[0].ClusterName == servers[1].ClusterName {
		t.Errorf("two sites share an identity: %+v", servers)
	}
	other := testConfig(t)
	other.File, other.LockWait = cfg.File, 300*time.Millisecond
	third := runChild(t, other)
	if third.Failure == nil {
		t.Fatalf("a second server on one file is ready: %+v", third.Ready)
	}
	if !strings.Contains(third.Failure.Message, fmt.Sprintf("(pid %d)", servers[1].PID)) {
		t.Errorf("the failure is %+v, want the holder %d named", third.Failure, servers[1].PID)
	}
}

// collect returns both signals that it receives, as "first,second".
func collect(ctx workflow.Context) (string, error) {
	signals := workflow.GetSignalChannel(ctx, "word")
	var first, second string
	signals.Receive(ctx, &first)
	signals.Receive(ctx, &second)
	return first + "," + second, nil
}

// A run that is open when the child is killed continues in the next child; client and worker stay
// connected. While gives its function a context for each life of the child.
func TestRunContinuesAfterKilledChild(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	s, _ := supervise(t, cfg)
	lives := make(chan temporalchild.Server)
	following, stopFollowing := context.WithCancel(testContext(t))
	followed := make(chan error, 1)
	go func() {
		followed <- s.While(following, func(ctx context.Context, srv temporalchild.Server) error {
			lives <- srv
			<-ctx.Done()
			return errors.New("not returned, for the life has ended")
		})
	}()
	before := <-lives
	c := dial(t, s, cfg)
	w := worker.New(c, "queue", worker.Options{WorkerStopTimeout: time.Second})
	w.RegisterWorkflowWithOptions(collect, workflow.RegisterOptions{Name: "Collect"})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	ctx := testContext(t)
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "machine/a", TaskQueue: "queue"}, "Collect")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SignalWorkflow(ctx, run.GetID(), run.GetRunID(), "word", "before"); err != nil {
		t.Fatal(err)
	}

	kill9(t, before.PID)
	st := awaitState(t, s, "the next child", func(st temporalchild.State) bool { return st.Up && st.Server.PID != before.PID })
	if st.Restarts != 1 || st.Server.ClusterID != before.ClusterID {
		t.Errorf("after one kill the state is %+v", st)
	}
	if second := <-lives; second.PID != st.Server.PID {
		t.Errorf("the second life is %+v, want %+v", second, st.Server)
	}
	stopFollowing()
	if err := <-followed; err != nil {
		t.Error(err)
	}
	if err := c.SignalWorkflow(ctx, run.GetID(), run.GetRunID(), "word", "after"); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := run.Get(ctx, &got); err != nil {
		t.Fatal(err)
	}
	if got != "before,after" {
		t.Errorf("the run returned %q", got)
	}
}

// orphan starts a server whose parent is killed as soon as the server is ready. GONE waits for the
// server's end.
func orphan(t *testing.T, cfg temporalchild.Config) (srv temporalchild.Server, gone func()) {
	t.Helper()
	input, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command("/proc/self/exe", parentMode)
	parent.Stdin = strings.NewReader(string(input))
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(stdout).Decode(&srv); err != nil {
		t.Fatal(err)
	}
	gone = processEnd(t, srv.PID)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := parent.Wait(); err == nil {
		t.Error("the killed parent ended without an error")
	}
	return srv, gone
}

// freeze stops a process, or returns false if it has ended.
func freeze(t *testing.T, pid int) bool {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); errors.Is(err, syscall.ESRCH) {
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	for { // until the signal has taken effect, proc(5)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		switch {
		case err != nil, strings.Contains(string(stat), ") Z "), strings.Contains(string(stat), ") X "):
			return false
		case strings.Contains(string(stat), ") T "):
			return true
		}
		time.Sleep(time.Millisecond)
	}
}

// When the parent is killed, the child notices the end of its stdin.
func TestKilledParentLeavesNoChild(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	srv, childGone := orphan(t, cfg)
	// Start a new parent at once, while the orphan may still be stopping: it waits for the lock.
	s, _ := supervise(t, cfg)
	if next := await(t, s); next.ClusterID != srv.ClusterID || next.PID == srv.PID {
		t.Errorf("the next child is %+v, the first was %+v", next, srv)
	}
	childGone()
}

// A frozen orphan does not notice that its parent is gone, and keeps the lock: the next child's
// error names it with a remedy, and the child is started again until the lock is free.
func TestFrozenOrphan(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.LockWait = 200 * time.Millisecond
	// Freeze it while it stops. If it were frozen earlier, the kernel would send it SIGCONT
	// when its parent ends, because its process group becomes orphaned (setpgid(2)).
	srv, childGone := orphan(t, cfg)
	for !freeze(t, srv.PID) { // it had ended already
		srv, childGone = orphan(t, cfg)
	}
	s, _ := supervise(t, cfg)
	st := awaitState(t, s, "two refusals", func(st temporalchild.State) bool { return st.Restarts >= 2 })
	var f *temporalchild.Failure
	if !errors.As(st.Err, &f) {
		t.Fatalf("the error is %v", st.Err)
	}
	if want := fmt.Sprintf("(pid %d), which is stopped", srv.PID); !strings.Contains(f.Holder, want) {
		t.Errorf("the holder is %q, want %q in it", f.Holder, want)
	}
	if want := fmt.Sprintf("kill -KILL %d", srv.PID); !strings.Contains(f.Remedy, want) {
		t.Errorf("the remedy is %q, want %q in it", f.Remedy, want)
	}
	if err := syscall.Kill(srv.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	childGone()
	if next := await(t, s); next.ClusterID != srv.ClusterID || next.PID == srv.PID {
		t.Errorf("the next child is %+v, the first was %+v", next, srv)
	}
}

// A frozen child whose parent lives is detected by failing probes, killed and replaced.
func TestFrozenChildIsReplaced(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	s := superviseWith(t, cfg, temporalchild.Options{ProbeEvery: 100 * time.Millisecond, ProbeTimeout: 2 * time.Second, ProbeFailures: 3})
	before := await(t, s)
	gone := processEnd(t, before.PID)
	if err := syscall.Kill(before.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	gone()
	st := awaitState(t, s, "the next child", func(st temporalchild.State) bool { return st.Up && st.Server.PID != before.PID })
	if st.Server.ClusterID != before.ClusterID {
		t.Errorf("the cluster is %s, it was %s", st.Server.ClusterID, before.ClusterID)
	}
}

// If another server occupies the port, the error names it, it is not used as our server, and our
// server starts when the port is free.
func TestOccupiedPort(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	foreign, err := net.Listen("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Ports.Frontend)))
	if err != nil {
		t.Fatal(err)
	}
	s, _ := supervise(t, cfg)
	st := awaitState(t, s, "a second failure", func(st temporalchild.State) bool { return st.Restarts >= 2 })
	var f *temporalchild.Failure
	if !errors.As(st.Err, &f) {
		t.Fatalf("the error is %v, want a Failure", st.Err)
	}
	if f.Key != "temporal.port" || f.Address != foreign.Addr().String() {
		t.Errorf("the failure is %+v", f)
	}
	if want := fmt.Sprintf("(pid %d)", os.Getpid()); !strings.Contains(f.Holder, want) {
		t.Errorf("the holder is %q, want it to contain %q", f.Holder, want)
	}
	if !strings.Contains(f.Error(), "another Temporal server") {
		t.Errorf("no remedy in %q", f.Error())
	}
	if st.Up {
		t.Error("a server is up without its port")
	}
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	if srv := await(t, s); srv.Frontend != foreign.Addr().String() {
		t.Errorf("the server is at %s", srv.Frontend)
	}
}

// If the UI's port is occupied, Temporal runs without the UI.
func TestOccupiedUIPort(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	foreign, err := net.Listen("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Ports.UI)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := foreign.Close(); err != nil {
			t.Error(err)
		}
	})
	s, _ := supervise(t, cfg)
	await(t, s)
	dial(t, s, cfg)
	if st := s.State(); st.Restarts != 0 || !st.Up {
		t.Errorf("the state is %+v", st)
	}
}

// uiShowsAndChangesNothing checks that the UI of a server works and is read-only.
func uiShowsAndChangesNothing(t *testing.T, srv temporalchild.Server) {
	t.Helper()
	get := func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(testContext(t), method, "http://"+srv.UI+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		for {
			again := req.Clone(testContext(t))
			if again.Body, err = req.GetBody(); err != nil { // an earlier attempt has read it
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(again)
			if errors.Is(err, syscall.ECONNREFUSED) && req.Context().Err() == nil {
				continue // the UI starts in parallel with the server
			}
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode == http.StatusServiceUnavailable && req.Context().Err() == nil {
				if err := resp.Body.Close(); err != nil {
					t.Fatal(err)
				}
				continue // the UI listens, but its backend does not work yet
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(body)
		}
	}
	if code, body := get(http.MethodGet, "/"); code != http.StatusOK || !strings.Contains(strings.ToLower(body), "<!doctype html>") {
		t.Errorf("the page gave %d %.100q", code, body)
	}
	if code, body := get(http.MethodGet, "/api/v1/namespaces/default"); code != http.StatusOK || !strings.Contains(body, srv.ClusterName) {
		t.Errorf("the namespace gave %d %.300q", code, body)
	}
	if code, body := get(http.MethodPost, "/api/v1/namespaces/default/workflows/x"); code < 400 || code >= 500 {
		t.Errorf("starting a workflow gave %d %.300q, want it refused", code, body)
	}
	settings := `"DisableWriteActions":true`
	if code, body := get(http.MethodGet, "/api/v1/settings"); code != http.StatusOK || !strings.Contains(body, settings) {
		t.Errorf("the settings gave %d %.300q, want %s in them", code, body, settings)
	}
}

func openDatabase(t *testing.T, file string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestForeignAndNewerFilesAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ statement, want string }{
		"newer":   {"PRAGMA user_version = 9999", "schema 9999"},
		"foreign": {"CREATE TABLE executions (x)", "was not made by Ingot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t)
			if _, err := openDatabase(t, cfg.File).Exec(test.statement); err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(cfg.File)
			if err != nil {
				t.Fatal(err)
			}
			r := runChild(t, cfg)
			if r.Failure == nil || !strings.Contains(r.Failure.Message, test.want) {
				t.Errorf("the report is %+v, want a failure with %q", r, test.want)
			}
			after, err := os.ReadFile(cfg.File)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(before, after) {
				t.Error("a refused file was changed")
			}
		})
	}
}

// The server does not check the version of its SQLite schema. This test fails if an upgrade of the
// server changes the schema: then raise temporalfile.TemporalSchema or
// temporalfile.VisibilitySchema. Migrations of the first are the server's own scripts.
func TestSchemaMatchesStamp(t *testing.T) {
	t.Parallel()
	h := sha256.New()
	for _, name := range []string{"sqlite/v3/temporal/schema.sql", "sqlite/v3/visibility/schema.sql"} {
		script, err := fs.ReadFile(schema.Assets(), name)
		if err != nil {
			t.Fatal(err)
		}
		h.Write(script)
	}
	const want = "5f52b2917ee755a3f0cf2f91d73e15aee742c818644d7b95cc6af659846b3763" // of stamp 1101
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != want {
		t.Errorf("the server's schema has changed (%s): it needs a new stamp", got)
	}
}

// S9: the server has no authentication, so it must not be reachable from other hosts.
func TestBeyondLoopbackIsRefused(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.Host = "0.0.0.0"
	r := runChild(t, cfg)
	if r.Failure == nil || r.Failure.Key != "temporal.host" || !strings.Contains(r.Failure.Message, "loopback only") {
		t.Errorf("the report is %+v", r)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(cfg.File), "temporal.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused configuration left a file: %v", err)
	}
}
