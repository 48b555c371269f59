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
// before its first command.
type processes struct {
	log   *slog.Logger
	slots chan struct{}
	// file is the lock file; "" = none. patience is how long a lock is awaited:
	// longer than any command may take.
	file     string
	patience time.Duration

	mu     sync.Mutex
	lock   *os.File // held until close; nil before the first command
	closed bool
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
	if err := p.inherit(ctx); err != nil {
		<-p.slots
		return nil, err
	}
	return func() { <-p.slots }, nil
}

// inherit takes the lock once. Its error is the context's, or errClosed.
func (p *processes) inherit(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return errClosed
	case p.file == "" || p.lock != nil:
		return nil
	}
	f, err := os.OpenFile(p.file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		p.log.Error("opening the lock file of BMC commands", "file", p.file, "error", err)
		return nil // a BMC must be reachable on a full disk, too
	}
	for began := time.Now(); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Since(began) > p.patience {
			p.log.Error("locking out BMC commands of an earlier server", "file", p.file, "waited", time.Since(began), "error", err)
			break
		}
		if time.Since(began) < lockPoll {
			p.log.Warn("waiting for BMC commands that an earlier server started", "file", p.file)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waiting for BMC commands that an earlier server started: %w", ctx.Err()), f.Close())
		}
	}
	p.lock = f
	return nil
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
