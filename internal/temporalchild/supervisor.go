package temporalchild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options are how a [Supervisor] runs the child. Zero values stand for the defaults named.
type Options struct {
	Command []string     // program and arguments; this executable with [Subcommand]
	Env     []string     // environment of the child; a few harmless variables of this process
	Logger  *slog.Logger // required

	BackoffMin     time.Duration // pause before the first restart, 1 s; doubled each time
	BackoffMax     time.Duration // longest pause, 30 s; a child that was ready for longer starts over at BackoffMin
	StartWait      time.Duration // how long a child may take to become ready, 2 min; it is not counted while the child reports that it is busy
	StopWait       time.Duration // how long it may take to stop before it is killed, 10 s
	LinesPerSecond int           // log lines of the child that are passed on, 50

	// Probe asks a ready server whether it still answers; the default asks for its cluster.
	Probe        func(ctx context.Context, srv Server) error
	ProbeEvery   time.Duration // pause between two probes, 10 s
	ProbeTimeout time.Duration // how long an answer may take, 10 s
	// ProbeFailures is how many probes in a row may fail before the child is killed, 6: a minute of silence at least,
	// so that a busy host loses no server that would have answered.
	ProbeFailures int
}

// State is what the supervisor knows about the child.
type State struct {
	Up       bool
	Server   Server // of the last child that was ready
	Err      error  // why it is not up, nil while the first child starts
	Restarts int    // children that ended so far
}

// Supervisor keeps one child running. Its methods may be used at the same time.
type Supervisor struct {
	cfg  Config
	opts Options

	ready     chan struct{} // closed when a child is ready for the first time
	readyOnce sync.Once

	mu      sync.Mutex
	state   State
	changed chan struct{} // closed and replaced at every change of state
	current *child        // nil while none is ready
}

// New returns a supervisor for one embedded server. It fails on a configuration that can never work;
// everything that may pass, such as an occupied port, is left to Run.
func New(cfg Config, opts Options) (*Supervisor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		return nil, errors.New("supervising the Temporal server: no logger")
	}
	if len(opts.Command) == 0 {
		// The link leads to this very binary even after an upgrade has replaced the file, so a restart
		// never mixes versions.
		exe := "/proc/self/exe"
		if _, err := os.Stat(exe); err != nil {
			if exe, err = os.Executable(); err != nil {
				return nil, fmt.Errorf("finding this executable: %w", err)
			}
		}
		opts.Command = []string{exe, Subcommand}
	}
	if opts.Env == nil {
		opts.Env = harmlessEnv()
	}
	opts.BackoffMin = orDefault(opts.BackoffMin, time.Second)
	opts.BackoffMax = max(orDefault(opts.BackoffMax, 30*time.Second), opts.BackoffMin)
	opts.StartWait = orDefault(opts.StartWait, 2*time.Minute)
	opts.StopWait = orDefault(opts.StopWait, 10*time.Second)
	if opts.LinesPerSecond <= 0 {
		opts.LinesPerSecond = 50
	}
	opts.ProbeEvery = orDefault(opts.ProbeEvery, 10*time.Second)
	opts.ProbeTimeout = orDefault(opts.ProbeTimeout, 10*time.Second)
	if opts.ProbeFailures <= 0 {
		opts.ProbeFailures = 6
	}
	if opts.Probe == nil {
		opts.Probe = probe
	}
	return &Supervisor{cfg: cfg, opts: opts, ready: make(chan struct{}), changed: make(chan struct{})}, nil
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// harmlessEnv leaves out everything else because secrets come by environment, and the child needs none.
func harmlessEnv() []string {
	env := []string{} // never nil: a nil environment is this process's own
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "TZ", "GODEBUG", "GOTRACEBACK", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// Run starts the child and restarts it whenever it ends, until ctx ends; then it ends the child and
// returns nil. It returns nothing else: a Temporal server that cannot run is logged, shown by State and
// tried again, and never takes its parent down. Run may be called once.
func (s *Supervisor) Run(ctx context.Context) error {
	pause := s.opts.BackoffMin
	for {
		upFor, err := s.life(ctx)
		if ctx.Err() != nil {
			s.update(func(st *State) { st.Up, st.Err = false, context.Cause(ctx) })
			return nil
		}
		s.update(func(st *State) { st.Up, st.Err, st.Restarts = false, err, st.Restarts+1 })
		if upFor > s.opts.BackoffMax {
			pause = s.opts.BackoffMin
		}
		s.opts.Logger.Error("temporal server is not running; it will be started again", append(failureAttrs(err), "pause", pause)...)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, s.opts.BackoffMax)
	}
}

