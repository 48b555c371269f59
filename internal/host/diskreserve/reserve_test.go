package diskreserve

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// disk pretends: what is free is what was said, less what the reserve takes.
type disk struct {
	mu   sync.Mutex
	dir  string
	free int64 // without the reserve
}

func (d *disk) set(free int64) {
	d.mu.Lock()
	d.free = free
	d.mu.Unlock()
}

func (d *disk) Free(string) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.free - allocated(filepath.Join(d.dir, Name)), nil
}

const (
	size  = 4 << 20
	floor = 1 << 20
)

func TestReserve(t *testing.T) {
	t.Parallel()
	d := &disk{dir: t.TempDir(), free: 100 << 20}
	var log bytes.Buffer
	changes := make(chan bool)
	r := Open(Options{
		Dir: d.dir, Size: size, Every: time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil)), Free: d.Free,
		Changed: func(_ context.Context, held bool) { changes <- held },
	})
	path := filepath.Join(d.dir, Name)
	if s := r.State(); !s.Held || s.Missing() != 0 || allocated(path) != size {
		t.Fatalf("the state is %+v, and the file takes %d bytes", s, allocated(path))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	next := func(want bool) {
		t.Helper()
		select {
		case got := <-changes:
			if got != want {
				t.Fatalf("held is %v", got)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("nothing happens")
		}
	}

	d.set(size + floor - 1)
	next(false)
	if s := r.State(); s.Held || s.Missing() != size || allocated(path) != 0 {
		t.Errorf("the state is %+v, and the file takes %d bytes", s, allocated(path))
	}
	d.set(size + 2*floor)
	next(true)
	if s := r.State(); !s.Held || allocated(path) != size {
		t.Errorf("the state is %+v, and the file takes %d bytes", s, allocated(path))
	}
	// A write that finds no room does not wait for the next look. There is room to take it back: that is told, too.
	r.Release()
	if s := Look(d.dir, size); s.Held && allocated(path) != size {
		t.Errorf("the state is %+v", s)
	}
	cancel()
	for {
		select {
		case <-changes:
			continue
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		}
		break
	}
	for _, want := range []string{"the disk is full", "ingot image prune", "a write found no free space"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log", want)
		}
	}
}

// A disk that is full at the start gets the reserve before anybody opens a
// database.
func TestOpenOnAFullDisk(t *testing.T) {
	t.Parallel()
	d := &disk{dir: t.TempDir(), free: 100 << 20}
	o := Options{Dir: d.dir, Size: size, Log: slog.New(slog.DiscardHandler), Free: d.Free}
	if !Open(o).State().Held {
		t.Fatal("it was not taken")
	}
	if !Open(o).State().Held {
		t.Fatal("it was not found")
	}
	d.set(size)
	if s := Open(o).State(); s.Held || allocated(s.Path) != 0 {
		t.Errorf("the state is %+v, and the file takes %d bytes", s, allocated(s.Path))
	}
	if s := Open(o).State(); s.Held {
		t.Error("it was taken although that would leave no room")
	}
}

func TestNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Name), make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	r := Open(Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	r.Release()
	if s := r.State(); s.Held || s.Missing() != 0 {
		t.Errorf("the state is %+v", s)
	}
	if _, err := os.Stat(filepath.Join(dir, Name)); err == nil {
		t.Error("the file of before stays")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := fill(f, 3<<20+5); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := allocated(f.Name()); got != 3<<20+5 {
		t.Errorf("it takes %d bytes", got)
	}
	if err := allocate(filepath.Join(t.TempDir(), "too", "deep"), 1); err == nil {
		t.Error("no error for a directory that is not there")
	}
}

// A reserve that was made bigger in the configuration does not keep the old
// file's space from everybody while there is no room for the new one, and has
// it when that is enough.
func TestOpenWithABiggerSize(t *testing.T) {
	t.Parallel()
	d := &disk{dir: t.TempDir(), free: 100 << 20}
	o := Options{Dir: d.dir, Size: size, Floor: floor, Log: slog.New(slog.DiscardHandler), Free: d.Free}
	if !Open(o).State().Held {
		t.Fatal("it was not taken")
	}
	o.Size = 2 * size
	d.set(2*size + 2*floor - 1)
	if s := Open(o).State(); s.Held || allocated(s.Path) != 0 {
		t.Errorf("the state is %+v, and the file takes %d bytes", s, allocated(s.Path))
	}
	if err := allocate(filepath.Join(d.dir, Name), size); err != nil {
		t.Fatal(err)
	}
	d.set(2*size + 2*floor)
	if s := Open(o).State(); !s.Held || allocated(s.Path) != 2*size {
		t.Errorf("the state is %+v, and the file takes %d bytes", s, allocated(s.Path))
	}
}

// A disk that says that it has room, and will not give it, is not asked at each
// look.
func TestAttemptsBecomeFewer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	if err := os.Mkdir(path, 0o700); err != nil { // nothing can be written there
		t.Fatal(err)
	}
	var log bytes.Buffer
	r := Open(
		Options{Dir: dir, Size: size, Log: slog.New(slog.NewTextHandler(&log, nil)), Free: func(string) (int64, error) { return 100 << 20, nil }},
	)
	look := func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for range n {
			r.check()
		}
	}
	look(1000)
	if n := strings.Count(log.String(), "cannot restore the reserve of disk space"); n < 2 || n > 10 {
		t.Errorf("%d attempts in 1000 looks", n)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	look(maxSkip + 1)
	if !r.State().Held {
		t.Error("it is never tried again")
	}
}
