package temporalserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/internal/temporalchild"
)

// fileLock is an flock on a file beside the database. Two servers would open one SQLite file without a
// word and spoil each other's task queues.
type fileLock struct {
	file *os.File
}

// takeLock takes the lock, waiting for an orphan of an earlier life that is about to end. The *Failure
// that comes after wait names the process that holds it.
func takeLock(ctx context.Context, path string, wait time.Duration) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	expired := time.After(wait)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %q: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-expired:
			holder, remedy := lockHolder(f)
			return nil, errors.Join(&temporalchild.Failure{
				Kind:    temporalchild.KindLock,
				Holder:  holder,
				Message: fmt.Sprintf("locking %q: for more than %s it has been held by %s", path, wait, holder),
				Remedy:  remedy,
			}, f.Close())
		case <-time.After(50 * time.Millisecond):
		}
	}
	l := &fileLock{file: f}
	if err := l.sign(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// sign leaves our process id for whoever waits. On a disk without room the file is empty instead: a lock is worth more than
// a name on it.
func (l *fileLock) sign() error {
	text := []byte(strconv.Itoa(os.Getpid()) + "\n")
	// Not cut first: what is there already is room, which a full disk may not give again.
	if _, err := l.file.WriteAt(text, 0); err != nil {
		text = nil
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
			return fmt.Errorf("signing the lock file: %w", err)
		}
	}
	if err := l.file.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("signing the lock file: %w", err)
	}
	return nil
}

// release gives the lock back. The file stays: removing it would let two processes hold two of them.
func (l *fileLock) release() {
	_ = l.file.Close() // nothing is buffered, and closing is what drops the lock
}

// lockHolder returns whose process id stands in the lock file, and what to do about that process.
func lockHolder(f *os.File) (holder, remedy string) {
	const stranger = "is another Ingot running on this data directory? Stop that one first, or give this one another data_dir"
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if err != nil {
		return "another process", stranger
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return "another process", stranger
	}
	holder = processName(pid)
	p, ok := process(pid)
	switch {
	case !ok:
		return holder, stranger
	case p.state == "T" || p.state == "t":
		return holder + ", which is stopped", fmt.Sprintf("let it go on (kill -CONT %d), and it ends by itself if its server is gone; or end it: kill -KILL %d. This one is tried again until then", pid, pid)
	case p.parent == 1:
		return holder + ", whose server is gone", fmt.Sprintf("it should end by itself; if it does not: kill -KILL %d. This one is tried again until then", pid)
	}
	return holder, stranger
}

// processStat is what /proc tells of a process.
type processStat struct {
	state  string // one letter, see proc_pid_stat(5)
	parent int
}

func process(pid int) (processStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return processStat{}, false
	}
	// The command name, in parentheses, may contain any character.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return processStat{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	return processStat{fields[0], parent}, err == nil
}

// processName is "ingot (pid 12)", as far as /proc tells.
func processName(pid int) string {
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return "pid " + strconv.Itoa(pid)
	}
	return strings.TrimSpace(string(comm)) + " (pid " + strconv.Itoa(pid) + ")"
}
