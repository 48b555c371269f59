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
	// maxProcesses is how many programs that speak to BMCs run at once.
	maxProcesses = 64
	// lockPoll is the pause between looks at a lock that another server's programs hold.
	lockPoll = 50 * time.Millisecond
)

// processes runs ipmitool and an administrator's power commands. It keeps two
// promises: no more than a fixed number of them run at once, and none takes
// effect between the commands of a later server.
//
// For the second, the kernel kills a program when the server dies
// (PR_SET_PDEATHSIG). What the program itself has started may live on. All of
// them inherit a lock (flock(2)) on a file, and a new server takes that lock
// before its first command. It waits at most as long as a command may take,
// because what a command left running may never end, and takes the lock later.
type processes struct {
	log   *slog.Logger
	slots chan struct{}
	// file is the lock file; "" = none. patience is how long a lock is awaited:
	// longer than any command may take.
	file     string
	patience time.Duration

	mu     sync.Mutex
	lock   *os.File // open from the first command until close
	locked bool
	// began is when the lock was first awaited. overdue is whether patience has
	// passed since then: commands start without the lock.
	began   time.Time
	overdue bool
	closed  bool
}

var errClosed = errors.New("the server is stopping")

// enter waits for a slot, and for the programs of an earlier server. The
// caller calls leave when its program has ended.
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

// acquireLock waits until a command may start. Its error wraps the context's,
// or is errClosed.
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

// tryLock takes the lock if it is free, and returns whether a command may start:
// the server holds the lock, the lock is overdue, or its file does not work.
// A program that starts before the lock is taken inherits the open file, and
// so holds the lock too, from the moment a later command takes it.
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
			return true, nil // a BMC must be reachable on a full disk, too
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
		p.log.Error("locking out BMC commands of an earlier server; commands now start without the lock",
			"file", p.file, "waited", waited, "error", err)
	case first:
		p.log.Warn("waiting for BMC commands that an earlier server started", "file", p.file)
	}

	return p.locked || p.overdue, nil
}

// run starts cmd and waits for its end. It is called between enter and leave.
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

	// The signal comes when the thread ends that started the program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// close lets go of the lock. Programs that still run hold it until they end.
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
