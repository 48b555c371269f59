package temporalserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporal/temporalserver"
)

// parentMode makes the test binary a minimal "ingot serve" for tests that kill the parent.
const parentMode = "test-parent"

// TestMain lets the test binary execute itself as the child, as cmd/ingot does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case temporalchild.Subcommand:
			if err := temporalserver.ChildMain(os.Stdin, os.NewFile(temporalchild.ReadyFD, "ready"), os.Stderr); err != nil {
				os.Exit(1)
			}
			os.Exit(0)
		case parentMode:
			fmt.Fprintln(os.Stderr, parentMain())
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// parentMain reads a Config from stdin, supervises a child, and prints each Server that is ready.
func parentMain() error {
	var cfg temporalchild.Config
	if err := json.NewDecoder(os.Stdin).Decode(&cfg); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := temporalchild.New(cfg, temporalchild.Options{Logger: logger})
	if err != nil {
		return err
	}
	ctx := context.Background()
	go func() { _ = s.Run(ctx) }() // never fails
	return s.While(ctx, func(ctx context.Context, srv temporalchild.Server) error {
		if err := json.NewEncoder(os.Stdout).Encode(srv); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
}

// patience ends a test that hangs; everything should be much faster.
const patience = 60 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// testConfig returns a server in a temporary directory, on ports that were free a moment ago. They
// are below the range from which the kernel gives ports to clients.
func testConfig(t *testing.T) temporalchild.Config {
	t.Helper()
	cfg := temporalchild.DefaultConfig(t.TempDir())
	var ports []int
	for len(ports) < 5 {
		port := 10000 + rand.IntN(20000)
		l, err := net.Listen("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}()
		ports = append(ports, port)
	}
	cfg.Ports = temporalchild.Ports{Frontend: ports[0], History: ports[1], Matching: ports[2], Worker: ports[3], UI: ports[4]}
	return cfg
}

// supervise runs a supervisor until the test ends, and waits until it has ended.
func supervise(t *testing.T, cfg temporalchild.Config) (s *temporalchild.Supervisor, stop func()) {
	t.Helper()
	return start(t, cfg, temporalchild.Options{})
}

func superviseWith(t *testing.T, cfg temporalchild.Config, opts temporalchild.Options) *temporalchild.Supervisor {
	t.Helper()
	s, _ := start(t, cfg, opts)
	return s
}

func start(t *testing.T, cfg temporalchild.Config, opts temporalchild.Options) (s *temporalchild.Supervisor, stop func()) {
	t.Helper()
	opts.Logger, opts.BackoffMin, opts.BackoffMax = testLogger(t), 50*time.Millisecond, 200*time.Millisecond
	s, err := temporalchild.New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(stop)
	return s, stop
}

func await(t *testing.T, s *temporalchild.Supervisor) temporalchild.Server {
	t.Helper()
	srv, err := s.Await(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return srv
}

// awaitState waits for a state for which fits returns true.
func awaitState(t *testing.T, s *temporalchild.Supervisor, what string, fits func(temporalchild.State) bool) temporalchild.State {
	t.Helper()
	ctx := testContext(t)
	for {
		st, changed := s.Watch()
		if fits(st) {
			return st
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("waiting for %s: state is %+v", what, st)
		}
	}
}

func kill9(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// processEnd returns a function that waits for the end of a process that is not a child of this
// process.
func processEnd(t *testing.T, pid int) (wait func()) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	return func() {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
			switch {
			case err == unix.EINTR:
			case err != nil:
				t.Fatal(err)
			case n == 0:
				t.Fatalf("process %d still runs", pid)
			default:
				return
			}
		}
	}
}

func testLogger(t *testing.T) *slog.Logger {
	t.Helper()
	w := &testWriter{t: t}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// testWriter writes to the test's log until the test ends.
type testWriter struct {
	mu sync.Mutex
	t  *testing.T
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Log(strings.TrimRight(string(p), "\n"))
	}
	return len(p), nil
}

func (w *testWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t = nil
}

// runChild returns the last of reports, without those of a busy child.
func runChild(t *testing.T, cfg temporalchild.Config) temporalchild.Report {
	t.Helper()
	all := reports(t, cfg)
	return all[len(all)-1]
}

// reports runs one child without a supervisor. It returns the child's reports until it is ready or
// gives up. The child is stopped when the test ends.
func reports(t *testing.T, cfg temporalchild.Config) (all []temporalchild.Report) {
	t.Helper()
	reportR, reportW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdinR, stdinW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	proc, err := os.StartProcess("/proc/self/exe", []string{filepath.Base(os.Args[0]), temporalchild.Subcommand}, &os.ProcAttr{
		Files: []*os.File{stdinR, os.Stderr, os.Stderr, reportW},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []io.Closer{stdinR, reportW} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := stdinW.Close(); err != nil {
			t.Error(err)
		}
		if _, err := proc.Wait(); err != nil {
			t.Error(err)
		}
		if err := reportR.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := json.NewEncoder(stdinW).Encode(cfg); err != nil {
		t.Fatal(err)
	}
	if err := reportR.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(reportR); ; {
		var r temporalchild.Report
		if err := d.Decode(&r); err != nil {
			t.Fatalf("reading the child's report: %v", err)
		}
		if all = append(all, r); r.Busy == nil {
			return all
		}
	}
}
