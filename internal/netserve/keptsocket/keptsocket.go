// Package keptsocket binds listening sockets that systemd keeps open after the server crashes: connections then wait
// for the next process instead of being refused. This matters because firmware does not retry after a refused
// connection.
//
// The sockets are in the file descriptor store of the service (FileDescriptorStoreMax= in systemd.service(5),
// FDSTORE=1 in sd_notify(3)), and the next process inherits them (sd_listen_fds(3)). Without a service manager, and
// after a regular stop, no socket is kept.
//
// The package also reports to systemd that the service is ready, and at intervals that it works.
package keptsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/host/clock"
)

const (
	// unusedFor is how long inherited sockets wait until Listen takes them. Then they are closed: usually their address is no longer
	// configured.
	unusedFor = time.Minute
	// freedIn limits how long to wait until systemd has closed a socket that it was told to drop.
	freedIn = 5 * time.Second
)

// store holds the sockets that this process inherited and that no Listen has taken yet, by name.
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
		time.AfterFunc(unusedFor, func() { s.drop("") })
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

// drop closes the unused sockets whose names end with suffix, and makes systemd drop them.
func (s *store) drop(suffix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.unused {
		if strings.HasSuffix(name, suffix) {
			_ = f.Close() // this alone does not free the port: systemd holds a copy
			forget(name)
			delete(s.unused, name)
		}
	}
}

// Listen returns the inherited socket for addr (host:port), or binds a new one. systemd keeps the socket until Close
// is called. network is tcp or tcp4.
func Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	s, name := inherited(), nameOf(addr)
	l, err := listen(ctx, network, addr, s.take(name))
	if errors.Is(err, unix.EADDRINUSE) && managed() {
		// The port is in use, because the previous process used it with another address, or because this process has just closed its
		// socket and systemd has not yet closed its copy.
		s.drop(name[strings.LastIndex(name, "_"):])
		l, err = listenWhenFree(ctx, network, addr)
	}
	if err != nil {
		return nil, err
	}
	tcp := l.(*net.TCPListener)
	keep(name, tcp)
	return listener{tcp, name}, nil
}

// listenWhenFree binds an address that is in use, trying for at most freedIn. It polls, because the kernel does not
// report freed ports.
func listenWhenFree(ctx context.Context, network, addr string) (net.Listener, error) {
	waiting, cancel := context.WithTimeout(ctx, freedIn)
	defer cancel()
	for {
		l, err := listen(ctx, network, addr, nil)
		if !errors.Is(err, unix.EADDRINUSE) || clock.Sleep(waiting, 20*time.Millisecond) != nil {
			return l, err
		}
	}
}

// nameOf returns the name under which systemd keeps the socket for addr. Such a name must not contain a colon.
func nameOf(addr string) string { return strings.ReplaceAll(addr, ":", "_") }

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

// Close closes the socket and makes systemd drop its copy, so that no socket is kept after a regular stop.
func (l listener) Close() error {
	forget(l.name)
	return l.TCPListener.Close()
}

// keep makes systemd keep a socket under a name. If that fails, the service still works, but connections are refused
// after a crash.
func keep(name string, l *net.TCPListener) {
	raw, err := l.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = notify("FDSTORE=1\nFDNAME="+name, unix.UnixRights(int(fd))) })
}

// forget makes systemd drop the socket with this name. If that fails, systemd keeps it.
func forget(name string) { _ = notify("FDSTOREREMOVE=1\nFDNAME="+name, nil) }

// Ready reports to the service manager, if there is one, that the service accepts connections, so that "systemctl
// start" returns (Type=notify in systemd.service(5)). Later calls have no effect. If it returns an error, the process
// must exit: otherwise "systemctl start", dpkg and the boot of the host would wait forever.
func Ready() error {
	if err := notify("READY=1", nil); err != nil {
		return fmt.Errorf("telling the service manager at NOTIFY_SOCKET=%q that the service is ready: %w", os.Getenv("NOTIFY_SOCKET"), err)
	}
	return nil
}

// managed reports whether a service manager started this process.
func managed() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// notify sends a message to the service manager, together with rights, a control message that may pass files. Without a service manager,
// it does nothing.
func notify(message string, rights []byte) error {
	if !managed() {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // a connected net.UnixConn of datagrams cannot pass files
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendmsg(fd, []byte(message), rights, &unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}, 0)
}
