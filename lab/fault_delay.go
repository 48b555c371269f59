package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// Delay delays every frame on a link by d in both directions; the order is kept. This kernel has no
// netem: the port is removed from its bridge, and this program copies the frames between it and a
// new device there. Frames in transit when Delay is undone are lost.
func (l *Lab) Delay(link Link, d time.Duration) (Undo, error) {
	fail := func(err error) (Undo, error) { return nil, fmt.Errorf("delaying link %q: %w", link, err) }
	bridge, err := l.bridgeOf(link)
	if err != nil {
		return fail(err)
	}
	name := l.faultName()
	var port, tap *os.File
	err = l.InNamespace(Switch, func() (err error) {
		if port, err = openPort(string(link)); err != nil {
			return err
		}
		tap, err = openTap(name)
		return err
	})
	if err != nil {
		if port != nil {
			err = errors.Join(err, port.Close())
		}
		return fail(err)
	}
	undo, err := l.undoable(fmt.Sprintf("link %s delayed by %s", link, d), func() error {
		err := errors.Join(port.Close(), tap.Close()) // closing its descriptor removes the tap
		if _, e := l.outside(Switch, "", "ip", "link", "show", "dev", string(link)); e != nil {
			return err //nolint:nilerr // the machine's port no longer exists
		}
		_, e := l.outside(Switch, "", "ip", "link", "set", string(link), "master", bridge)
		return errors.Join(err, e)
	})
	if err != nil {
		return fail(err)
	}
	go carry(tap, port, d)
	go carry(port, tap, d)
	for _, args := range [][]string{{"link", "set", string(link), "nomaster"}, {"link", "set", name, "master", bridge, "up"}} {
		if _, err := l.outside(Switch, "", append([]string{"ip"}, args...)...); err != nil {
			return fail(errors.Join(err, undo()))
		}
	}
	return undo, nil
}

var masterOf = regexp.MustCompile(` master (\S+) `)

// bridgeOf returns the bridge of a port.
func (l *Lab) bridgeOf(link Link) (string, error) {
	out, err := l.outside(Switch, "", "ip", "-o", "link", "show", "dev", string(link))
	if err != nil {
		return "", err
	}
	m := masterOf.FindStringSubmatch(out)
	if m == nil {
		return "", errors.New("not a port of the switch, or delayed already")
	}
	return m[1], nil
}

// frame is one Ethernet frame with its virtio-net header (the last sender has to do checksums and
// segmentation), and the time at which it is due.
type frame struct {
	data []byte
	due  time.Time
}

// held is how many frames may be in transit in one direction; further frames are lost, as in a full
// queue.
const held = 4096

// carry copies frames from one device to another with a delay of d, until one of them is closed.
func carry(from, to *os.File, d time.Duration) {
	queue := make(chan frame, held)
	go func() {
		defer close(queue)
		for {
			buf := make([]byte, 1<<16+64)
			n, err := from.Read(buf)
			if errors.Is(err, os.ErrClosed) || n == 0 && err == nil {
				return
			}
			if err != nil {
				continue // the other end is down for a moment
			}
			select {
			case queue <- frame{buf[:n:n], time.Now().Add(d)}:
			default:
			}
		}
	}()
	for f := range queue {
		time.Sleep(time.Until(f.due))
		if _, err := to.Write(f.data); errors.Is(err, os.ErrClosed) {
			break
		}
	}
	for range queue { // until the reader has noticed it
	}
}

// virtioHeader is the length of struct virtio_net_hdr, which both devices put before a frame.
const virtioHeader = 10

// openPort opens a packet socket on a device of the calling thread's namespace. It receives all
// incoming frames, and no outgoing ones.
func openPort(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // protocol 0: nothing before bind
	if err != nil {
		return nil, err
	}
	var ifr *unix.Ifreq
	if ifr, err = unix.NewIfreq(name); err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr)
	}
	if err == nil {
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20),
			unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
				&unix.PacketMreq{Ifindex: int32(ifr.Uint32()), Type: unix.PACKET_MR_PROMISC}),
		)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: int(ifr.Uint32())})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening port %q: %w", name, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// htons converts v to network byte order.
func htons(v uint16) uint16 { return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)}) }

// openTap creates a device in the calling thread's namespace that exists as long as the file is
// open.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, virtioHeader)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making tap %q: %w", name, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}
