package bootsvc

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
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	dhcpWorkers = 8
	dhcpBatch   = 16                   // packets that one system call reads or sends
	dhcpBuffer  = 4 << 20              // bytes; the kernel permits net.core.rmem_max
	dhcpSlow    = 5 * time.Millisecond // when a batch takes longer, another worker reads the next one
	dhcpLookup  = 2 * time.Second      // a client asks again after 1 to 4 s
)

// dhcpConn is a UDP port on one interface, or port 67 on the address that relays send to.
type dhcpConn struct {
	name  string // of the interface, or the address
	port  int    // 67, or wire.ProxyPort
	mode  inventory.DHCPMode
	iface *net.Interface // nil = only relays
	self  netip.Addr
	conn  *net.UDPConn
	p4    *ipv4.PacketConn
	raw   int // packet socket that only sends; -1 = none
	// onLink and routed are the control messages of a reply. Both set its source address, onLink also the interface. They are
	// nil without an interface.
	onLink, routed []byte
	once           sync.Once
	turn           sync.Mutex // held by the worker that reads and answers; see serveDHCP
	known          atomic.Pointer[knownPrefixes]
	full           uint32 // packets that the kernel has dropped because the socket's buffer was full; guarded by turn
}

// listenRelayed binds UDP port 67 on an address. It needs no further privileges: it
// does not bind to a device, broadcast or open a packet socket.
func listenRelayed(ctx context.Context, at netip.Addr) (*dhcpConn, error) {
	lc := net.ListenConfig{Control: dhcpSocket("")}
	pc, err := lc.ListenPacket(ctx, "udp4", netip.AddrPortFrom(at, 67).String())
	if err != nil {
		return nil, fmt.Errorf("binding UDP port 67 on %s for DHCP: %w (%s)", at, err,
			httpserve.BindRemedy(err, "address"))
	}
	conn := pc.(*net.UDPConn)
	return &dhcpConn{
		name: at.String(), port: dhcpv4.ServerPort, mode: inventory.DHCPReservation, self: at, conn: conn,
		p4: ipv4.NewPacketConn(conn), raw: -1,
	}, nil
}

// prefixesFor is how long the addresses of an interface are not read again.
const prefixesFor = time.Second

// knownPrefixes are the addresses of an interface, as last read.
type knownPrefixes struct {
	read     time.Time
	prefixes []netip.Prefix
}

// link returns where packets on c are received.
func (c *dhcpConn) link() link {
	if c.iface == nil {
		return link{name: "relay"}
	}
	known := c.known.Load()
	if known == nil || time.Since(known.read) > prefixesFor {
		known = &knownPrefixes{time.Now(), wire.Prefixes(c.iface)}
		c.known.Store(known)
	}
	return link{name: c.name, prefixes: known.prefixes, mode: c.mode, port: c.port}
}

// listenDHCP binds a UDP port on the interface. The socket is bound to the device,
// so it neither receives packets of other networks nor conflicts with a DHCP server
// on them. The port is not shared: two servers would answer.
func listenDHCP(ctx context.Context, name string, port int, self netip.Addr) (*dhcpConn, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("finding interface %q: %w (list them with: ip link; correct the configuration)", name, err)
	}
	lc := net.ListenConfig{Control: dhcpSocket(name)}
	pc, err := lc.ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("binding UDP port %d on %s for DHCP: %w (%s)", port, name, err,
			httpserve.BindRemedy(err, "interfaces"))
	}
	conn := pc.(*net.UDPConn)
	raw, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // protocol 0: receive nothing
	if err != nil {
		err = fmt.Errorf("opening a packet socket on %s: %w (%s)", name, err, httpserve.BindRemedy(err, "interfaces"))
		return nil, errors.Join(err, conn.Close())
	}
	_ = wire.SetBuffer(raw, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, wire.SendBuffer) // the kernel's default size serves as well
	return &dhcpConn{
		name: name, port: port, iface: iface, self: self, conn: conn, p4: ipv4.NewPacketConn(conn), raw: raw,
		onLink: (&ipv4.ControlMessage{Src: self.AsSlice(), IfIndex: iface.Index}).Marshal(),
		routed: (&ipv4.ControlMessage{Src: self.AsSlice()}).Marshal(),
	}, nil
}

