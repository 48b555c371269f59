package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/inventory"
)

// ReceiveBuffer is the size in bytes of the receive buffer that is requested for a socket. The kernel grants at most
// net.core.rmem_max.
const ReceiveBuffer = 4 << 20

const batchSize = 16 // packets per system call

// past is a deadline that ends a read at once.
var past = time.Unix(1, 0)

// Conn is a bound UDP port on one interface or, for a RelayAt server, port 67 on the address to which relays send.
type Conn struct {
	name  string // interface or address
	port  int    // 67, or wire.ProxyPort
	mode  inventory.DHCPMode
	iface *net.Interface // nil = relays only
	self  netip.Addr
	conn  *net.UDPConn
	p4    *ipv4.PacketConn
	raw   int // packet socket that only sends; -1 = none
	// onLink and routed are control messages for replies. Both set the source address of a reply; onLink also sets the
	// interface. If iface is nil, they are nil.
	onLink, routed []byte
	once           sync.Once
	turn           sync.Mutex // held by the worker that reads packets; see Server.Serve
	known          atomic.Pointer[knownPrefixes]
	heard          chan struct{} // answer of the worker that reads packets to Answer
	full           uint32        // the kernel's count of packets that it dropped because the receive buffer was full; guarded by turn
}

// listenRelayed binds UDP port 67 on an address. It needs no privilege except for the low port, because it does not
// bind to a device, does not broadcast and opens no packet socket.
func listenRelayed(ctx context.Context, at netip.Addr) (*Conn, error) {
	lc := net.ListenConfig{Control: setSocket("")}
	pc, err := lc.ListenPacket(ctx, "udp4", netip.AddrPortFrom(at, 67).String())
	if err != nil {
		return nil, fmt.Errorf("binding UDP port 67 on %s for DHCP: %w (%s)", at, err,
			httpserve.BindRemedy(err, "address"))
	}
	conn := pc.(*net.UDPConn)
	return &Conn{
		name: at.String(), port: dhcpv4.ServerPort, mode: inventory.DHCPReservation, self: at, conn: conn,
		p4: ipv4.NewPacketConn(conn), raw: -1, heard: make(chan struct{}, 1),
	}, nil
}

// prefixesFor is for how long the addresses of an interface are cached.
const prefixesFor = time.Second

// knownPrefixes caches the addresses of an interface.
type knownPrefixes struct {
	read     time.Time
	prefixes []netip.Prefix
}

// link describes where packets of c are received. The caller must set the field From of the Link.
func (c *Conn) link() Link {
	if c.iface == nil {
		return Link{Name: "relay"}
	}
	known := c.known.Load()
	if known == nil || time.Since(known.read) > prefixesFor {
		known = &knownPrefixes{time.Now(), wire.Prefixes(c.iface)}
		c.known.Store(known)
	}
	return Link{Name: c.name, Prefixes: known.prefixes, Mode: c.mode, Port: c.port}
}

// Listen binds a UDP port on an interface. The socket is bound to the device. Therefore it receives no packets of other
// networks, and does not conflict with DHCP servers on other networks. The port is not shared with another program,
// because both would answer.
func Listen(ctx context.Context, name string, port int, self netip.Addr) (*Conn, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("finding interface %q: %w (list the interfaces with: ip link; correct the configuration)", name, err)
	}
	lc := net.ListenConfig{Control: setSocket(name)}
	pc, err := lc.ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("binding UDP port %d on %s for DHCP: %w (%s)", port, name, err,
			httpserve.BindRemedy(err, "interfaces"))
	}
	conn := pc.(*net.UDPConn)
	raw, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // protocol 0: it receives nothing
	if err != nil {
		err = fmt.Errorf("opening a packet socket on %s: %w (%s)", name, err, httpserve.BindRemedy(err, "interfaces"))
		return nil, errors.Join(err, conn.Close())
	}
	_ = wire.SetBuffer(raw, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, wire.SendBuffer) // if this fails, the default size is enough
	return &Conn{
		name: name, port: port, iface: iface, self: self, conn: conn, p4: ipv4.NewPacketConn(conn), raw: raw, heard: make(chan struct{}, 1),
		onLink: (&ipv4.ControlMessage{Src: self.AsSlice(), IfIndex: iface.Index}).Marshal(),
		routed: (&ipv4.ControlMessage{Src: self.AsSlice()}).Marshal(),
	}, nil
}

// setSocket sets the options of a socket. If device is not "", it binds the socket to that device.
func setSocket(device string) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(own uintptr) {
			fd := int(own)
			set = errors.Join(
				wire.SetBuffer(fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, ReceiveBuffer),
				wire.SetBuffer(fd, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, wire.SendBuffer),
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1), // makes the kernel report how many packets it has dropped
			)
			if device != "" {
				set = errors.Join(set, unix.BindToDevice(fd, device), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
			}
		})
		return errors.Join(err, set)
	}
}

// A packetBatch is the memory of one worker. It holds the packets that one system call has read, and the replies to
// these packets.
type packetBatch struct {
	in    []ipv4.Message
	mu    sync.Mutex // guards the fields below
	out   []ipv4.Message
	ready []Reply // not sent yet
	late  bool    // the batch has taken longer than slowBatch: send each further reply at once
}

