// Package diskreserve reserves disk space for the databases by means of a file. It releases the space when the disk is
// full, so that machines can still be disarmed and running workflows can end.
package diskreserve

import (
	"cmp"
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

// Name is the name of the reserve file in the data directory.
const Name = "reserve"

// Options configure a Reserve.
type Options struct {
	Dir  string // data directory
	Size int64  // bytes; 0 = no reserve
	// Floor is the free space in bytes below which the reserve is released; 0 = a quarter of Size.
	Floor int64
	// Every is how often free space is checked; 0 = every second.
	Every time.Duration
	Log   *slog.Logger
	// Changed is called by Run after the reserve was released (held is false) or taken back. It may be nil.
	Changed func(ctx context.Context, held bool)
	// Free returns the free space of a directory's file system in bytes; nil = [Free].
	Free func(dir string) (int64, error)
}

// Reserve manages the reserved space of one data directory. Its methods may be called
// concurrently.
type Reserve struct {
	o    Options
	path string
	wake chan struct{}

	mu       sync.Mutex
	held     bool
	reported bool // value of held when Changed was last called
	// failed is how many times in a row the allocation has failed although there seemed to be room. skip is how many checks
	// are skipped before the next attempt.
	failed, skip int
}

// maxSkip is the limit for skip.
const maxSkip = 600

// Open allocates the reserve if there is enough free space. It must be called before a database is opened. If the
// reserve cannot be allocated, Open logs an error, and the server works without it.
func Open(o Options) *Reserve {
	o.Floor, o.Every = cmp.Or(o.Floor, o.Size/4), cmp.Or(o.Every, time.Second)
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
		// A reserve of another size, or an incomplete one, cannot be used.
		if err := os.Truncate(r.path, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.Log.Warn("truncating an unusable reserve", "file", r.path, "error", err)
		}
	}
	r.check()
	r.reported = r.held
	if !r.held {
		o.Log.Error("there is no room for the reserve of disk space: new runs and uploads are refused until there is",
			"file", r.path, "size_mib", o.Size>>20, "remedy", Remedy)
	}

	return r
}

// Remedy is the advice to the operator about a full disk.
const Remedy = "run ingot image prune, which removes unused images, or make the disk bigger"

// Run releases the reserve or takes it back as free space changes, until ctx ends. It returns nil.
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
			r.o.Log.Warn("cannot restore the reserve of disk space", "file", r.path, "error", err, "next_checks", r.skip)
			return
		}
		r.held, r.failed = true, 0
		r.o.Log.Info("the reserve of disk space is restored", "file", r.path, "size_mib", r.o.Size>>20)
	}
}

// Release releases the reserve because a write found no space. Any goroutine may call it; it waits only for the file system.
func (r *Reserve) Release() {
	r.mu.Lock()
	if r.held {
		r.release("a write found no free space", -1)
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reserve) release(why string, free int64) {
	// Truncate and do not remove: if another process had the file open, its space would stay allocated.
	err := os.Truncate(r.path, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.o.Log.Error("releasing the reserve of disk space", "file", r.path, "error", err)
		return
	}
	r.held = false
	r.o.Log.Error("the disk is full: the reserve is released so that open runs can end; new runs and uploads are refused",
		"directory", r.o.Dir, "why", why, "free_mib", max(free, 0)>>20, "reserve_mib", r.o.Size>>20, "remedy", Remedy)
}

// State describes a reserve.
type State struct {
	Path string
	Size int64 // bytes; 0 = no reserve is configured
	Held bool
}

// State returns the current state.
func (r *Reserve) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return State{Path: r.path, Size: r.o.Size, Held: r.held}
}

// Missing returns how many bytes of free space are needed to take the reserve back; 0 = the reserve is held.
func (s State) Missing() int64 {
	if s.Held {
		return 0
	}
	return s.Size
}

// Look returns the state of a reserve that another process manages.
func Look(dir string, size int64) State {
	path := filepath.Join(dir, Name)
	return State{Path: path, Size: size, Held: size > 0 && allocated(path) >= size}
}

// Free returns the space, in bytes, that users other than root can still use on the file system of dir.
func Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("asking for the free space of %q: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// allocated returns the allocated size of a file in bytes, at most its length. It returns 0 if the file does not exist.
func allocated(path string) int64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return min(st.Blocks*512, st.Size)
}

// allocate makes a file of size bytes that are allocated on the disk, and syncs it.
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

// fill allocates space by writing random bytes, for file systems that have no other way. Zeros might be stored as a hole.
func fill(f *os.File, size int64) error {
	_, err := io.CopyN(f, rand.NewChaCha8([32]byte{}), size)
	return err
}