// failureAttrs are the log attributes of a child's end.
func failureAttrs(err error) []any {
	var f *Failure
	if !errors.As(err, &f) {
		return []any{"err", err}
	}
	attrs := []any{"err", f.Message}
	for _, a := range []struct{ key, value string }{
		{"remedy", f.Remedy}, {"config_key", f.Key}, {"address", f.Address}, {"holder", f.Holder},
	} {
		if a.value != "" {
			attrs = append(attrs, a.key, a.value)
		}
	}
	return attrs
}

// life runs one child from start to end and returns for how long it was ready and why it ended.
func (s *Supervisor) life(ctx context.Context) (time.Duration, error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	out := &output{logger: s.opts.Logger, perSecond: s.opts.LinesPerSecond, now: time.Now}
	reports, reportW, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("making the report pipe: %w", err)
	}
	cmd := exec.Command(s.opts.Command[0], s.opts.Command[1:]...)
	cmd.Args[0] = "ingot"
	cmd.Env = s.opts.Env
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{reportW}
	// Its own process group: a Ctrl-C in the terminal is for the parent, which stops workers first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, errors.Join(fmt.Errorf("making the child's stdin: %w", err), reports.Close(), reportW.Close())
	}
	if err := cmd.Start(); err != nil {
		return 0, errors.Join(fmt.Errorf("starting the Temporal server %q: %w", s.opts.Command[0], err), reports.Close(), reportW.Close(), stdin.Close())
	}
	_ = reportW.Close() // the child has its own; a failed close of a pipe end leaves nothing to do

	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	reported := make(chan reportResult, 1)
	late := time.NewTimer(s.opts.StartWait)
	defer late.Stop()
	c := &child{cmd: cmd, stdin: stdin, out: out, exited: exited, stopWait: s.opts.StopWait, silent: make(chan struct{})}
	go func() {
		lines := json.NewDecoder(reports)
		rep, err := readReport(lines, func(b Busy) {
			if b.With == "" {
				late.Reset(s.opts.StartWait)
				return
			}
			// Ended, it would begin anew, for ever.
			late.Stop()
			s.opts.Logger.Warn("temporal server is busy with its database before it can start; big ones take long", "with", b.With, "pid", cmd.Process.Pid)
		})
		reported <- reportResult{rep, err}
		for err == nil {
			var answer Report
			if err = lines.Decode(&answer); err == nil && answer.Backup != nil {
				c.answer(*answer.Backup)
			}
		}
		_ = reports.Close() // read to the end, nothing to lose
		close(c.silent)
	}()

	// A child that is gone already cannot take its configuration; its end tells more than this error.
	_ = json.NewEncoder(stdin).Encode(s.cfg)
	started := time.Now()
	s.opts.Logger.Debug("temporal server started", "pid", cmd.Process.Pid)

	select {
	case <-ctx.Done():
		return 0, errors.Join(ctx.Err(), c.stop())
	case err := <-exited:
		// Whatever it reported is in the pipe already.
		return 0, c.ended(err, (<-reported).problem())
	case <-late.C:
		return 0, c.ended(c.stop(), fmt.Errorf("the Temporal server was not ready after %s", s.opts.StartWait))
	case r := <-reported:
		if failure := r.problem(); failure != nil {
			return 0, c.ended(c.stop(), failure)
		}
		return s.serve(ctx, c, *r.report.Ready, started)
	}
}

