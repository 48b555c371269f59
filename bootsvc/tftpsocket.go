package bootsvc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/httpserve"
)

const tftpBuffer = 2 << 20 // bytes that the kernel keeps of packets that are not read yet

// datagram is a UDP packet that was received, or is to be sent.
type datagram struct {
	peer  netip.AddrPort
	local netip.Addr // of this host
	// content follows head. A received packet has no head.
	head, content []byte
}

// tftpSocket is a UDP socket whose reader waits in the kernel. With a socket of package
// net, each packet first wakes Go's network poller, and then the reader: that takes
// longer than everything else that is done for an ACK. Package ipv4 has batches too, but
// describes them in new memory each time: a tenth of a transfer without windows.
type tftpSocket struct {
	fd       int
	in, out  *packetVector
	received []datagram // what in has
}

// packetVector is an argument of recvmmsg(2) and sendmmsg(2).
type packetVector struct {
	headers [tftpBatch]mmsghdr
	peers   [tftpBatch]unix.RawSockaddrInet4
	locals  [tftpBatch]packetInfo
	buffers [tftpBatch][2]unix.Iovec
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	received uint32 // bytes
}

// packetInfo is the control message IP_PKTINFO of ip(7). Spec_dst is the address of this
// host that answers a received packet, or the source of a sent one.
type packetInfo struct {
	unix.Cmsghdr
	unix.Inet4Pktinfo
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
	s = &tftpSocket{fd: fd, in: &packetVector{}, out: &packetVector{}, received: make([]datagram, tftpBatch/4)}
	for n := range s.received {
		s.received[n].content = make([]byte, maxTFTPRequest+1) // a longer packet is cut off, and invalid
	}
	if err := errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)); err != nil {
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

// Receive implements packets.
func (s *tftpSocket) Receive(limit int) ([]datagram, error) {
	limit = min(limit, len(s.received))
	for n := range s.received[:limit] {
		s.in.set(n, datagram{content: s.received[n].content[:maxTFTPRequest+1]})
	}
	count, err := s.in.call(unix.SYS_RECVMMSG, s.fd, limit, unix.MSG_WAITFORONE)
	for n := range s.received[:count] {
		d, from := &s.received[n], &s.in.peers[n]
		d.peer = netip.AddrPortFrom(netip.AddrFrom4(from.Addr), htons(from.Port))
		d.local = netip.AddrFrom4(s.in.locals[n].Spec_dst)
		d.content = d.content[:s.in.headers[n].received]
	}
	return s.received[:count], err
}

// Send implements packets.
func (s *tftpSocket) Send(packets []datagram) (int, error) {
	for n, d := range packets {
		s.out.set(n, d)
	}
	return s.out.call(unix.SYS_SENDMMSG, s.fd, len(packets), 0)
}

// set describes packet n.
func (v *packetVector) set(n int, d datagram) {
	h, peer, local, buffers := &v.headers[n], &v.peers[n], &v.locals[n], &v.buffers[n]
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(peer)), unix.SizeofSockaddrInet4
	if d.peer.IsValid() {
		*peer = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: d.peer.Addr().As4(), Port: htons(d.peer.Port())}
	}
	h.Control = (*byte)(unsafe.Pointer(local))
	h.SetControllen(int(unsafe.Sizeof(*local)))
	*local = packetInfo{Cmsghdr: unix.Cmsghdr{Level: unix.IPPROTO_IP, Type: unix.IP_PKTINFO}}
	local.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
	if d.local.IsValid() {
		local.Spec_dst = d.local.As4()
	}
	for n, b := range [...][]byte{d.head, d.content} {
		buffers[n].Base = unsafe.SliceData(b)
		buffers[n].SetLen(len(b))
	}
	h.Iov = &buffers[0]
	h.SetIovlen(len(buffers))
}

// call makes a system call with the first count packets, and returns how many it has
// handled.
func (v *packetVector) call(trap uintptr, fd, count int, flags uintptr) (int, error) {
	n, _, e := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(v)), uintptr(count), flags, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// htons converts v to or from network byte order.
func htons(v uint16) uint16 { return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)}) }

// Stop implements packets. Linux wakes readers although an unconnected socket cannot be
// shut down.
func (s *tftpSocket) Stop() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

// Close closes the socket, which must not be in use.
func (s *tftpSocket) Close() error { return unix.Close(s.fd) }