// dhcpSocket sets the options of a socket, which is bound to device unless that is "".
func dhcpSocket(device string) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(own uintptr) {
			fd := int(own)
			set = errors.Join(
				wire.SetBuffer(fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, dhcpBuffer),
				wire.SetBuffer(fd, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, wire.SendBuffer),
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1), // tells what was dropped
			)
			if device != "" {
				set = errors.Join(set, unix.BindToDevice(fd, device), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
			}
		})
		return errors.Join(err, set)
	}
}

// A packetBatch is the memory of a worker: the packets that one system call reads, and what is sent for them.
type packetBatch struct {
	in    []ipv4.Message
	mu    sync.Mutex // guards the rest
	out   []ipv4.Message
	ready []reply // not sent yet
	late  bool    // dhcpSlow is over: send each reply as soon as it is ready
}

func newPacketBatch() *packetBatch {
	b := &packetBatch{in: make([]ipv4.Message, dhcpBatch), out: make([]ipv4.Message, dhcpBatch)}
	for n := range dhcpBatch {
		b.in[n] = ipv4.Message{
			Buffers: [][]byte{make([]byte, wire.MaxDatagram)},
			OOB:     make([]byte, 32), // one message of 4 bytes, once a packet was dropped
		}
		b.out[n] = ipv4.Message{Buffers: make([][]byte, 1), Addr: &net.UDPAddr{}}
	}
	return b
}

// delay has each reply sent as soon as it is ready.
func (b *packetBatch) delay() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late = true
}

// add adds a reply to those that are ready, and reports whether they are to be sent now.
func (b *packetBatch) add(r reply) (send bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = append(b.ready, r)
	return b.late
}

// read waits for packets and returns those that have arrived. It adds to dropped what the kernel has dropped since.
func (c *dhcpConn) read(b *packetBatch, dropped *atomic.Int64) ([]ipv4.Message, error) {
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

func (c *dhcpConn) Close() error {
	var err error
	c.once.Do(func() {
		if err = c.conn.Close(); c.raw >= 0 {
			err = errors.Join(err, unix.Close(c.raw))
		}
	})
	return err
}

// write sends replies, at most dhcpBatch. It does not wait: it calls failed for each reply that cannot be sent now.
func (c *dhcpConn) write(out []ipv4.Message, replies []reply, failed func(reply, error)) {
	var replyOf [dhcpBatch]int // by index in out
	used := 0
	for n, r := range replies {
		if r.route == routeRaw && c.iface != nil {
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
		if err != nil { // of message first; those before it were sent
			failed(replies[replyOf[first]], err)
			first++
		}
	}
}

// writeRaw sends a reply in an Ethernet frame.
func (c *dhcpConn) writeRaw(r reply) error {
	ll := &unix.SockaddrLinklayer{Protocol: wire.Hton16(unix.ETH_P_IP), Ifindex: c.iface.Index, Halen: 6}
	copy(ll.Addr[:], r.mac)
	return unix.Sendto(c.raw, wire.IPPacket(c.self, r.to, r.packet.ToBytes()), 0, ll)
}

// compose makes m the message of a reply. The source is the server's configured address: relays and firewalls drop replies
// from another address of the host.
func (c *dhcpConn) compose(m *ipv4.Message, r reply) error {
	m.Buffers[0], m.OOB = r.packet.ToBytes(), c.onLink
	to := m.Addr.(*net.UDPAddr)
	to.IP, to.Port = r.to.AsSlice(), dhcpv4.ClientPort
	switch {
	case r.route == routeRelay:
		// Send to giaddr and not to the packet's source address, which a container's network may have rewritten. Do not
		// set an interface for the packet: the route to the relay may differ from the one that its packet took.
		to.Port, m.OOB = dhcpv4.ServerPort, c.routed
	case c.iface == nil && r.route != routeUnicast: // INFORM through a relay: to the reservation (RFC 2131 §4.3.5)
		return fmt.Errorf("sending by %s: this server only answers relays", r.route)
	case r.route == routeSource:
		to.Port, m.OOB = int(r.port), c.routed
	case r.route == routeBroadcast:
		to.IP = net.IPv4bcast
	}
	return nil
}

// serveDHCP answers packets until ctx ends. Only the worker that holds c.turn reads, and it answers what it has read: to wake
// another worker for each packet costs more. If a batch takes longer than dhcpSlow, because the inventory is slow, what is
// ready is sent, and another worker reads the next batch.
func (s *Server) serveDHCP(ctx context.Context, c *dhcpConn) error {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var g errgroup.Group
	for range dhcpWorkers {
		g.Go(func() error { return s.answerDHCP(ctx, c) })
	}
	return g.Wait()
}

// answerDHCP reads and answers packets, while it is this worker's turn, until ctx ends.
func (s *Server) answerDHCP(ctx context.Context, c *dhcpConn) error {
	batch := newPacketBatch()
	c.turn.Lock()
	defer c.turn.Unlock()
	for {
		packets, err := c.read(batch, &s.stats.dhcpDropped)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("reading DHCP on %s: %w", c.name, err)
			}
			// The interface is down and may come back.
			s.log.Warn("reading DHCP", "interface", c.name, "error", err)
			_ = clock.Sleep(ctx, time.Second)
			continue
		}
		s.stats.dhcpReceived.Add(int64(len(packets)))
		slow := time.AfterFunc(dhcpSlow, func() {
			batch.delay()
			s.sendReady(c, batch)
			c.turn.Unlock()
		})
		s.handleDHCP(ctx, c, batch, packets)
		if !slow.Stop() {
			c.turn.Lock() // the timer has released it
		}
		batch.late = false
	}
}