// serve is the part of a child's life in which it is ready.
func (s *Supervisor) serve(ctx context.Context, c *child, srv Server, started time.Time) (time.Duration, error) {
	srv.PID = c.cmd.Process.Pid
	readyAt := time.Now()
	s.update(func(st *State) { st.Up, st.Server, st.Err = true, srv, nil })
	s.working(c)
	defer s.working(nil)
	s.readyOnce.Do(func() { close(s.ready) })
	s.opts.Logger.Info("temporal server ready", "frontend", srv.Frontend, "ui", srv.UI, "namespace", srv.Namespace,
		"cluster_id", srv.ClusterID, "pid", srv.PID, "took", readyAt.Sub(started).Round(time.Millisecond))
	watch, stopWatch := context.WithCancel(ctx)
	hung, watching := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(watching)
		if err := s.untilHung(watch, srv); err != nil {
			hung <- err
		}
	}()
	defer func() {
		stopWatch()
		<-watching
	}()
	select {
	case <-ctx.Done():
		s.update(func(st *State) { st.Up = false })
		return time.Since(readyAt), errors.Join(ctx.Err(), c.stop())
	case err := <-c.exited:
		s.update(func(st *State) { st.Up = false })
		return time.Since(readyAt), c.ended(err, errors.New("the Temporal server died"))
	case err := <-hung:
		s.update(func(st *State) { st.Up = false })
		s.opts.Logger.Error("temporal server does not answer and is killed", "pid", srv.PID, "err", err)
		// Not asked first: it could not hear. A process that is stopped dies of this, too.
		_ = c.cmd.Process.Kill() // it may have ended just now
		return time.Since(readyAt), c.ended(<-c.exited, err)
	}
}

// untilHung returns why the server counts as hung, nil when ctx has ended.
func (s *Supervisor) untilHung(ctx context.Context, srv Server) error {
	tick := time.NewTicker(s.opts.ProbeEvery)
	defer tick.Stop()
	var silentSince time.Time
	for failed := 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		began := time.Now()
		probing, cancel := context.WithTimeout(ctx, s.opts.ProbeTimeout)
		err := s.opts.Probe(probing, srv)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failed = 0
			continue
		case failed == 0:
			silentSince = began
		}
		if failed++; failed >= s.opts.ProbeFailures {
			return fmt.Errorf("the Temporal server gave no answer for %s: %w", time.Since(silentSince).Round(time.Second), err)
		}
		s.opts.Logger.Warn("temporal server does not answer", "pid", srv.PID, "probes", failed, "err", err)
	}
}

type reportResult struct {
	report Report
	err    error
}

// problem is why the report does not make a running server, nil if it does.
func (r reportResult) problem() error {
	if r.err != nil {
		return r.err
	}
	if r.report.Failure != nil {
		return r.report.Failure
	}
	return nil
}

// child is one started process.
type child struct {
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	out      *output
	exited   <-chan error
	stopWait time.Duration
	silent   chan struct{} // closed when no answer can come any more

	mu      sync.Mutex // also of what is written to stdin
	waiting map[string]chan BackupDone
}

// stop asks the child to end, kills it when it does not, and returns its exit status when it is gone.
func (c *child) stop() error {
	defer c.out.flush()
	_ = c.stdin.Close() // closing a pipe end twice, or after the child's end, is harmless
	select {
	case err := <-c.exited:
		return err
	case <-time.After(c.stopWait):
		c.out.logger.Warn("temporal server did not stop in time and is killed", "pid", c.cmd.Process.Pid, "waited", c.stopWait)
		_ = c.cmd.Process.Kill() // it may have ended just now
		return <-c.exited
	}
}

// ended makes the error of a child that is gone: cause, exit status, last words. A failure that the
// child reported itself says it all.
func (c *child) ended(exit, cause error) error {
	c.out.flush()
	var f *Failure
	if errors.As(cause, &f) {
		return cause
	}
	last := c.out.last()
	err := cause
	switch {
	case err == nil:
		// It was ready for a moment and ended before that was looked at.
		err = errors.New("the Temporal server died")
	case errors.Is(err, errNoReport):
		err = errors.New("the Temporal server ended before it was ready")
	}
	if exit != nil {
		err = fmt.Errorf("%w (%w)", err, exit)
	}
	if len(last) > 0 {
		err = fmt.Errorf("%w; its last lines:\n\t%s", err, strings.Join(last, "\n\t"))
	}
	return err
}

