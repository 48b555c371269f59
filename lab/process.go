package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrClosed is returned by all calls after Close.
var ErrClosed = errors.New("the lab is closed")

// Cmd is a process of the lab, like exec.Cmd: set the fields, then call Start. It is killed with
// its process group when its context ends, when the lab is closed, and when the program that owns
// the lab dies for any reason. Its end is always awaited, so it never stays as a zombie.
type Cmd struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Env    []string // nil: the environment of this program
	Dir    string
	// Files are passed after standard error, as exec.Cmd.ExtraFiles are.
	Files []*os.File

	lab  *Lab
	ctx  context.Context
	args []string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid when done is closed
}

// Command prepares a process in namespace ns. It starts with Start, Run, Output or CombinedOutput.
func (l *Lab) Command(ctx context.Context, ns Namespace, name string, args ...string) *Cmd {
	argv := append([]string{name}, args...)
	if ns != Host {
		argv = append([]string{"ip", "netns", "exec", l.NamespaceName(ns)}, argv...)
	}
	return &Cmd{lab: l, ctx: ctx, args: argv, done: make(chan struct{})}
}

// spawner starts all processes of the lab from one thread that lives as long as the lab: the kernel sends the parent-death
// signal when the *thread* that forked ends, and Go's other threads come and go.
func (l *Lab) spawner() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, after the last process
	for f := range l.spawn {
		f()
	}
}

// Start starts the process.
func (c *Cmd) Start() error {
	c.cmd = exec.CommandContext(c.ctx, c.args[0], c.args[1:]...)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr, c.cmd.Env, c.cmd.Dir = c.Stdin, c.Stdout, c.Stderr, c.Env, c.Dir
	c.cmd.ExtraFiles = c.Files
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.cmd.Cancel = func() error { return syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }
	c.cmd.WaitDelay = 5 * time.Second // limits the wait for a grandchild that keeps the output open

	l := c.lab
	l.mu.Lock()
	defer l.mu.Unlock() // so that Close sees every process that was started
	if l.closed {
		return ErrClosed
	}
	result := make(chan error)
	l.spawn <- func() { result <- c.cmd.Start() }
	if err := <-result; err != nil {
		return fmt.Errorf("starting %q: %w", strings.Join(c.args, " "), err)
	}
	if err := record(filepath.Join(l.run, "pids"), c.cmd.Process.Pid, c.args); err != nil {
		l.log.Warn("recording a process", "error", err)
	}
	l.cmds[c] = struct{}{}
	go func() {
		c.err = c.cmd.Wait()
		l.mu.Lock()
		delete(l.cmds, c)
		l.mu.Unlock()
		close(c.done)
	}()
	return nil
}

// Wait waits for the end of a started process and returns what exec.Cmd.Wait does.
func (c *Cmd) Wait() error {
	<-c.done
	return c.err
}

// Done is closed when the process has ended and all its output was written.
func (c *Cmd) Done() <-chan struct{} { return c.done }

// Run starts the process and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the process and returns its standard output. Its standard error is part of the error.
func (c *Cmd) Output() ([]byte, error) {
	var out, errs bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.Stderr = &errs
	}
	if err := c.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("running %q: %w: %s", strings.Join(c.args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}

// CombinedOutput runs the process and returns standard output and standard error together.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("running %q: %w: %s", strings.Join(c.args, " "), err, bytes.TrimSpace(out.Bytes()))
	}
	return out.Bytes(), nil
}

// Pid is the process id of a started process.
func (c *Cmd) Pid() int { return c.cmd.Process.Pid }

// Signal sends sig to the process alone, not to its group.
func (c *Cmd) Signal(sig os.Signal) error { return c.cmd.Process.Signal(sig) }

// Kill ends a started process and its process group with SIGKILL. It does not wait; see Wait and Done.
func (c *Cmd) Kill() {
	select {
	case <-c.done: // its id may belong to another process now
	default:
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) // ESRCH: it has just ended
	}
}

// record stores the id of a process, so that a later program can end it if this one cannot.
func record(path string, pid int, args []string) error {
	start, err := startTime(pid)
	if err != nil {
		return nil //nolint:nilerr // the process has ended already: there is nothing to record
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	prog := args[0]
	if len(args) > 4 && args[1] == "netns" {
		prog = args[4] // what `ip netns exec` turns into
	}
	_, err = fmt.Fprintf(f, "%d %s %s\n", pid, start, filepath.Base(prog))
	return errors.Join(err, f.Close())
}

// killRecorded kills the processes of a record that are still the same: same id, same start time,
// same program.
func killRecorded(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		pid, err := strconv.Atoi(f[0])
		if err != nil || pid <= 1 {
			continue
		}
		start, err := startTime(pid)
		if err != nil || start != f[1] {
			continue
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.Contains(string(cmdline), f[2]) {
			continue
		}
		_ = syscall.Kill(-pid, syscall.SIGKILL) // each was the leader of its process group
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// startTime returns field 22 of /proc/PID/stat, the start of the process in clock ticks after boot.
// An error means that the process does not exist.
func startTime(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field is the program's name in parentheses, and may contain any character.
	_, rest, ok := strings.Cut(string(b[max(0, bytes.LastIndexByte(b, ')')):]), " ")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 {
		return "", fmt.Errorf("reading /proc/%d/stat: unknown form", pid)
	}
	return f[19], nil
}
