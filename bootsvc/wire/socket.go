package wire

import (
	"golang.org/x/sys/unix"
)

// MaxDatagram is the size of the longest packet that is read, in bytes.
const MaxDatagram = 4096

// SendBuffer is how many bytes of packets the kernel keeps for a socket that are not sent yet. It counts them twice or more.
const SendBuffer = 8 << 20

// SetBuffer sets the size of a socket's buffer: option is SO_SNDBUF or SO_RCVBUF, force the one of the same name with FORCE. Without
// CAP_NET_ADMIN, the kernel permits net.core.wmem_max and rmem_max.
func SetBuffer(fd, option, force, size int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size)
}