// handleDHCP answers the packets of one read. Each has nearly dhcpLookup for the inventory.
func (s *Server) handleDHCP(ctx context.Context, c *dhcpConn, batch *packetBatch, packets []ipv4.Message) {
	in := c.link()
	lookup, cancel := context.WithTimeout(ctx, dhcpLookup)
	began := time.Now()
	for _, p := range packets {
		if time.Since(began) > dhcpSlow {
			cancel()
			lookup, cancel = context.WithTimeout(ctx, dhcpLookup)
			began = time.Now()
		}
		in.from = p.Addr.(*net.UDPAddr).AddrPort()
		r := s.handlePacket(lookup, p.Buffers[0][:p.N], in)
		if r.route != routeNone && s.maySend(c, r) && batch.add(r) {
			s.sendReady(c, batch)
		}
	}
	cancel()
	s.sendReady(c, batch)
}

// sendReady sends the replies that are ready. It does not wait for a socket that is full.
func (s *Server) sendReady(c *dhcpConn, b *packetBatch) {
	defer s.guard.Recover("an answer by DHCP")
	b.mu.Lock()
	defer b.mu.Unlock()
	replies := b.ready
	b.ready = b.ready[:0]
	c.write(b.out, replies, func(r reply, err error) {
		s.stats.dhcpUnsent.Add(1)
		s.log.Error("sending a DHCP reply", "interface", c.name, "route", r.route.String(), "to", r.to.String(), "error", err)
	})
}

// maySend reports whether the limits permit a reply, and counts those that they do not permit. What is sent to a MAC or to all
// hosts does not wait for ARP.
func (s *Server) maySend(c *dhcpConn, r reply) bool {
	if r.route == routeRaw || r.route == routeBroadcast || s.limits.Admit(r.to, r.own) {
		return true
	}
	s.stats.dhcpUnresolved.Add(1)
	s.log.Warn("a DHCP reply is not sent: too many wait for addresses that do not answer ARP; the request may be forged",
		"interface", c.name, "route", r.route.String(), "to", r.to.String())
	return false
}

// handlePacket parses a packet and returns the answer. It does not keep b. It counts and drops malformed
// packets. Any host on the network can send input to the library, so a panic is
// recovered and drops only that packet.
func (s *Server) handlePacket(ctx context.Context, b []byte, in link) (r reply) {
	defer func() {
		if v := recover(); v != nil {
			s.stats.dhcpMalformed.Add(1)
			s.guard.Caught("a DHCP packet", v)
			r = reply{}
		}
	}()
	p, err := dhcpv4.FromBytes(b)
	if err != nil {
		s.stats.dhcpMalformed.Add(1)
		return reply{}
	}
	r = s.answer(ctx, p, in)
	if mac, ok := wire.HostMAC(p.ClientHWAddr); ok && p.OpCode == dhcpv4.OpcodeBootRequest {
		s.History.Add(mac, wire.Entry{At: s.now(), Where: in.name, Relay: wire.Addr4(p.GatewayIPAddr), Packet: b, Answer: answerOf(r)})
	}
	return r
}

// answerOf returns what is remembered of r.
func answerOf(r reply) wire.Reply {
	if r.route == routeNone {
		return wire.Reply{}
	}
	return wire.Reply{
		Route: r.route.String(), Kind: r.packet.MessageType(), Address: wire.Addr4(r.packet.YourIPAddr), File: r.packet.BootFileNameOption(),
	}
}
