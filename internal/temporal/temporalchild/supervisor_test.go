package temporalchild

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary execute itself as a child with the behavior in its second argument.
// Package temporalserver tests the real server; these tests are about the supervisor.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == Subcommand {
		os.Exit(fakeChild(os.Args[2]))
	}
	os.Exit(m.Run())
}

func fakeChild(behaviour string) int {
	report := os.NewFile(ReadyFD, "report")
	d := json.NewDecoder(os.Stdin)
	var cfg Config
	if err := d.Decode(&cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	switch behaviour {
	case "fails":
		if err := WriteReport(report,
			Report{Failure: &Failure{Message: "occupied", Remedy: "free it", Key: "temporal.port"}}); err != nil {
			return 1
		}
		return 1
	case "panics":
		fmt.Fprintln(os.Stderr, `{"level":"ERROR","msg":"about to fall over","err":"gravity"}`)
		panic("this child was told to")
	case "secret":
		fmt.Fprintln(os.Stderr, "environment:", strings.Join(os.Environ(), " "))
		return 1
	case "silent":
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
		select {} // neither becomes ready nor ends
	case "busy", "hangs":
		if err := WriteReport(report, Report{Busy: &Busy{With: "migrating"}}); err != nil {
			return 1
		}
		if behaviour == "busy" {
			// Take longer than the parent waits.
			time.Sleep(3 * busyWait / 2)
		}
		if err := WriteReport(report, Report{Busy: &Busy{}}); err != nil {
			return 1
		}
		if behaviour == "hangs" {
			select {}
		}
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(conn, os.Getpid()) // the client may have disconnected
			_ = conn.Close()
		}
	}()
	if err := WriteReport(report, Report{Ready: &Server{Frontend: l.Addr().String(), ClusterID: cfg.Namespace}}); err != nil {
		return 1
	}
	if behaviour == "deaf" {
		select {} // ignores the end of stdin
	}
	_, _ = io.Copy(io.Discard, io.MultiReader(d.Buffered(), os.Stdin)) // until the parent closes it
	fmt.Fprintln(os.Stderr, `{"level":"INFO","msg":"child ends in order","n":1}`)
	return 0
}

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const patience = 30 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// supervise runs a supervisor with a child of the given behavior.
func supervise(t *testing.T, behaviour string, opts Options) (s *Supervisor, stop func(), log *logBuffer) {
	t.Helper()
	log = &logBuffer{}
	opts.Command = []string{"/proc/self/exe", Subcommand, behaviour}
	opts.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if opts.BackoffMin == 0 {
		opts.BackoffMin, opts.BackoffMax = time.Millisecond, 10*time.Millisecond
	}
	cfg := DefaultConfig(t.TempDir())
	cfg.Namespace = "fake"
	s, err := New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run returned %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not return")
		}
		if t.Failed() {
			t.Log(log)
		}
	})
	t.Cleanup(stop)
	return s, stop, log
}

func awaitState(t *testing.T, s *Supervisor, fits func(State) bool) State {
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
			t.Fatalf("the state stays %+v", st)
		}
	}
}

