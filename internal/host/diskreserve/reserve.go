// Package diskreserve keeps space on the disk of the databases: a file that is released
// when the disk is full, so that machines can still be disarmed and runs under way can
// end.
package diskreserve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Name is the file in the data directory.
const Name = "reserve"

// Options of a Reserve.
type Options struct {
	Dir  string // data directory
	Size int64  // bytes; 0: there is no reserve
	// Floor is the free space, in bytes, below which the reserve is released;
	// 0: a quarter of Size.
	Floor int64
	// Every is how often free space is checked; 0: a second.
	Every time.Duration
	Log   *slog.Logger
	// Changed is called, from Run, after the reserve was released (held is false)
	// or taken back; may be nil.
	Changed func(ctx context.Context, held bool)
	// Free returns the free space of the file system of a directory; nil: [Free].
	Free func(dir string) (int64, error)
}

// Reserve is the reserved space of one data directory. Its methods may be called
// concurrently.
type Reserve struct {
	o    Options
	path string
	wake chan struct{}

	mu       sync.Mutex
	held     bool
	reported bool // held, as Changed got it last
	// failed is how often in a row the disk reported room and the allocation failed;
	// skip is how many checks are left out before the next attempt.
	failed, skip int
}

// maxSkip limits how many checks are left out between two attempts.
const maxSkip = 600

// Open takes the reserve, if there is room for it and the disk is not full already. It
// is called before a database is opened. A reserve that cannot be taken is an error in
// the log; the server serves without it.
func Open(o Options) *Reserve {
	if o.Floor <= 0 {
		o.Floor = o.Size / 4
	}
	if o.Every <= 0 {
		o.Every = time.Second
	}
	if o.Free == nil {
		o.Free = Free
	}

	r := &Reserve{o: o, path: filepath.Join(o.Dir, Name), wake: make(chan struct{}, 1)}
	if o.Size <= 0 {
		if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.Log.Warn("removing a reserve that is no longer configured", "file", r.path, "error", err)
		}
		return r
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held = allocated(r.path) >= o.Size; !r.held {
		// A reserve of another size, or a part of one, cannot be used.
		if err := os.Truncate(r.path, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.Log.Warn("truncating an unusable reserve", "file", r.path, "error", err)
		}
	}
	r.check()
	r.reported = r.held
	if !r.held {
		o.Log.Error("there is no room for the reserve: new runs and uploads are refused until there is",
			"file", r.path, "size_mib", o.Size>>20, "remedy", Remedy)
	}

	return r
}

// Remedy says what to do about a full disk.
const Remedy = "ingot image prune removes images that nothing uses; or make the disk bigger"

// Run releases or retakes the reserve as free space changes, until ctx ends. It
// returns nil.
func (r *Reserve) Run(ctx context.Context) error {
	if r.o.Size <= 0 {
		<-ctx.Done()
		return nil
	}

	tick := time.NewTicker(r.o.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.wake:
		case <-ctx.Done():
			return nil
		}
		r.mu.Lock()
		r.check()
		held, news := r.held, r.held != r.reported
		r.reported = r.held
		r.mu.Unlock()
		if news && r.o.Changed != nil {
			r.o.Changed(ctx, held)
		}
	}
}

// check releases the reserve or takes it back. The caller holds mu.
func (r *Reserve) check() {
	free, err := r.o.Free(r.o.Dir)
	if err != nil {
		r.o.Log.Warn("checking free space", "directory", r.o.Dir, "error", err)
		return
	}

	switch {
	case r.held && free < r.o.Floor:
		r.release("little space is left", free)
	// Twice the floor must stay free, or the reserve would be released again at once.
	case !r.held && free-r.o.Size >= 2*r.o.Floor:
		if r.skip > 0 {
			r.skip--
			return
		}
		if err := allocate(r.path, r.o.Size); err != nil {
			r.failed = min(r.failed+1, 10)
			r.skip = min(1<<r.failed, maxSkip)
			r.o.Log.Warn("taking the reserve back", "file", r.path, "error", err, "next_checks", r.skip)
			return
		}
		r.held, r.failed = true, 0
		r.o.Log.Info("the reserve of disk space is held", "file", r.path, "size_mib", r.o.Size>>20)
	}
}

// Release releases the reserve because a write found no room. It may be called from
// anywhere and waits only for the file system.
func (r *Reserve) Release() {
	r.mu.Lock()
	if r.held {
		r.release("a write found no room", -1)
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reserve) release(why string, free int64) {
	// Truncated and not removed: a file that another process has open would keep its space.
	err := os.Truncate(r.path, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.o.Log.Error("releasing the reserve of disk space", "file", r.path, "error", err)
		return
	}
	r.held = false
	r.o.Log.Error("the disk is full: the reserve is given up so that runs under way can end; new runs and uploads are refused",
		"directory", r.o.Dir, "why", why, "free_mib", max(free, 0)>>20, "reserve_mib", r.o.Size>>20, "remedy", Remedy)
}

// State describes a reserve.
type State struct {
	Path string
	Size int64 // bytes; 0: none is configured
	Held bool
}

// State returns the state now.
func (r *Reserve) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return State{Path: r.path, Size: r.o.Size, Held: r.held}
}

// Missing is how much of the free space belongs to the reserve, bytes.
func (s State) Missing() int64 {
	if s.Held {
		return 0
	}
	return s.Size
}

// Look returns the state of a reserve that another process keeps.
func Look(dir string, size int64) State {
	path := filepath.Join(dir, Name)
	return State{Path: path, Size: size, Held: size > 0 && allocated(path) >= size}
}

// Free returns the space, in bytes, that users other than root may still use on the
// file system of dir.
func Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("asking for the free space of %q: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// allocated is how much space a file takes, 0 when it is not there.
func allocated(path string) int64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return min(st.Blocks*512, st.Size)
}

// allocate makes a file whose size bytes are allocated on the disk.
func allocate(path string, size int64) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Truncate(0))
		}
		err = errors.Join(err, f.Close())
	}()
	if err := f.Truncate(size); err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = fill(f, size)
	}
	if err != nil {
		return err
	}

	return f.Sync()
}

// fill writes random bytes, for file systems that cannot allocate. A file system may
// leave out zeros.
func fill(f *os.File, size int64) error {
	_, err := io.CopyN(f, rand.NewChaCha8([32]byte{}), size)
	return err
}
