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

	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// fileLock is a flock on a file next to the database. SQLite alone would let two servers open the database, and they would
// corrupt each other's task queues.
type fileLock struct {
	file *os.File
}

// takeLock takes the lock. If an orphan holds the lock, takeLock waits for its end, at most for the time wait. Then it returns a *Failure
// that names the process that holds the lock.
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
				Holder:  holder,
				Message: fmt.Sprintf("locking %q: %[3]s has held the lock for more than %[2]s", path, wait, holder),
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

// sign writes the id of this process into the file, so that a process that waits for the lock can name the holder in its error. On a full
// disk, the file stays empty: the lock works without the id.
func (l *fileLock) sign() error {
	text := []byte(strconv.Itoa(os.Getpid()) + "\n")
	// Do not truncate the file first: on a full disk, the freed space may be gone before the id is written.
	if _, err := l.file.WriteAt(text, 0); err != nil {
		text = nil
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
			return fmt.Errorf("writing the process id into the lock file: %w", err)
		}
	}
	if err := l.file.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("writing the process id into the lock file: %w", err)
	}
	return nil
}

// release releases the lock. The file must stay: if it were removed, a second process could lock a new file while another still holds the
// old one.
func (l *fileLock) release() {
	_ = l.file.Close() // closing releases the lock; nothing is buffered
}

// lockHolder returns the name of the process whose id is in the lock file, and the advice for the operator.
func lockHolder(f *os.File) (holder, remedy string) {
	const otherServer = "if another Ingot runs on this data directory, stop it first, or set another data_dir for this one"
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if err != nil {
		return "another process", otherServer
	}

	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return "another process", otherServer
	}

	holder = processName(pid)
	p, ok := temporalchild.ReadProcess(pid)
	switch {
	case !ok:
		return holder, otherServer
	case p.State == "T" || p.State == "t":
		return holder + ", which is stopped", fmt.Sprintf("continue the process (kill -CONT %d), which then ends if its server is gone; "+
			"or end it: kill -KILL %d. Until then, Ingot tries again", pid, pid)
	case p.Parent == 1:
		return holder + ", whose server is gone", fmt.Sprintf("the process should end on its own; if it does not: kill -KILL %d. "+
			"Until then, Ingot tries again", pid)
	}

	return holder, otherServer
}

// processName returns the process in the form "ingot (pid 12)", or "pid 12" if /proc does not show its name.
func processName(pid int) string {
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return "pid " + strconv.Itoa(pid)
	}

	return strings.TrimSpace(string(comm)) + " (pid " + strconv.Itoa(pid) + ")"
}
