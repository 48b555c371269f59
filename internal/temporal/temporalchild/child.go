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

// child is one started process.
type child struct {
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	out      *output
	exited   <-chan error
	stopWait time.Duration
	silent   chan struct{} // closed after the last report

	mu      sync.Mutex // guards waiting and writes to stdin
	waiting map[string]chan BackupDone
}

// startChild starts the process. It returns the child and the pipe of its reports.
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
	// Its own process group: a Ctrl-C in the terminal is for the parent, which stops workers first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second

	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}

	closed := reportW.Close() // the child has its own descriptor
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

// readReports sends the first report that is not Busy to reported and passes on answers to orders, until the pipe ends.
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

// readyResult is the server in a child's first report, or the error.
type readyResult struct {
	server Server
	err    error
}

// stop asks the child to stop, kills it after a time-out, and returns its exit status.
func (c *child) stop() error {
	defer c.out.flush()
	_ = c.stdin.Close() // closing twice, or after the child ended, is harmless
	select {
	case err := <-c.exited:
		return err
	case <-time.After(c.stopWait):
		c.out.logger.Warn("temporal server did not stop in time and is killed", "pid", c.cmd.Process.Pid, "waited", c.stopWait)
		_ = c.cmd.Process.Kill() // the child may have ended just now
		return <-c.exited
	}
}

// describeEnd returns the error of a child that has ended: cause, exit status and last log lines.
// If the child reported a failure, it returns only that.
func (c *child) describeEnd(exit, cause error) error {
	c.out.flush()
	var f *Failure
	if errors.As(cause, &f) {
		return cause
	}

	err := cause
	switch {
	case err == nil:
		// The child was ready for a moment and ended before its report was read.
		err = errors.New("the Temporal server died")
	case errors.Is(err, errNoReport):
		err = errors.New("the Temporal server ended before it was ready")
	}

	if exit != nil {
		err = fmt.Errorf("%w (%w)", err, exit)
	}
	if last := c.out.last(); len(last) > 0 {
		err = fmt.Errorf("%w; its last lines:\n\t%s", err, strings.Join(last, "\n\t"))
	}
	return err
}

// ProcessStat is the state of a process from /proc.
type ProcessStat struct {
	State  string // one letter, see proc_pid_stat(5)
	Parent int
}

// ReadProcess returns false for a process that has ended.
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

// processAlive returns false for a process that has ended or is a zombie; the sockets of a zombie
// are already closed.
func processAlive(pid int) bool {
	p, ok := ReadProcess(pid)
	return ok && p.State != "Z" && p.State != "X"
}
