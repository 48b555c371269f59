package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	// MaxCapture is the maximum size of a capture file, in bytes.
	MaxCapture = 64 << 20
	// maxFrame is the size of the longest captured frame. It exceeds the Ethernet MTU because the kernel merges TCP
	// segments.
	maxFrame = 65550
)

// Capture selects the packets of one machine to capture.
type Capture struct {
	MACs      []string
	Addresses []netip.Addr
	// All includes packets of every protocol, for example HTTP with the machine's user data.
	All bool
}

// CaptureOf returns a Capture of the packets of m, by the MACs and IPv4 addresses of its interfaces. all sets
// Capture.All.
func CaptureOf(m inventory.Machine, all bool) Capture {
	c := Capture{All: all}
	for _, i := range m.Interfaces {
		c.MACs = append(c.MACs, i.MAC)
		if i.Address.Is4() {
			c.Addresses = append(c.Addresses, i.Address)
		}
	}
	return c
}

// Run writes the selected packets of the interfaces to w until ctx ends, as a pcap file (draft-ietf-opsawg-pcap) of
// Ethernet frames. It ends early and returns nil once the file would exceed MaxCapture bytes. It writes each packet
// with one call of Write. Without CAP_NET_RAW it returns inventory.ErrUnavailable and writes nothing.
func (c Capture) Run(ctx context.Context, w io.Writer, interfaces []string, ports []uint16, g *guard.Guard) (err error) {
	filter, err := bpf.Assemble(c.filter(ports))
	if err != nil {
		return fmt.Errorf("building the filter of a capture: %w", err)
	}
	var sockets []*os.File
	defer func() {
		for _, f := range sockets {
			err = errors.Join(err, f.Close())
		}
	}()
	for _, name := range interfaces {
		f, err := packetSocket(name, filter)
		if err != nil {
			return captureError(name, err)
		}
		sockets = append(sockets, f)
	}

	p := &pcapWriter{w: w, left: MaxCapture}
	if err := p.begin(); err != nil {
		return err
	}
	readers, ctx := errgroup.WithContext(ctx)
	for _, f := range sockets {
		readers.Go(func() error { return c.readFrames(ctx, f, p, g) })
	}
	if err := readers.Wait(); !errors.Is(err, errCaptureFull) {
		return err
	}
	return nil
}

func captureError(name string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("capturing on %q: %w: ingot serve needs the capability CAP_NET_RAW, which a server with relay_only "+
			"and a container do not have by default: %w", name, err, inventory.ErrUnavailable)
	}
	return fmt.Errorf("capturing on %q: %w", name, err)
}

// Offsets in an Ethernet frame with ARP or IPv4.
const (
	etherType    = 12
	etherHeader  = 14
	ipFragment   = etherHeader + 6
	ipProtocol   = etherHeader + 9
	ipSource     = etherHeader + 12
	ipTarget     = etherHeader + 16
	bootpClient  = 28 // offset of chaddr in the UDP payload
	bootpMinimum = 34
)

// filter returns a program for the packet filter of the kernel (BPF). The program accepts ARP, the boot protocols (UDP
// ports) and, if All is true, packets with the machine's MAC or IPv4 address. Capture.takes then selects the machine's
// packets.
func (c Capture) filter(ports []uint16) []bpf.Instruction {
	refuse, accept := bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: maxFrame}
	var p []bpf.Instruction
	add := func(i ...bpf.Instruction) { p = append(p, i...) }
	acceptIf := func(v uint32) { add(bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipFalse: 1}, accept) }
	if c.All {
		for _, at := range []uint32{0, 6} {
			for _, mac := range c.MACs {
				if b, err := net.ParseMAC(mac); err == nil && len(b) == 6 {
					add(bpf.LoadAbsolute{Off: at, Size: 4},
						bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(b), SkipTrue: 3},
						bpf.LoadAbsolute{Off: at + 4, Size: 2})
					acceptIf(uint32(binary.BigEndian.Uint16(b[4:])))
				}
			}
		}
	}

	add(bpf.LoadAbsolute{Off: etherType, Size: 2})
	acceptIf(unix.ETH_P_ARP)
	add(bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 1}, refuse)
	if c.All {
		for _, at := range []uint32{ipSource, ipTarget} {
			add(bpf.LoadAbsolute{Off: at, Size: 4})
			for _, a := range c.Addresses {
				b := a.As4()
				acceptIf(binary.BigEndian.Uint32(b[:]))
			}
		}
	}
	add(bpf.LoadAbsolute{Off: ipProtocol, Size: 1}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipTrue: 1}, refuse,
		bpf.LoadMemShift{Off: etherHeader}) // X = length of the IP header
	for _, at := range []uint32{0, 2} {
		add(bpf.LoadIndirect{Off: etherHeader + at, Size: 2})
		for _, port := range ports {
			acceptIf(uint32(port))
		}
	}
	add(refuse)
	return p
}

