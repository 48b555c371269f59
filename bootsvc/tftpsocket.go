package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/httpserve"
)

const tftpBuffer = 2 << 20 // bytes that the kernel keeps of packets that are not read yet

// tftpSocket is a UDP socket whose reader waits in the kernel. With a socket of package
// net, each packet first wakes Go's network poller, and then the reader: that takes
// longer than everything else that is done for an ACK.
type tftpSocket struct {
	*ipv4.PacketConn
	fd int
}

// listenTFTP binds addr, or its port of self.
func listenTFTP(ctx context.Context, addr string, self netip.Addr) (*tftpConn, error) {
	full := httpserve.WithHost(addr, self)
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(ctx, "udp4", full)
	if err != nil {
		return nil, fmt.Errorf("binding UDP %s for TFTP: %w (%s)", full, err, httpserve.BindRemedy(err, "TFTP address"))
	}
	s, err := newTFTPSocket(pc.(*net.UDPConn))
	if err != nil {
		return nil, fmt.Errorf("preparing the TFTP socket: %w", err)
	}
	return newTFTPConn(s), nil
}

// newTFTPSocket takes the socket of u, and closes u.
func newTFTPSocket(u *net.UDPConn) (s *tftpSocket, err error) {
	defer func() { err = errors.Join(err, u.Close()) }()
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	controlErr := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(controlErr, err); err != nil {
		return nil, err
	}
	s = &tftpSocket{ipv4.NewPacketConn(blockingUDP{u, blockingFD(fd)}), fd}
	if err := errors.Join(unix.SetNonblock(fd, false), s.SetControlMessage(ipv4.FlagDst, true)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// A large buffer keeps requests during a burst of forged ones. Without CAP_NET_ADMIN,
	// the kernel's default size remains.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, tftpBuffer)
	// Routers with a smaller MTU may split blocks. Otherwise they would drop the first one,
	// and the client would wait until it is repeated.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	return s, nil
}

// Stop implements packets. Linux wakes readers although an unconnected socket cannot be
// shut down.
func (s *tftpSocket) Stop() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

// Close closes the socket, which must not be in use.
func (s *tftpSocket) Close() error { return unix.Close(s.fd) }

// blockingUDP makes ipv4.PacketConn use raw instead of the socket of UDPConn, which is
// closed.
type blockingUDP struct {
	*net.UDPConn
	raw blockingFD
}

func (u blockingUDP) SyscallConn() (syscall.RawConn, error) { return u.raw, nil }

// blockingFD is a syscall.RawConn without the network poller.
type blockingFD int

func (fd blockingFD) Control(f func(fd uintptr)) error {
	f(uintptr(fd))
	return nil
}

func (fd blockingFD) Read(f func(fd uintptr) (done bool)) error {
	for !f(uintptr(fd)) {
	}
	return nil
}

func (fd blockingFD) Write(f func(fd uintptr) (done bool)) error { return fd.Read(f) }