func newPacketBatch() *packetBatch {
	b := &packetBatch{in: make([]ipv4.Message, batchSize), out: make([]ipv4.Message, batchSize)}
	for n := range batchSize {
		b.in[n] = ipv4.Message{
			Buffers: [][]byte{make([]byte, wire.MaxDatagram)},
			OOB:     make([]byte, 32), // room for one control message, which says how many packets were dropped
		}
		b.out[n] = ipv4.Message{Buffers: make([][]byte, 1), Addr: &net.UDPAddr{}}
	}
	return b
}

// delay marks the batch as late. From then on, add returns true, so each further reply is sent as soon as it is ready.
func (b *packetBatch) delay() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late = true
}

// add adds r to the replies that are ready. send reports whether the caller must send the ready replies now.
func (b *packetBatch) add(r Reply) (send bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = append(b.ready, r)
	return b.late
}

// read waits for packets and returns those that have arrived. It adds to dropped the number of packets that the kernel
// has dropped since the last read.
func (c *Conn) read(b *packetBatch, dropped *atomic.Int64) ([]ipv4.Message, error) {
	n, err := c.p4.ReadBatch(b.in, 0)
	if err != nil {
		return nil, err
	}
	for _, packet := range b.in[:n] {
		if packet.NN == 0 {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(packet.OOB[:packet.NN])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_RXQ_OVFL && len(m.Data) >= 4 {
				now := binary.NativeEndian.Uint32(m.Data)
				dropped.Add(int64(now - c.full))
				c.full = now
			}
		}
	}
	return b.in[:n], nil
}

// Answer returns nil if packets of c are read before ctx ends. It sends nothing: it wakes the worker that reads.
func (c *Conn) Answer(ctx context.Context) error {
	select {
	case <-c.heard: // the answer to an earlier call, whose ctx had ended
	default:
	}
	if err := c.conn.SetReadDeadline(past); err != nil {
		return fmt.Errorf("asking whether packets are read on %s: %w", c.name, err)
	}
	select {
	case <-c.heard:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting until packets are read on UDP port %d of %s: %w", c.port, c.name, ctx.Err())
	}
}

// confirm tells Answer that packets are read, and removes the read deadline that woke the worker. If ctx has ended, it keeps
// that deadline, because Serve ends the workers by it.
func (c *Conn) confirm(ctx context.Context) {
	// Both calls fail only on a closed socket.
	_ = c.conn.SetReadDeadline(time.Time{})
	if ctx.Err() != nil {
		_ = c.conn.SetReadDeadline(past)
	}
	select {
	case c.heard <- struct{}{}:
	default:
	}
}

// Close closes the sockets of c. Further calls do nothing and return nil.
func (c *Conn) Close() error {
	var err error
	c.once.Do(func() {
		if err = c.conn.Close(); c.raw >= 0 {
			err = errors.Join(err, unix.Close(c.raw))
		}
	})
	return err
}

// write sends up to batchSize replies without waiting. For each reply that cannot be sent now, it calls failed.
func (c *Conn) write(out []ipv4.Message, replies []Reply, failed func(Reply, error)) {
	var replyOf [batchSize]int // by index in out
	used := 0
	for n, r := range replies {
		if r.Route == RouteRaw && c.iface != nil {
			if err := c.writeRaw(r); err != nil {
				failed(r, err)
			}
			continue
		}
		if err := c.compose(&out[used], r); err != nil {
			failed(r, err)
			continue
		}
		replyOf[used] = n
		used++
	}
	for first := 0; first < used; {
		n, err := c.p4.WriteBatch(out[first:used], unix.MSG_DONTWAIT)
		first += max(n, 0)
		if err != nil { // the messages before first were sent; the error belongs to first
			failed(replies[replyOf[first]], err)
			first++
		}
	}
}

// writeRaw sends a reply as an Ethernet frame to the client's MAC.
func (c *Conn) writeRaw(r Reply) error {
	ll := &unix.SockaddrLinklayer{Protocol: wire.Hton16(unix.ETH_P_IP), Ifindex: c.iface.Index, Halen: 6}
	copy(ll.Addr[:], r.mac)
	return unix.Sendto(c.raw, wire.IPPacket(c.self, r.To, r.Packet.ToBytes()), 0, ll)
}

// compose fills the message m for the reply r. The source address is the server's configured address, because relays
// and firewalls drop replies that come from another address of this host.
func (c *Conn) compose(m *ipv4.Message, r Reply) error {
	m.Buffers[0], m.OOB = r.Packet.ToBytes(), c.onLink
	to := m.Addr.(*net.UDPAddr)
	to.IP, to.Port = r.To.AsSlice(), dhcpv4.ClientPort
	switch {
	case r.Route == RouteRelay:
		// Send to giaddr, because a container's network may have changed the source address of the packet. Do not set
		// an interface, because the route to the relay may use another interface than the packet did.
		to.Port, m.OOB = dhcpv4.ServerPort, c.routed
	case c.iface == nil && r.Route != RouteUnicast: // a relayed INFORM is answered by unicast (RFC 2131 §4.3.5)
		return fmt.Errorf("sending by %s: a server with relay_only answers only relays", r.Route)
	case r.Route == RouteSource:
		to.Port, m.OOB = int(r.Port), c.routed
	case r.Route == RouteBroadcast:
		to.IP = net.IPv4bcast
	}
	return nil
}
