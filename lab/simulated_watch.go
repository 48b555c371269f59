package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// diskWatch counts who has a file open for writing. The kernel asks it before each open (fanotify(7)), and lets nobody pass
// until it has looked who has the file open by then.
type diskWatch struct {
	file  *os.File // the fanotify descriptor
	dev   uint64
	ino   uint64
	name  string
	ended chan struct{}
	mu    sync.Mutex
	max   int
}

func watchDisk(path string) (*diskWatch, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, err
	}
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_REPORT_TID, unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", path, err)
	}
	w := &diskWatch{file: os.NewFile(uintptr(fd), "fanotify"), dev: st.Dev, ino: st.Ino, name: filepath.Base(path), ended: make(chan struct{})}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, path); err != nil {
		return nil, errors.Join(fmt.Errorf("watching %s: %w", path, err), w.file.Close())
	}
	go w.serve()
	return w, nil
}

// most is the largest number of writers so far.
func (w *diskWatch) most() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.max
}

// close ends the watch; who waits for an open gets it.
func (w *diskWatch) close() error {
	err := w.file.Close()
	<-w.ended
	return err
}

// serve answers the kernel.
func (w *diskWatch) serve() {
	defer close(w.ended)
	const head = 24 // struct fanotify_event_metadata
	buf := make([]byte, 4096)
	for {
		n, err := w.file.Read(buf)
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
			w.count(tid)
			var answer [8]byte // struct fanotify_response
			binary.NativeEndian.PutUint32(answer[:], uint32(fd))
			binary.NativeEndian.PutUint32(answer[4:], unix.FAN_ALLOW)
			_, _ = w.file.Write(answer[:]) // closed meanwhile: the kernel allows it then
			_ = unix.Close(int(fd))        // only there to name the file
		}
	}
}

// count looks at the processes that have the file open for writing, while the thread tid waits for opening it.
func (w *diskWatch) count(tid int) {
	if !opensForWriting(tid) {
		return
	}
	n := 1 + w.holders(threadGroup(tid))
	w.mu.Lock()
	w.max = max(w.max, n)
	w.mu.Unlock()
}

// holders counts the processes that have the file open for writing, except some.
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

// holds tells whether a process has the file open for writing.
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

// opensForWriting reads, out of the system call that a waiting thread is in, how it opens. What cannot be told counts as writing.
func opensForWriting(tid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", tid))
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

// threadGroup is the process that a thread belongs to.
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