func TestChildStopsInOrder(t *testing.T) {
	t.Parallel()
	s, stop, log := supervise(t, "good", Options{})
	srv, err := s.Await(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if srv.PID == 0 || srv.ClusterID != "fake" {
		t.Errorf("the server is %+v; the child gets the configuration and has a process id", srv)
	}
	stop()
	if !strings.Contains(log.String(), `level=INFO msg="temporal server" message="child ends in order" n=1`) {
		t.Error("the child's last line, with its level, is not in the log")
	}
	if err := syscall.Kill(srv.PID, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the child is still there: %v", err)
	}
}

func TestSignalsForTheTerminalDoNotReachTheChild(t *testing.T) {
	t.Parallel()
	s, _, _ := supervise(t, "good", Options{})
	srv, err := s.Await(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	group, err := syscall.Getpgid(srv.PID)
	if err != nil {
		t.Fatal(err)
	}
	if group != srv.PID {
		t.Errorf("the child is in process group %d, want its own, %d", group, srv.PID)
	}
}

func TestKillsAChildThatDoesNotStop(t *testing.T) {
	t.Parallel()
	s, stop, log := supervise(t, "deaf", Options{StopWait: 10 * time.Millisecond})
	srv, err := s.Await(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := syscall.Kill(srv.PID, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the child is still there: %v", err)
	}
	if !strings.Contains(log.String(), "did not stop in time") {
		t.Error("the log does not say that it was killed")
	}
}

func TestKillsAChildThatIsNeverReady(t *testing.T) {
	t.Parallel()
	s, _, _ := supervise(t, "silent", Options{StartWait: 10 * time.Millisecond, StopWait: 10 * time.Millisecond})
	st := awaitState(t, s, func(st State) bool { return st.Restarts >= 2 })
	if st.Err == nil || !strings.Contains(st.Err.Error(), "not ready after") {
		t.Errorf("the error is %v", st.Err)
	}
}

// busyWait is how long the parent waits for a busy child.
const busyWait = time.Second

// A migration that takes longer than StartWait is not interrupted and restarted; the log says what
// the child is doing.
func TestBusyChildGetsMoreTime(t *testing.T) {
	t.Parallel()
	s, _, log := supervise(t, "busy", Options{StartWait: busyWait, StopWait: 10 * time.Millisecond})
	if _, err := s.Await(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "with=migrating") {
		t.Error("the log does not say what it is busy with")
	}
	hangs, _, _ := supervise(t, "hangs", Options{StartWait: busyWait, StopWait: 10 * time.Millisecond})
	st := awaitState(t, hangs, func(st State) bool { return st.Restarts >= 1 })
	if st.Err == nil || !strings.Contains(st.Err.Error(), "not ready after") {
		t.Errorf("one that hangs afterwards: the error is %v", st.Err)
	}
}

func TestFailureReachesLogAndState(t *testing.T) {
	t.Parallel()
	s, stop, log := supervise(t, "fails", Options{})
	st := awaitState(t, s, func(st State) bool { return st.Restarts >= 2 })
	var f *Failure
	if !errors.As(st.Err, &f) || f.Key != "temporal.port" {
		t.Errorf("the error is %v, want the child's own failure", st.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Await(ctx); !errors.Is(err, context.Canceled) || !errors.As(err, &f) {
		t.Errorf("Await gave %v, want the context's error and the reason", err)
	}
	stop()
	if want := `err=occupied remedy="free it" config_key=temporal.port`; !strings.Contains(log.String(), want) {
		t.Errorf("%s is not in the log", want)
	}
}

func TestLastLinesOfADeadChild(t *testing.T) {
	t.Parallel()
	s, _, _ := supervise(t, "panics", Options{})
	st := awaitState(t, s, func(st State) bool { return st.Restarts >= 1 })
	for _, want := range []string{
		"before it was ready", "exit status 2", "ERROR about to fall over err=gravity", "panic: this child was told to",
	} {
		if !strings.Contains(st.Err.Error(), want) {
			t.Errorf("%q is not in the error: %v", want, st.Err)
		}
	}
}

func TestChildGetsNoSecrets(t *testing.T) {
	t.Setenv("INGOT_TEST_SECRET", "hunter2")
	s, _, _ := supervise(t, "secret", Options{})
	st := awaitState(t, s, func(st State) bool { return st.Restarts >= 1 })
	if msg := st.Err.Error(); !strings.Contains(msg, "PATH=") || strings.Contains(msg, "hunter2") {
		t.Errorf("the child's environment: %s", msg)
	}
}

// A child that no longer answers is killed and replaced. A child that is only slow at times is not.
func TestHungChildIsReplaced(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := map[int]int{}
	first := 0
	s, _, log := supervise(t, "good", Options{
		ProbeEvery: time.Millisecond, ProbeFailures: 3,
		Probe: func(_ context.Context, srv Server) error {
			mu.Lock()
			defer mu.Unlock()
			asked[srv.PID]++
			if first == 0 {
				first = srv.PID
			}
			// Two failures and an answer, again and again; from the tenth probe on the first child is silent.
			if srv.PID == first && asked[srv.PID] > 10 || asked[srv.PID]%3 != 0 {
				return errors.New("silence")
			}
			return nil
		},
	})
	st := awaitState(t, s, func(st State) bool { return st.Restarts == 1 })
	if st.Err == nil || !strings.Contains(st.Err.Error(), "did not answer for") || !strings.Contains(st.Err.Error(), "signal: killed") {
		t.Errorf("the error is %v", st.Err)
	}
	st = awaitState(t, s, func(st State) bool { return st.Up })
	awaitProbes := func(pid, n int) {
		t.Helper()
		ctx := testContext(t)
		for {
			mu.Lock()
			got := asked[pid]
			mu.Unlock()
			if got >= n {
				return
			}
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("only %d probes of %d", got, pid)
			}
		}
	}
	awaitProbes(st.Server.PID, 30)
	if now := s.State(); now.Restarts != 1 || !now.Up {
		t.Errorf("a server that answers every third probe was replaced: %+v", now)
	}
	if !strings.Contains(log.String(), "does not answer; killing it") {
		t.Error("the log does not say that it was killed")
	}
}

// TestPauses: the pause before the next start doubles after a child that was ready for less than the last pause, and begins again
// at its minimum after one that was ready for longer.
func TestPauses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		last, upFor, want time.Duration
	}{
		{0, 0, time.Second},
		{time.Second, 0, 2 * time.Second},
		{4 * time.Second, 3 * time.Second, 8 * time.Second},
		{4 * time.Second, 5 * time.Second, time.Second},
		{20 * time.Second, 0, 30 * time.Second},
		{30 * time.Second, time.Minute, time.Second},
	} {
		o := Options{BackoffMin: time.Second, BackoffMax: 30 * time.Second}
		if got := o.pauseAfter(c.last, c.upFor); got != c.want {
			t.Errorf("after a pause of %s and a child that was ready for %s the pause is %s, not %s", c.last, c.upFor, got, c.want)
		}
	}
}

// DialContext connects to the running child, and after a kill to the next one.
func TestDialFollowsTheChild(t *testing.T) {
	t.Parallel()
	s, stop, _ := supervise(t, "good", Options{})
	answer := func() int {
		t.Helper()
		conn, err := s.DialContext(testContext(t), "ignored:1")
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Fscan(conn, &pid); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	first := answer()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, func(st State) bool { return st.Restarts == 1 })
	if second := answer(); second == first || second != s.State().Server.PID {
		t.Errorf("the second connection is to %d, the first was to %d, the child is %d", second, first, s.State().Server.PID)
	}
	stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if conn, err := s.DialContext(ctx, ""); err == nil {
		t.Errorf("without a child there is a connection to %s", conn.RemoteAddr())
	}
}

// DialContext does not connect to another process that has taken the port of a dead child before
// the supervisor noticed.
func TestDialRefusesOtherProcess(t *testing.T) {
	t.Parallel()
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stranger.Close(); err != nil {
			t.Error(err)
		}
	})
	zombie, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	// Wait until it has ended, and keep it as a zombie.
	if err := unix.Waitid(unix.P_PID, zombie.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	s, err := New(DefaultConfig(t.TempDir()), Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.update(func(st *State) { st.Up, st.Server = true, Server{Frontend: stranger.Addr().String(), PID: zombie.Pid} })
	if conn, err := s.DialContext(ctx, ""); err == nil {
		t.Errorf("connected to another process: %s", conn.RemoteAddr())
	}
	if _, err := zombie.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestWhileReturnsTheErrorOfItsFunction(t *testing.T) {
	t.Parallel()
	s, _, _ := supervise(t, "good", Options{})
	want := errors.New("enough")
	if err := s.While(testContext(t), func(context.Context, Server) error { return want }); !errors.Is(err, want) {
		t.Errorf("While returned %v", err)
	}
}

func TestOutputIsLimited(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	var b bytes.Buffer
	o := &output{logger: slog.New(slog.NewTextHandler(&b, nil)), perSecond: 2, now: func() time.Time { return now }}
	write := func(text string) {
		t.Helper()
		if n, err := io.WriteString(o, text); n != len(text) || err != nil {
			t.Fatalf("writing gave %d, %v", n, err)
		}
	}
	write("one\ntw")
	write("o\n\nthree\nfour\n" + strings.Repeat("x", 3*maxLineSize) + "\n")
	now = now.Add(time.Second)
	write("last, without an end")
	o.flush()
	for _, want := range []string{"message=one\n", "message=two\n", "left_out=3", `message="last, without an end"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, &b)
		}
	}
	if strings.Contains(b.String(), "three") {
		t.Errorf("more than two lines in one second:\n%s", &b)
	}
	last := o.last()
	if len(last) != 6 || len(last[4]) > maxLineSize+10 {
		t.Errorf("kept %d lines: %.200q", len(last), last)
	}
	for range 3 * tailLines {
		write("more\n")
	}
	if n := len(o.last()); n != tailLines {
		t.Errorf("kept %d lines, want %d", n, tailLines)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig("/var/lib/ingot").Validate(); err != nil {
		t.Errorf("the default is refused: %v", err)
	}
	for name, test := range map[string]struct {
		change func(*Config)
		key    string
	}{
		"every address":   {func(c *Config) { c.Host = "0.0.0.0" }, "temporal.host"},
		"every address 6": {func(c *Config) { c.Host = "::" }, "temporal.host"},
		"a LAN address":   {func(c *Config) { c.Host = "192.168.1.2" }, "temporal.host"},
		"a name":          {func(c *Config) { c.Host = "localhost" }, "temporal.host"},
		"nothing":         {func(c *Config) { c.Host = "" }, "temporal.host"},
		"relative file":   {func(c *Config) { c.File = "temporal.db" }, "data_dir"},
		"URI in the file": {func(c *Config) { c.File = "/data?mode=memory/x.db" }, "data_dir"},
		"no namespace":    {func(c *Config) { c.Namespace = "" }, "temporal.namespace"},
		"relative cert":   {func(c *Config) { c.Identity, c.Ports.UI = "identity.pem", 0 }, "data_dir"},
		"TLS and a UI":    {func(c *Config) { c.Identity = "/identity.pem" }, "temporal.mutual_tls"},
	} {
		c := DefaultConfig("/var/lib/ingot")
		test.change(&c)
		err := c.Validate()
		var f *Failure
		if !errors.As(err, &f) || f.Key != test.key {
			t.Errorf("%s: the error is %v, want one about %s", name, err, test.key)
		}
		if _, err := New(c, Options{Logger: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%s: New accepts it", name)
		}
	}
	noUI := DefaultConfig("/var/lib/ingot")
	noUI.Ports.UI = 0
	if err := noUI.Validate(); err != nil {
		t.Errorf("a configuration without a UI is refused: %v", err)
	}
}
