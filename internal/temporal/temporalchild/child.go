package temporalchild

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is a process that was started.
type child struct {
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	out      *output
	exited   <-chan error
	stopWait time.Duration
	silent   chan struct{} // closed when the child's report pipe has ended

	mu      sync.Mutex // guards waiting and writes to stdin
	waiting map[string]chan BackupDone
}

// startChild starts the process. It returns the child and the pipe from which its reports are read.
func startChild(opts Options) (*child, *os.File, error) {
	out := &output{logger: opts.Logger, perSecond: opts.LinesPerSecond, now: time.Now}
	reports, reportW, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("making the report pipe: %w", err)
	}

	cmd := exec.Command(opts.Command[0], opts.Command[1:]...)
	cmd.Args[0] = "ingot"
	cmd.Env = opts.Env
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{reportW}
	// The child gets its own process group, so that the terminal sends Ctrl-C only to the parent, which stops the workers first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second

	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}

	closed := reportW.Close() // the child has its own copy of this descriptor
	if err != nil {
		err = fmt.Errorf("starting the Temporal server %q: %w", opts.Command[0], err)
		return nil, nil, errors.Join(err, closed, reports.Close())
	}

	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	return &child{
		cmd: cmd, stdin: stdin, out: out, exited: exited, stopWait: opts.StopWait,
		silent: make(chan struct{}), waiting: map[string]chan BackupDone{},
	}, reports, nil
}

// readReports sends the child's first report other than Busy to reported. Then it passes on the results of orders until the pipe ends.
func (c *child) readReports(reports *os.File, reported chan<- readyResult, busy func(Busy)) {
	defer close(c.silent)
	defer func() { _ = reports.Close() }() // opened only for reading
	lines := json.NewDecoder(reports)
	srv, err := readReport(lines, busy)
	reported <- readyResult{srv, err}

	for err == nil {
		var answer Report
		if err = lines.Decode(&answer); err == nil && answer.Backup != nil {
			c.answer(*answer.Backup)
		}
	}
}

// readyResult holds what the child's first report other than Busy contains: the server, or the error.
type readyResult struct {
	server Server
	err    error
}

// stop asks the child to stop, kills it after a time-out, and returns its exit status.
func (c *child) stop() error {
	defer c.out.flush()
	_ = c.stdin.Close() // it may already be closed
	select {
	case err := <-c.exited:
		return err
	case <-time.After(c.stopWait):
		c.out.logger.Warn("temporal server did not stop in time; killing it", "pid", c.cmd.Process.Pid, "waited", c.stopWait)
		_ = c.cmd.Process.Kill() // the child may have ended just now
		return <-c.exited
	}
}

// describeEnd returns the error for a child that has ended: the cause, the exit status and the last log lines. If cause is a *Failure,
// which comes from the child itself, describeEnd returns only cause.
func (c *child) describeEnd(exit, cause error) error {
	c.out.flush()
	if _, ok := errors.AsType[*Failure](cause); ok {
		return cause
	}

	err := cause
	switch {
	case err == nil:
		// The child ended right after it was ready, before its report was read.
		err = errors.New("the Temporal server ended unexpectedly")
	case errors.Is(err, errNoReport):
		err = errors.New("the Temporal server ended before it was ready")
	}

	if exit != nil {
		err = fmt.Errorf("%w (%w)", err, exit)
	}
	if last := c.out.last(); len(last) > 0 {
		err = fmt.Errorf("%w; the last lines of its log:\n\t%s", err, strings.Join(last, "\n\t"))
	}
	return err
}

// ProcessStat is the state of a process from /proc.
type ProcessStat struct {
	State  string // one letter, see proc_pid_stat(5)
	Parent int
}

// ReadProcess returns the state of a process, or false if there is no such process.
func ReadProcess(pid int) (ProcessStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ProcessStat{}, false
	}

	// The command name, in parentheses, may contain any character.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return ProcessStat{}, false
	}

	parent, err := strconv.Atoi(fields[1])
	return ProcessStat{fields[0], parent}, err == nil
}

// processAlive reports whether a process is running. A zombie counts as ended, because its sockets are already closed.
func processAlive(pid int) bool {
	p, ok := ReadProcess(pid)
	return ok && p.State != "Z" && p.State != "X"
}
