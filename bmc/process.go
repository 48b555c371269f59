package bmc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	// maxProcesses limits how many programs that control BMCs run at once.
	maxProcesses = 64
	// lockPoll is the pause between two attempts to take the lock.
	lockPoll = 50 * time.Millisecond
)

// processes runs ipmitool and the administrator's power commands. It guarantees that at most maxProcesses of these
// programs run at once, and that after a restart of the server, a command of the old server never takes effect after
// the first command of the new server.
//
// For the second guarantee, the kernel kills a program when its server ends (PR_SET_PDEATHSIG). The program's child
// processes may survive. All these processes inherit a lock (flock(2)) on a file, and a new server takes this lock
// before its first command. Because a child process may never end, the new server waits for the lock only as long as a
// command may take. After that, it starts commands without the lock, and takes the lock when it becomes free.
type processes struct {
	log   *slog.Logger
	slots chan struct{}
	// file is the path of the lock file; "" = none. patience limits how long to wait for the lock. It is the longest
	// time that a command may take.
	file     string
	patience time.Duration

	mu     sync.Mutex
	lock   *os.File // the lock file; open from the first command until close
	locked bool
	// began is when the wait for the lock began. Once the wait has lasted for patience, overdue is set, and commands
	// start without the lock.
	began   time.Time
	overdue bool
	closed  bool
}

var errClosed = errors.New("the server is stopping")

// enter waits until fewer than maxProcesses programs run and the programs of an earlier server have ended. The caller
// may then run one program, and must call leave when this program has ended.
func (p *processes) enter(ctx context.Context) (leave func(), err error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	if err := p.acquireLock(ctx); err != nil {
		<-p.slots
		return nil, err
	}
	return func() { <-p.slots }, nil
}

// acquireLock waits until a command may start. It returns the context's error if ctx ends first, and errClosed after
// close was called.
func (p *processes) acquireLock(ctx context.Context) error {
	for {
		if ready, err := p.tryLock(); ready || err != nil {
			return err
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return fmt.Errorf("waiting for BMC commands that an earlier server started: %w", ctx.Err())
		}
	}
}

// tryLock takes the lock if it is free. ready reports whether a command may start: the server holds the lock, has
// waited long enough for it, or cannot open the file. Every program inherits the open file. So a program that was
// started without the lock also holds it once the server has taken the lock.
func (p *processes) tryLock() (ready bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	switch {
	case p.closed:
		return false, errClosed
	case p.file == "" || p.locked:
		return true, nil
	}

	first := p.lock == nil
	if first {
		f, err := os.OpenFile(p.file, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			p.log.Error("opening the lock file of BMC commands", "file", p.file, "error", err)
			return true, nil // for example because the disk is full; BMCs must stay reachable all the same
		}
		p.lock, p.began = f, time.Now()
	}

	err = syscall.Flock(int(p.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	waited := time.Since(p.began)
	switch {
	case err == nil:
		p.locked = true
	case p.overdue:
	case !errors.Is(err, syscall.EWOULDBLOCK) || waited > p.patience:
		p.overdue = true
		p.log.Error("BMC commands of an earlier server still hold the lock file; new commands start without waiting for it",
			"file", p.file, "waited", waited, "error", err)
	case first:
		p.log.Warn("waiting for BMC commands that an earlier server started", "file", p.file)
	}

	return p.locked || p.overdue, nil
}

// run starts cmd and waits until cmd has ended. Call it only between enter and leave.
func (p *processes) run(cmd *exec.Cmd) error {
	p.mu.Lock()
	if p.lock != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, p.lock)
	}
	p.mu.Unlock()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL

	// The kernel kills the program when the thread that started it ends. Therefore keep this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// close closes the lock file. After that, enter returns an error. Programs that still run hold the lock until they end.
func (p *processes) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.lock == nil {
		return nil
	}
	err := p.lock.Close()
	p.lock = nil
	return err
}
