package wire

import (
	"golang.org/x/sys/unix"
)

// MaxDatagram is the size of the receive buffer for one packet, in bytes.
const MaxDatagram = 4096

// SendBuffer is the size in bytes that is requested for a socket's send buffer. The kernel counts each packet as at
// least twice its size.
const SendBuffer = 8 << 20

// SetBuffer sets the size of a socket's buffer. option is SO_SNDBUF or SO_RCVBUF, and force is SO_SNDBUFFORCE or
// SO_RCVBUFFORCE. Without CAP_NET_ADMIN, the kernel limits the size to net.core.wmem_max or net.core.rmem_max.
func SetBuffer(fd, option, force, size int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size)
}