// takes reports whether a frame belongs to the machine: the machine's MAC or IPv4 address is the source or target of
// the frame, or the frame is a DHCP packet with the machine's MAC.
func (c Capture) takes(frame []byte) bool {
	if len(frame) < etherHeader {
		return false
	}
	if c.hasMAC(frame[0:6]) || c.hasMAC(frame[6:12]) {
		return true
	}
	body := frame[etherHeader:]
	switch binary.BigEndian.Uint16(frame[etherType:]) {
	case unix.ETH_P_ARP: // RFC 826: sender and target, each with MAC and IPv4 address
		return len(body) >= 28 && (c.hasMAC(body[8:14]) || c.hasMAC(body[18:24]) || c.hasAddress(body[14:18]) || c.hasAddress(body[24:28]))
	case unix.ETH_P_IP:
		if len(body) < 20 {
			return false
		}
		if c.hasAddress(frame[ipSource:ipTarget]) || c.hasAddress(frame[ipTarget:ipTarget+4]) {
			return true
		}
		header := int(body[0]&15) * 4
		fragment := binary.BigEndian.Uint16(frame[ipFragment:]) & 0x1fff
		if frame[ipProtocol] != unix.IPPROTO_UDP || fragment != 0 || len(body) < header+8+bootpMinimum {
			return false
		}
		from, to := binary.BigEndian.Uint16(body[header:]), binary.BigEndian.Uint16(body[header+2:])
		dhcp := func(p uint16) bool { return p == 67 || p == 68 || p == ProxyPort }
		payload := body[header+8:]
		return (dhcp(from) || dhcp(to)) && c.hasMAC(payload[bootpClient:bootpMinimum])
	}
	return false
}

func (c Capture) hasMAC(b []byte) bool { return slices.Contains(c.MACs, net.HardwareAddr(b).String()) }

func (c Capture) hasAddress(b []byte) bool {
	a, ok := netip.AddrFromSlice(b)
	return ok && slices.Contains(c.Addresses, a)
}

// packetSocket opens a socket for an interface. The socket receives, in both directions, the frames that pass the
// filter. It receives nothing before the filter is attached.
func packetSocket(name string, filter []bpf.RawInstruction) (*os.File, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	program := make([]unix.SockFilter, len(filter))
	for i, in := range filter {
		program[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: Hton16(unix.ETH_P_ALL), Ifindex: iface.Index})
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "packets of "+name), nil
}

// readFrames writes the machine's frames from one socket. It returns nil when ctx ends.
func (c Capture) readFrames(ctx context.Context, f *os.File, p *pcapWriter, g *guard.Guard) error {
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, maxFrame)
	for {
		n, err := f.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENETDOWN): // the interface is down, and may come up again
			_ = clock.Sleep(ctx, time.Second)
			continue
		case err != nil:
			return fmt.Errorf("reading %s: %w", f.Name(), err)
		}
		if err := c.addFrame(p, buf[:n], g); err != nil {
			return err
		}
	}
}

func (c Capture) addFrame(p *pcapWriter, frame []byte, g *guard.Guard) error {
	defer g.Recover("a captured packet")
	if !c.takes(frame) {
		return nil
	}
	return p.add(time.Now(), frame)
}

var errCaptureFull = errors.New("the capture has reached its maximum size")

// pcapWriter writes a pcap file.
type pcapWriter struct {
	mu   sync.Mutex
	w    io.Writer
	left int // bytes until MaxCapture
}

// begin writes the file header: version 2.4, timestamps in nanoseconds, Ethernet.
func (p *pcapWriter) begin() error {
	h := binary.LittleEndian.AppendUint32(nil, 0xa1b23c4d)
	h = binary.LittleEndian.AppendUint16(h, 2)
	h = binary.LittleEndian.AppendUint16(h, 4)
	for _, v := range []uint32{0, 0, maxFrame, 1} { // reserved, reserved, longest frame, LINKTYPE_ETHERNET
		h = binary.LittleEndian.AppendUint32(h, v)
	}
	return p.write(h)
}

// add writes one frame. It returns errCaptureFull if the file has no room for the frame.
func (p *pcapWriter) add(at time.Time, frame []byte) error {
	b := make([]byte, 0, 16+len(frame))
	for _, v := range []int64{at.Unix(), int64(at.Nanosecond()), int64(len(frame)), int64(len(frame))} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return p.write(append(b, frame...))
}

func (p *pcapWriter) write(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(b) > p.left {
		p.left = 0
		return errCaptureFull
	}
	p.left -= len(b)
	_, err := p.w.Write(b)
	return err
}