func (s *Supervisor) update(f func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.state)
	close(s.changed)
	s.changed = make(chan struct{})
}

// State returns what is known about the child now.
func (s *Supervisor) State() State {
	st, _ := s.Watch()
	return st
}

// Watch returns the state now and a channel that is closed at its next change.
func (s *Supervisor) Watch() (State, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.changed
}

// sameLife tells whether two states are of one and the same running child.
func sameLife(a, b State) bool { return a.Up && b.Up && a.Restarts == b.Restarts }

// Ready is closed when a child has been ready for the first time.
func (s *Supervisor) Ready() <-chan struct{} { return s.ready }

// Await waits until a child is up and returns its server. When ctx ends first, the error holds ctx's
// and, if there is one, the reason why no child is up.
func (s *Supervisor) Await(ctx context.Context) (Server, error) {
	st, err := s.await(ctx)
	return st.Server, err
}

func (s *Supervisor) await(ctx context.Context) (State, error) {
	for {
		st, changed := s.Watch()
		if st.Up {
			return st, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if st.Err != nil && !errors.Is(st.Err, ctx.Err()) {
				return State{}, fmt.Errorf("waiting for the Temporal server: %w: %w", ctx.Err(), st.Err)
			}
			return State{}, fmt.Errorf("waiting for the Temporal server: %w", ctx.Err())
		}
	}
}

// While runs fn during every life of the child: each time one is ready, with a context that ends with
// that child. When fn returns while its child still runs, While returns fn's error; when ctx ends it
// returns nil after fn has returned.
func (s *Supervisor) While(ctx context.Context, fn func(ctx context.Context, srv Server) error) error {
	for {
		st, err := s.await(ctx)
		if err != nil {
			return nil // ctx has ended
		}
		lifeCtx, cancel := context.WithCancel(ctx)
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			defer cancel()
			s.untilEnd(lifeCtx, st)
		}()
		err = fn(lifeCtx, st.Server)
		over := lifeCtx.Err() != nil
		cancel()
		<-watching
		if ctx.Err() != nil {
			return nil
		}
		if !over {
			return err
		}
	}
}

// untilEnd returns when the child of state life has ended, or ctx has.
func (s *Supervisor) untilEnd(ctx context.Context, life State) {
	for {
		st, changed := s.Watch()
		if !sameLife(life, st) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// DialContext connects to the frontend of the child that runs now, waiting for one if need be, and
// ignores addr. The connection can only be to that child: its process is seen alive after the connection
// was made, and while it lives nobody else can listen on its port. Given to gRPC (grpc.WithContextDialer
// in the SDK's ConnectionOptions.DialOptions), it keeps clients and workers from ever talking to a
// stranger who takes the port while the child is down, and lets them stay across its restarts.
func (s *Supervisor) DialContext(ctx context.Context, _ string) (net.Conn, error) {
	st, err := s.await(ctx)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", st.Server.Frontend)
	if err != nil {
		return nil, fmt.Errorf("connecting to the embedded Temporal server: %w", err)
	}
	// The order matters: alive first, then still unreaped, or the process id could be somebody else's.
	if !processAlive(st.Server.PID) || !sameLife(st, s.State()) {
		return nil, errors.Join(errors.New("connecting to the embedded Temporal server: it ended meanwhile"), conn.Close())
	}
	return conn, nil
}

// processAlive is false for a process that is gone or a zombie, whose sockets are closed already.
func processAlive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The state follows the command name, which is in parentheses and may contain any character.
	i := strings.LastIndexByte(string(stat), ')')
	return i >= 0 && i+2 < len(stat) && stat[i+2] != 'Z' && stat[i+2] != 'X'
}
