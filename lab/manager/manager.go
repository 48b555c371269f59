// Package manager simulates systemd for tests and for the lab: it keeps the sockets of a service, and detects when the
// service is ready.
package manager

import (
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// closedIn is the delay before a dropped socket is closed: systemd closes it asynchronously, too.
const closedIn = 200 * time.Millisecond

// A Manager keeps the sockets that a service sends it, as systemd does.
type Manager struct {
	conn *net.UnixConn
	mu   sync.Mutex
	kept map[string]*os.File
	done chan struct{}

	ready  bool
	alive  int  // how often the service has reported that it works
	marked bool // the service has sent a STATUS since the last call of Marked
}

// New returns a Manager that receives the messages of a service on a socket at path.
func New(path string) (*Manager, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	m := &Manager{conn: conn, kept: map[string]*os.File{}, done: make(chan struct{})}
	go m.receive()
	return m, nil
}

func (m *Manager) receive() {
	defer close(m.done)
	text, oob := make([]byte, 4096), make([]byte, 4096)
	for {
		n, used, _, _, err := m.conn.ReadMsgUnix(text, oob)
		if err != nil {
			return
		}
		m.message(strings.Split(string(text[:n]), "\n"), files(oob[:used]))
	}
}

// files returns the files that are attached to a message.
func files(oob []byte) (out []*os.File) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			out = append(out, os.NewFile(uintptr(fd), "kept"))
		}
	}
	return out
}

func (m *Manager) message(lines []string, passed []*os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var name string
	for _, line := range lines {
		if text, ok := strings.CutPrefix(line, "FDNAME="); ok {
			name = text
		}
	}
	switch {
	case lines[0] == "READY=1":
		m.ready = true
	case lines[0] == "WATCHDOG=1":
		m.alive++
	case strings.HasPrefix(lines[0], "STATUS="):
		m.marked = true
	case lines[0] == "FDSTORE=1" && len(passed) == 1:
		if m.kept[name] == nil { // like systemd, keep the socket already stored under this name
			m.kept[name], passed = passed[0], nil
		}
	case lines[0] == "FDSTOREREMOVE=1" && m.kept[name] != nil:
		f := m.kept[name]
		delete(m.kept, name)
		time.AfterFunc(closedIn, func() { _ = f.Close() })
	}
	for _, f := range passed {
		_ = f.Close()
	}
}

// Service returns how to start a process of the service: command is a prefix for its command line, env are additional
// environment variables, and kept are files to pass after standard error. The caller closes kept once the process has
// started.
func (m *Manager) Service() (command, env []string, kept []*os.File, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	env = []string{"NOTIFY_SOCKET=" + m.conn.LocalAddr().String()}
	var names []string
	for name, f := range m.kept {
		fd, e := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		names, kept = append(names, name), append(kept, os.NewFile(uintptr(fd), name))
	}
	if len(kept) > 0 {
		env = append(env, "LISTEN_FDS="+strconv.Itoa(len(kept)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}
	return []string{"sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh"}, env, kept, err
}

// Kept returns how many sockets are kept.
func (m *Manager) Kept() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.kept)
}

// Ready reports whether the service has sent READY=1.
func (m *Manager) Ready() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ready
}

// Alive returns how often the service has sent WATCHDOG=1.
func (m *Manager) Alive() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.alive
}

// Marked reports whether the service has sent a STATUS since the last call of Marked. Messages arrive in order.
func (m *Manager) Marked() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.marked = false }()
	return m.marked
}

// Close stops receiving, and closes all kept sockets.
func (m *Manager) Close() error {
	err := m.conn.Close()
	<-m.done
	for _, f := range m.kept {
		err = errors.Join(err, f.Close())
	}
	return err
}
