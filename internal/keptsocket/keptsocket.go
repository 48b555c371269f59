// Package keptsocket binds listening sockets that systemd keeps while the server is away after a crash: connections then wait
// for the next process instead of being refused. Firmware does not ask again when it is refused.
//
// The sockets are in the file descriptor store of the service (FileDescriptorStoreMax= in systemd.service(5), FDSTORE=1 in
// sd_notify(3)), and the next process gets them by sd_listen_fds(3). Without a service manager, and after a regular stop,
// nothing is kept.
package keptsocket

import (
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// unusedFor is how long the service manager goes on keeping a socket that this process does not use, because its address has
// left the configuration.
const unusedFor = time.Minute

// store has the sockets of the process before, by name, that were not used yet.
type store struct {
	mu     sync.Mutex
	unused map[string]*os.File
}

var inherited = sync.OnceValue(func() *store {
	s := &store{unused: map[string]*os.File{}}
	for _, f := range activation.Files(true) {
		s.unused[f.Name()] = f
	}
	if len(s.unused) > 0 {
		time.AfterFunc(unusedFor, s.dropUnused)
	}
	return s
})

func (s *store) take(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.unused[name]
	delete(s.unused, name)
	return f
}

func (s *store) dropUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.unused {
		_ = f.Close() // the service manager's copy holds the port
		_ = notify("FDSTOREREMOVE=1\nFDNAME="+name, nil)
	}
	clear(s.unused)
}

// Listen returns the socket that the process before had bound to addr, or binds one, as net.ListenConfig does. The service
// manager keeps it until it is closed.
func Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	name := strings.ReplaceAll(network+"-"+addr, ":", "_") // a name has no colon
	l, err := listen(ctx, network, addr, inherited().take(name))
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return l, nil
	}
	// An error means that a crash will refuse connections, as without a service manager.
	_ = keep(name, tcp)
	return listener{tcp, name}, nil
}

func listen(ctx context.Context, network, addr string, kept *os.File) (net.Listener, error) {
	if kept != nil {
		defer kept.Close()
		if l, err := net.FileListener(kept); err == nil {
			return l, nil
		}
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, network, addr)
}

type listener struct {
	*net.TCPListener
	name string
}

// Close also ends that the socket is kept: its address may change before the next start.
func (l listener) Close() error {
	_ = notify("FDSTOREREMOVE=1\nFDNAME="+l.name, nil) // the service manager drops it when the service has stopped
	return l.TCPListener.Close()
}

// keep has the service manager keep a socket under a name.
func keep(name string, l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		sent = notify("FDSTORE=1\nFDNAME="+name, unix.UnixRights(int(fd)))
	})
	if err != nil {
		return err
	}
	return sent
}

// notify sends a message to the service manager, if there is one that listens.
func notify(message string, rights []byte) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // a net.UnixConn of datagrams cannot pass files
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendmsg(fd, []byte(message), rights, &unix.SockaddrUnix{Name: path}, 0)
}
