package temporalchild

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
)

// Options configure a [Supervisor]. The comment of a field says what its zero value means.
type Options struct {
	Command []string     // program and arguments; default: this executable with [Subcommand]
	Env     []string     // environment of the child; default: a few harmless variables of this process
	Logger  *slog.Logger // required

	BackoffMin time.Duration // pause before the first restart, default 1 s; it doubles each time
	BackoffMax time.Duration // longest, default 30 s; the pause is BackoffMin again after a child that was ready longer than the last pause
	// StartWait is how long a child may take to become ready, default 2 min. The time during which it is Busy does not count.
	StartWait      time.Duration
	StopWait       time.Duration // how long a child may take to stop before it is killed, default 10 s
	LinesPerSecond int           // log lines of the child that are passed on per second, default 50

	// Probe returns an error if a ready server does not answer. The default probe asks the server to describe its cluster.
	Probe        func(ctx context.Context, srv Server) error
	ProbeEvery   time.Duration // pause between two probes, default 10 s
	ProbeTimeout time.Duration // time limit of a probe, default 10 s
	// ProbeFailures is how many probes in a row must fail before the child is killed. The default of 6 means at least a minute
	// without an answer, so that a server on a busy host is not killed too early.
	ProbeFailures int
}

// State is the current state of the child.
type State struct {
	Up       bool
	Server   Server // server of the last child that was ready
	Err      error  // why no child is up; nil while the first child starts
	Restarts int    // number of children that have ended

	life  context.Context // context of the last child that was ready; it ends when this child is no longer up
	child *child          // receives orders; nil while no child is up
}

// Supervisor keeps one child running. Its methods may be called concurrently.
type Supervisor struct {
	cfg  Config
	opts Options

	mu      sync.Mutex
	state   State
	changed chan struct{} // closed and replaced at every state change
}

// New returns a supervisor for one embedded server. It returns an error if the configuration can never work. Temporary errors, such as an
// occupied port, are left to Run.
func New(cfg Config, opts Options) (*Supervisor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	if opts.Logger == nil {
		return nil, errors.New("supervising the Temporal server: no logger")
	}
	if len(opts.Command) == 0 {
		// This link refers to the running binary even after an upgrade has replaced the file, so a restarted child is never of another version.
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
	opts.BackoffMin = cmp.Or(opts.BackoffMin, time.Second)
	opts.BackoffMax = max(cmp.Or(opts.BackoffMax, 30*time.Second), opts.BackoffMin)
	opts.StartWait = cmp.Or(opts.StartWait, 2*time.Minute)
	opts.StopWait = cmp.Or(opts.StopWait, 10*time.Second)
	opts.LinesPerSecond = cmp.Or(opts.LinesPerSecond, 50)
	opts.ProbeEvery = cmp.Or(opts.ProbeEvery, 10*time.Second)
	opts.ProbeTimeout = cmp.Or(opts.ProbeTimeout, 10*time.Second)
	opts.ProbeFailures = cmp.Or(opts.ProbeFailures, 6)
	if opts.Probe == nil {
		opts.Probe = probe
	}

	return &Supervisor{cfg: cfg, opts: opts, changed: make(chan struct{})}, nil
}

// harmlessEnv returns the variables of this process that are known to contain no secrets.
func harmlessEnv() []string {
	env := []string{} // not nil: exec.Cmd would pass the whole environment of this process
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "TZ", "GODEBUG", "GOTRACEBACK", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}

	return env
}

// Run starts the child and restarts it whenever it ends. When ctx ends, Run stops the child and returns nil. It never returns an error: if
// the Temporal server cannot run, Run logs the reason, reports it in State and tries again. Call Run only once.
func (s *Supervisor) Run(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		upFor, err := s.life(ctx)
		if ctx.Err() != nil {
			s.update(func(st *State) { st.Up, st.Err = false, context.Cause(ctx) })
			return nil
		}
		s.update(func(st *State) { st.Up, st.Err, st.Restarts = false, err, st.Restarts+1 })
		pause = s.opts.pauseAfter(pause, upFor)
		s.opts.Logger.Error("temporal server is not running; starting it again", append(failureAttrs(err), "pause", pause)...)
		_ = clock.Sleep(ctx, pause) // the end of ctx is noticed above
	}
}

// pauseAfter returns the pause before the next start. last is the previous pause (0 = none), and upFor is how long the child was
// ready.
func (o Options) pauseAfter(last, upFor time.Duration) time.Duration {
	if upFor > last {
		return o.BackoffMin
	}
	return min(max(2*last, o.BackoffMin), o.BackoffMax)
}

// failureAttrs returns the log attributes for the end of a child.
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

