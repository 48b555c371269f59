package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watchGroup uses fanotify(7) to intercept each open of some files. An open waits until the
// processes that have the file open are counted. The kernel allows few groups (128 for all programs
// of a user), so a lab has only one.
type watchGroup struct {
	file  *os.File // the fanotify descriptor
	ended chan struct{}

	mu    sync.Mutex
	disks map[inode]*diskWatch
}

// inode identifies a file independently of its path.
type inode struct{ dev, ino uint64 }

// diskWatch counts the processes that have a file open for writing.
type diskWatch struct {
	inode
	name  string
	mu    sync.Mutex
	max   int
	opens int
}

func newWatchGroup() (*watchGroup, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_REPORT_TID,
		unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching disks: %w", err)
	}
	g := &watchGroup{file: os.NewFile(uintptr(fd), "fanotify"), ended: make(chan struct{}), disks: map[inode]*diskWatch{}}
	go g.serve()
	return g, nil
}

// watchDisk watches a disk of the lab until Close.
func (l *Lab) watchDisk(path string) (*diskWatch, error) {
	l.mu.Lock()
	g := l.watches
	l.mu.Unlock()
	if g == nil {
		fresh, err := newWatchGroup()
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		if l.watches == nil {
			l.watches = fresh
		}
		g = l.watches
		l.mu.Unlock()
		switch {
		case g != fresh: // another machine was faster
			if err := fresh.close(); err != nil {
				return nil, err
			}
		case !l.onClose(fresh.close):
			return nil, errors.Join(ErrClosed, fresh.close())
		}
	}
	return g.watch(path)
}

// watch starts counting the processes that open a file.
func (g *watchGroup) watch(path string) (*diskWatch, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, err
	}
	w := &diskWatch{inode: inode{st.Dev, st.Ino}, name: filepath.Base(path)}
	g.mu.Lock()
	g.disks[w.inode] = w
	g.mu.Unlock()
	var err error
	if e := control(g.file,
		func(fd int) { err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, path) }); e != nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", path, err)
	}
	return w, nil
}

// control calls f with the descriptor of a file, and keeps the file open during the call.
func control(file *os.File, f func(fd int)) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f(int(fd)) })
}

// most returns the largest number of writers so far.
func (w *diskWatch) most() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.max
}

// openings returns how often the file was opened for writing so far.
func (w *diskWatch) openings() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opens
}

// close ends all watches; waiting opens succeed.
func (g *watchGroup) close() error {
	err := g.file.Close()
	<-g.ended
	return err
}

// serve answers the kernel.
func (g *watchGroup) serve() {
	defer close(g.ended)
	const head = 24 // struct fanotify_event_metadata
	buf := make([]byte, 4096)
	for {
		n, err := g.file.Read(buf)
		if err != nil {
			return // closed
		}
		for b := buf[:n]; len(b) >= head; {
			size := binary.NativeEndian.Uint32(b)
			fd, tid := int32(binary.NativeEndian.Uint32(b[16:])), int(int32(binary.NativeEndian.Uint32(b[20:])))
			if size < head || int(size) > len(b) {
				return
			}
			b = b[size:]
			if fd < 0 {
				continue
			}
			if w := g.of(int(fd)); w != nil {
				w.count(tid)
			}
			var answer [8]byte // struct fanotify_response
			binary.NativeEndian.PutUint32(answer[:], uint32(fd))
			binary.NativeEndian.PutUint32(answer[4:], unix.FAN_ALLOW)
			_, _ = g.file.Write(answer[:]) // after the group was closed, the kernel allows the open
			_ = unix.Close(int(fd))        // the descriptor only identifies the file
		}
	}
}

// of returns the watch of the file with that descriptor.
func (g *watchGroup) of(fd int) *diskWatch {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.disks[inode{st.Dev, st.Ino}]
}

// count counts the processes that have the file open for writing, while the thread tid waits for
// its open.
func (w *diskWatch) count(tid int) {
	if !opensForWriting(tid) {
		return
	}
	n := 1 + w.holders(threadGroup(tid))
	w.mu.Lock()
	w.max = max(w.max, n)
	w.opens++
	w.mu.Unlock()
}

// holders counts the processes that have the file open for writing, with exceptions.
func (w *diskWatch) holders(except ...int) int {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0 // the lab reads /proc everywhere: there is one
	}
	n := 0
	for _, p := range procs {
		if pid, err := strconv.Atoi(p.Name()); err == nil && !slices.Contains(except, pid) && w.holds(pid) {
			n++
		}
	}
	return n
}

// holds reports whether a process has the file open for writing.
func (w *diskWatch) holds(pid int) bool {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false // it has ended
	}
	for _, fd := range fds {
		to, err := os.Readlink(dir + fd.Name())
		if err != nil || filepath.Base(to) != w.name {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(dir+fd.Name(), &st) != nil || st.Dev != w.dev || st.Ino != w.ino {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd.Name()))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(info)) {
			if v, ok := strings.CutPrefix(line, "flags:"); ok {
				if flags, err := strconv.ParseUint(strings.TrimSpace(v), 8, 64); err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY {
					return true
				}
			}
		}
	}
	return false
}

// opensForWriting reads from the system call of a waiting thread how it opens the file. An unknown
// mode counts as writing.
func opensForWriting(tid int) bool {
	var b []byte
	var err error
	for range 1000 {
		// The kernel queues the event just before the thread waits; until then the file says "running".
		if b, err = os.ReadFile(fmt.Sprintf("/proc/%d/syscall", tid)); string(bytes.TrimSpace(b)) != "running" {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	f := strings.Fields(string(b))
	if err != nil || len(f) < 4 {
		return true
	}
	flag := ""
	switch f[0] {
	case strconv.Itoa(unix.SYS_OPENAT):
		flag = f[3]
	case strconv.Itoa(unix.SYS_OPEN):
		flag = f[2]
	default:
		return true
	}
	flags, err := strconv.ParseUint(strings.TrimPrefix(flag, "0x"), 16, 64)
	return err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY
}

// threadGroup returns the process of a thread.
func threadGroup(tid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return tid
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Tgid:"); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
				return n
			}
		}
	}
	return tid
}
