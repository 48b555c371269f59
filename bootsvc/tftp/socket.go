package tftp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

const receiveBuffer = 2 << 20 // bytes for packets that wait to be read

// datagram is a UDP packet, received or to be sent.
type datagram struct {
	peer netip.AddrPort
	// local is the address of this host that the packet was sent to, or is to be sent from. It is invalid for a received
	// broadcast or multicast.
	local   netip.Addr
	head    [4]byte // the first bytes of a packet to be sent, before content
	content []byte
	// of is the transfer to which this packet belongs, or nil. If the socket has no room for the packet, this transfer
	// sends block again; without a transfer, the packet is lost.
	of    *session
	block int64
}

// socket is a UDP socket whose reader blocks in the kernel. With a socket of package net, each packet first wakes Go's
// network poller, which then wakes the reader: that takes longer than handling the ACK. socket makes system calls
// directly, because package ipv4 allocates addresses and control messages for each packet. These allocations take a
// tenth of the time of a transfer without windows.
type socket struct {
	fd       int
	in, out  *packetVector
	received []datagram // reused by each Receive
}

// newSocket returns a socket on a duplicate of u's descriptor, and closes u.
func newSocket(u *net.UDPConn) (s *socket, err error) {
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
	s = &socket{fd: fd, in: &packetVector{}, out: &packetVector{}, received: make([]datagram, maxBatch/4)}
	for n := range s.received {
		s.received[n].content = make([]byte, maxRequest+1) // a longer packet is cut to this size, and readRequest rejects this size
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Large buffers keep requests during a burst of forged requests, and hold the windows of many transfers.
	if err := errors.Join(
		wire.SetBuffer(fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, receiveBuffer),
		wire.SetBuffer(fd, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, wire.SendBuffer),
	); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Let routers with a smaller MTU fragment blocks. Otherwise they drop a block, and the client waits until the
	// block is repeated.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	return s, nil
}

// Receive implements packets.
func (s *socket) Receive(limit int) ([]datagram, error) {
	limit = min(limit, len(s.received))
	for n := range s.received[:limit] {
		s.in.set(n, s.received[n].content[:maxRequest+1])
	}
	// Wait for the first packet only.
	count, _, e := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.in.headers)), uintptr(limit),
		unix.MSG_WAITFORONE, 0, 0)
	if e != 0 {
		return nil, os.NewSyscallError("recvmmsg", e)
	}
	for n := range s.received[:count] {
		d, from, info := &s.received[n], &s.in.peers[n], &s.in.locals[n]
		d.peer = netip.AddrPortFrom(netip.AddrFrom4(from.Addr), wire.Hton16(from.Port))
		if d.local = wire.Addr4(info.Spec_dst[:]); info.Addr != info.Spec_dst {
			d.local = netip.Addr{}
		}
		d.content = d.content[:s.in.headers[n].length]
	}
	return s.received[:count], nil
}

// Send implements packets. The socket is blocking, but Send must not wait: packets that wait for ARP or for a slow
// link may fill the socket's buffer.
func (s *socket) Send(packets []datagram) (int, error) {
	for n := range packets {
		d := &packets[n]
		s.out.set(n, d.head[:], d.content)
		s.out.peers[n] = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: d.peer.Addr().As4(), Port: wire.Hton16(d.peer.Port())}
		s.out.locals[n].Spec_dst = d.local.As4()
	}
	count, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.out.headers)), uintptr(len(packets)),
		unix.MSG_DONTWAIT, 0, 0)
	clear(s.out.buffers[:len(packets)]) // otherwise this memory keeps the chunks of ended transfers
	if e != 0 {
		return 0, os.NewSyscallError("sendmmsg", e)
	}
	return int(count), nil
}

// Stop implements packets. On Linux, shutdown wakes the readers of an unconnected UDP socket, although it returns an
// error.
func (s *socket) Stop() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

// Close closes the socket, which must not be in use.
func (s *socket) Close() error { return unix.Close(s.fd) }

// packetVector is the memory for the arguments of recvmmsg(2) and sendmmsg(2).
type packetVector struct {
	headers [maxBatch]mmsghdr
	peers   [maxBatch]unix.RawSockaddrInet4
	locals  [maxBatch]packetInfo
	buffers [maxBatch][2]unix.Iovec
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	length uint32 // bytes that were received or sent
}

// packetInfo is the control message IP_PKTINFO of ip(7). Of a received packet, Addr is the destination, and Spec_dst
// the address of this host to answer from. Of a packet to be sent, Spec_dst is the source.
type packetInfo struct {
	unix.Cmsghdr
	unix.Inet4Pktinfo
}

// set makes the concatenation of parts the content of packet n.
func (v *packetVector) set(n int, parts ...[]byte) {
	h, peer, local, buffers := &v.headers[n], &v.peers[n], &v.locals[n], &v.buffers[n]
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(peer)), unix.SizeofSockaddrInet4
	*local = packetInfo{Cmsghdr: unix.Cmsghdr{Level: unix.IPPROTO_IP, Type: unix.IP_PKTINFO}}
	local.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
	h.Control = (*byte)(unsafe.Pointer(local))
	h.SetControllen(int(unsafe.Sizeof(*local)))
	for i, b := range parts {
		buffers[i].Base = unsafe.SliceData(b)
		buffers[i].SetLen(len(b))
	}
	h.Iov = &buffers[0]
	h.SetIovlen(len(parts))
}