// life runs one child. It returns how long the child was ready and why it ended.
func (s *Supervisor) life(ctx context.Context) (time.Duration, error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}

	c, reports, err := startChild(s.opts)
	if err != nil {
		return 0, err
	}

	pid := c.cmd.Process.Pid
	late := time.NewTimer(s.opts.StartWait)
	defer late.Stop()
	reported := make(chan readyResult, 1)
	go c.readReports(reports, reported, func(b Busy) {
		if b.With == "" {
			late.Reset(s.opts.StartWait)
			return
		}
		late.Stop() // do not kill the child: the next one would start the same work again
		s.opts.Logger.Warn("temporal server prepares its database before it can start; a large database takes long",
			"with", b.With, "pid", pid)
	})

	// Ignore the error: it means that the child has ended, and its last log lines explain why.
	_ = json.NewEncoder(c.stdin).Encode(s.cfg)
	started := time.Now()
	s.opts.Logger.Debug("temporal server started", "pid", pid)

	select {
	case <-ctx.Done():
		return 0, errors.Join(ctx.Err(), c.stop())
	case err := <-c.exited:
		// What the child has reported is already in the pipe, so this does not wait.
		return 0, c.describeEnd(err, (<-reported).err)
	case <-late.C:
		return 0, c.describeEnd(c.stop(), fmt.Errorf("the Temporal server was not ready after %s", s.opts.StartWait))
	case r := <-reported:
		if r.err != nil {
			return 0, c.describeEnd(c.stop(), r.err)
		}
		return s.serve(ctx, c, r.server, started)
	}
}

// serve handles a ready child until it ends or ctx ends.
func (s *Supervisor) serve(ctx context.Context, c *child, srv Server, started time.Time) (time.Duration, error) {
	srv.PID = c.cmd.Process.Pid
	readyAt := time.Now()
	life, endLife := context.WithCancel(ctx)
	defer endLife()
	s.update(func(st *State) { st.Up, st.Server, st.Err, st.life, st.child = true, srv, nil, life, c })
	s.opts.Logger.Info("temporal server ready", "frontend", srv.Frontend, "ui", srv.UI, "namespace", srv.Namespace,
		"cluster_id", srv.ClusterID, "pid", srv.PID, "took", readyAt.Sub(started).Round(time.Millisecond))

	hung := make(chan error, 1)
	go func() { hung <- s.untilHung(life, srv) }()

	var exit, hang error
	exited := false
	select {
	case <-ctx.Done():
	case exit = <-c.exited:
		exited = true
	case hang = <-hung:
		hung <- nil // for the receive below
	}

	upFor := time.Since(readyAt)
	s.update(func(st *State) { st.Up, st.child = false, nil })
	endLife()
	<-hung //nolint:errcheck // the probes end with the child's life; their result was read above

	switch {
	case exited:
		return upFor, c.describeEnd(exit, errors.New("the Temporal server ended unexpectedly"))
	case hang != nil:
		s.opts.Logger.Error("temporal server does not answer; killing it", "pid", srv.PID, "err", hang)
		// Do not ask a hung process to stop: it would not read the request. SIGKILL ends even a process that was stopped with SIGSTOP.
		_ = c.cmd.Process.Kill() // the child may have ended just now
		return upFor, c.describeEnd(<-c.exited, hang)
	}

	return upFor, errors.Join(ctx.Err(), c.stop())
}

// untilHung returns an error when ProbeFailures probes in a row have failed, or nil when ctx ends.
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
			return fmt.Errorf("the Temporal server did not answer for %s: %w", time.Since(silentSince).Round(time.Second), err)
		}
		s.opts.Logger.Warn("temporal server does not answer", "pid", srv.PID, "probes", failed, "err", err)
	}
}

func (s *Supervisor) update(f func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.state)
	close(s.changed)
	s.changed = make(chan struct{})
}

// State returns the current state of the child.
func (s *Supervisor) State() State {
	st, _ := s.Watch()
	return st
}

// Watch returns the current state and a channel that is closed at its next change.
func (s *Supervisor) Watch() (State, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.changed
}

// Await waits until a child is up and returns its server. If ctx ends first, the error contains
// ctx's error and the reason why no child is up, if there is one.
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

// While calls fn for each child that becomes ready. The context that fn gets ends when that child ends. If fn returns while its child still
// runs, While returns the error of fn. If ctx ends, While waits for fn and returns nil.
func (s *Supervisor) While(ctx context.Context, fn func(ctx context.Context, srv Server) error) error {
	for {
		st, err := s.await(ctx)
		if err != nil {
			return nil // ctx has ended
		}
		lifeCtx, cancel := context.WithCancel(ctx)
		stopWatching := context.AfterFunc(st.life, cancel)
		err = fn(lifeCtx, st.Server)
		over := lifeCtx.Err() != nil
		stopWatching()
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if !over {
			return err
		}
	}
}

// DialContext connects to the frontend of the running child. It ignores addr, and waits if no child is up. The connection is certain to be
// to the child: after connecting, DialContext checks that the child is alive, and no other process can listen on the child's port while the
// child is alive.
//
// Pass DialContext to gRPC (grpc.WithContextDialer in the SDK's ConnectionOptions.DialOptions). Clients and workers then remain usable
// after a restart of the child, and never connect to another server that takes the port while the child is down.
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

	// Check the process first. If the child had ended before that check and another process had its id, the second check fails.
	if !processAlive(st.Server.PID) || st.life.Err() != nil {
		return nil, errors.Join(errors.New("connecting to the embedded Temporal server: the process has ended"), conn.Close())
	}

	return conn, nil
}
