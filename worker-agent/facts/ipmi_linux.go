package facts

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ioctl requests and constants of linux/ipmi.h on a 64-bit kernel.
const (
	ipmiSend    = 0x8028690d // IPMICTL_SEND_COMMAND
	ipmiReceive = 0xc030690b // IPMICTL_RECEIVE_MSG_TRUNC
	ipmiSystem  = 0x0c       // IPMI_SYSTEM_INTERFACE_ADDR_TYPE
	ipmiBMC     = 0x0f       // IPMI_BMC_CHANNEL
)

// ipmiWait is how long a management controller may take to respond.
const ipmiWait = 2 * time.Second

type ipmiAddress struct {
	kind    int32
	channel int16
	_       [2]uint8 // logical unit 0
}

type ipmiMessage struct {
	netfn, command uint8
	length         uint16
	data           *byte
}

type ipmiRequest struct {
	address       *ipmiAddress
	addressLength uint32
	id            int64
	message       ipmiMessage
}

type ipmiResponse struct {
	kind          int32
	address       *ipmiAddress
	addressLength uint32
	id            int64
	message       ipmiMessage
}

// ipmiDevice is the management controller of this machine, as the kernel's ipmi_devintf offers it.
type ipmiDevice struct {
	file *os.File
	last int64 // id of the last request
}

// openIPMI opens the first management controller. It returns fs.ErrNotExist if there is none.
func openIPMI() (*ipmiDevice, error) {
	f, err := os.OpenFile("/dev/ipmi0", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &ipmiDevice{file: f}, nil
}

func (d *ipmiDevice) Close() error { return d.file.Close() }

// request implements ipmiRequester.
func (d *ipmiDevice) request(netfn, command byte, data ...byte) ([]byte, error) {
	d.last++
	payload, answer := append(data, 0), make([]byte, 272) // payload must not be empty, because the request needs a pointer to its first byte
	to, from := &ipmiAddress{kind: ipmiSystem, channel: ipmiBMC}, &ipmiAddress{}
	var pins runtime.Pinner
	defer pins.Unpin()
	for _, p := range []any{&payload[0], &answer[0], to, from} {
		pins.Pin(p)
	}
	q := &ipmiRequest{address: to, addressLength: uint32(unsafe.Sizeof(*to)), id: d.last, message: ipmiMessage{
		netfn: netfn, command: command, length: uint16(len(data)), data: &payload[0],
	}}
	if err := d.control(ipmiSend, unsafe.Pointer(q)); err != nil {
		return nil, fmt.Errorf("sending IPMI request %#x %#x: %w", netfn, command, err)
	}
	for deadline := time.Now().Add(ipmiWait); ; {
		if err := d.wait(time.Until(deadline)); err != nil {
			return nil, fmt.Errorf("waiting for the answer to IPMI request %#x %#x: %w", netfn, command, err)
		}
		r := &ipmiResponse{address: from, addressLength: uint32(unsafe.Sizeof(*from)), message: ipmiMessage{
			length: uint16(len(answer)), data: &answer[0],
		}}
		err := d.control(ipmiReceive, unsafe.Pointer(r))
		if err != nil && !errors.Is(err, unix.EMSGSIZE) {
			return nil, fmt.Errorf("reading the answer to IPMI request %#x %#x: %w", netfn, command, err)
		}
		if r.id != d.last {
			continue // a response to an earlier request, which has timed out
		}
		if n := int(r.message.length); n == 0 || answer[0] != 0 {
			return nil, fmt.Errorf("IPMI request %#x %#x: completion code %#x", netfn, command, answer[0])
		}
		return answer[1:r.message.length], nil
	}
}

// wait returns nil once a response can be received, or os.ErrDeadlineExceeded if none arrives within the duration most.
func (d *ipmiDevice) wait(most time.Duration) error {
	fds := []unix.PollFd{{Fd: int32(d.file.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(max(most, 0).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return os.ErrDeadlineExceeded
		}
		return nil
	}
}

func (d *ipmiDevice) control(request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.file.Fd(), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
