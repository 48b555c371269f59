package bootsvc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/internal/httpserve"
)

const (
	tftpSessions  = 1024 // transfers at once
	tftpUndecided = 256  // requests at once that are not decided yet (rankUndecided)
	tftpCrowd     = 8    // of tftpUndecided, for addresses with more than tftpPerWindow requests
	tftpPerWindow = 100  // requests of one address in tftpWindow without an ACK, so they may be forged
	tftpWindow    = 10 * time.Second
	tftpSources   = 4096            // addresses whose requests are counted
	tftpStalled   = 5 * time.Second // without an expected ACK
	tftpLost      = 3 * tftpStalled // undecided or over for longer: the library has no transfer
	tftpBuffer    = 2 << 20         // bytes
	maxTFTPError  = 128             // bytes of a client's error that are passed to the library
)

// tftpRank is how important a request is, from the inventory.
type tftpRank int

const (
	rankUndecided tftpRank = iota // not looked up yet
	rankKnown                     // a file that is served to any client that names its machine
	rankArmed                     // a file of a machine with an open netboot window
	rankOwn                       // like rankArmed, requested from the machine's reserved address
)

// packets is the socket of a tftpConn, an *ipv4.PacketConn.
type packets interface {
	ReadFrom(b []byte) (n int, cm *ipv4.ControlMessage, src net.Addr, err error)
	WriteTo(b []byte, cm *ipv4.ControlMessage, dst net.Addr) (n int, err error)
}

// tftpConn is a filter between the library and the socket. It passes to the library
// only requests that readRequest wrote, expected ACKs and short errors. It answers
// from the address that the request was sent to. Because the source of a request is
// easily forged, a source that has not sent an ACK gets at most as many packets as it
// has sent (security S34).
//
// If there are more transfers than tftpSessions, the least valuable one is ended: see
// value.
type tftpConn struct {
	net.PacketConn
	packets packets
	guard   *guard.Guard

	mu        sync.Mutex
	live      map[netip.AddrPort]*tftpSession
	evicted   []netip.AddrPort   // peers whose transfers the library must end
	serving   map[netip.Addr]int // transfers by address
	transfers int                // total of serving
	undecided int
	crowd     int
	recent    map[netip.Addr]int // requests since the time since
	since     time.Time
	closed    bool
}

// tftpSession is one transfer, from its request until the library has ended it.
type tftpSession struct {
	peer    netip.AddrPort
	local   net.IP
	rank    tftpRank
	crowded bool // its address has sent more than tftpPerWindow requests
	last    time.Time
	asked   int  // requests received
	sent    int  // packets sent before the first ACK
	block   int  // last block that the library sent; 0 = the OACK, -1 = none yet
	repeats int  // of block
	waits   int  // block whose ACK is expected; -1 = none
	handed  bool // a packet was passed to the library, which has sent nothing new since
	proven  bool // the client has sent an ACK, so its address is not forged
	over    bool // evicted, or ended by its client: nothing more is sent
}

func listenTFTP(ctx context.Context, addr string, self netip.Addr) (*tftpConn, error) {
	full := httpserve.WithHost(addr, self)
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			// A large buffer keeps requests during a burst of forged ones. Without
			// CAP_NET_ADMIN, the kernel's default size remains.
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, tftpBuffer)
		})
	}}
	pc, err := lc.ListenPacket(ctx, "udp4", full)
	if err != nil {
		return nil, fmt.Errorf("binding UDP %s for TFTP: %w (%s)", full, err, httpserve.BindRemedy(err, "TFTP address"))
	}
	p4 := ipv4.NewPacketConn(pc)
	if err := p4.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return nil, errors.Join(fmt.Errorf("enabling packet information: %w", err), pc.Close())
	}
	return newTFTPConn(pc, p4), nil
}

func newTFTPConn(pc net.PacketConn, p packets) *tftpConn {
	return &tftpConn{
		PacketConn: pc, packets: p,
		live: map[netip.AddrPort]*tftpSession{}, serving: map[netip.Addr]int{}, recent: map[netip.Addr]int{},
	}
}

// ReadFrom returns the next packet for the library. b must be longer than any packet.
func (c *tftpConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		if peer, ok := c.nextEvicted(); ok {
			return copy(b, "\x00\x05\x00\x00evicted\x00"), net.UDPAddrFromAddrPort(peer), nil
		}
		n, cm, from, err := c.packets.ReadFrom(b)
		if err != nil {
			c.mu.Lock()
			closed := c.closed
			c.mu.Unlock()
			if closed {
				time.Sleep(10 * time.Millisecond) // the library keeps reading until its transfers have ended
			}
			return n, from, err
		}
		src, ok := from.(*net.UDPAddr)
		if !ok || n < 4 || b[0] != 0 {
			continue
		}
		var local net.IP
		if cm != nil && cm.Dst != nil && !cm.Dst.IsMulticast() && !cm.Dst.Equal(net.IPv4bcast) {
			local = cm.Dst
		}
		if n = c.take(b, n, src, local); n > 0 {
			return n, from, nil
		}
	}
}

// take handles the packet of n bytes in b. It replaces b by the packet for the library
// and returns its length, or 0 if the library gets nothing.
func (c *tftpConn) take(b []byte, n int, src *net.UDPAddr, local net.IP) int {
	peer := peerOf(src)
	switch b[1] {
	case opWRQ:
		if c.mayAsk(peer.Addr()) {
			_, _ = c.packets.WriteTo([]byte("\x00\x05\x00\x02read-only\x00"), &ipv4.ControlMessage{Src: local},
				src) // if the error is lost, the client times out
		}
	case opRRQ:
		if request, ok := readRequest(b[:n]); ok && c.admit(peer, local) {
			return copy(b, request)
		}
	case opACK:
		if c.acknowledged(peer, int(binary.BigEndian.Uint16(b[2:]))) {
			return 4
		}
	case opError:
		if c.ended(peer) {
			n = min(n, maxTFTPError)
			b[n] = 0 // the library needs a terminated message; b has room for it
			return n + 1
		}
	}
	return 0
}

// WriteTo sends a packet of the library. An error ends the transfer in the library,
// because it is not a net.Error.
func (c *tftpConn) WriteTo(b []byte, to net.Addr) (n int, err error) {
	defer c.guard.Recover("a TFTP answer")
	dst, ok := to.(*net.UDPAddr)
	if !ok || len(b) < 4 {
		return 0, net.ErrClosed
	}
	local, send, err := c.maySend(peerOf(dst), b)
	if err != nil || !send {
		return len(b), err
	}
	return c.packets.WriteTo(b, &ipv4.ControlMessage{Src: local}, to)
}

// maySend reports whether to send a packet to peer, and from which address. An error
// ends the transfer.
func (c *tftpConn) maySend(peer netip.AddrPort, b []byte) (local net.IP, send bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.live[peer]
	if s == nil {
		return nil, false, io.ErrClosedPipe
	}
	last := b[1] == opError // an error packet is the last one of a transfer
	if last {
		defer c.forget(s)
	}
	if !last {
		s.note(blockOf(b))
	}
	switch {
	case s.repeats > tftpRetries:
		c.finish(s)
		return nil, false, io.ErrClosedPipe
	case s.handed:
		return nil, false, nil
	case c.closed || s.over:
		return nil, false, io.ErrClosedPipe
	case !last:
		s.waits = s.block
	}
	if !s.proven && s.sent >= s.asked {
		return nil, false, nil
	}
	s.sent++
	return s.local, true, nil
}

// blockOf returns the block of a DATA or OACK packet.
func blockOf(b []byte) int {
	if b[1] == opOACK {
		return 0
	}
	return int(binary.BigEndian.Uint16(b[2:]))
}

// note counts a packet that the library sends: the next block, or a repeated one after
// a timeout.
func (s *tftpSession) note(block int) {
	if block == s.block {
		s.repeats++
		return
	}
	s.block, s.repeats, s.handed = block, 0, false
}

// mayAsk counts a request of an address and returns false if there were too many.
func (c *tftpConn) mayAsk(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count(a, time.Now())
}

// count is mayAsk with the lock held. If there are too many addresses to count, it
// begins a new window, so that forged addresses cannot lock out others.
func (c *tftpConn) count(a netip.Addr, now time.Time) bool {
	if now.Sub(c.since) > tftpWindow || len(c.recent) >= tftpSources {
		c.recent, c.since = map[netip.Addr]int{}, now
	}
	c.recent[a]++
	return c.recent[a] <= tftpPerWindow
}

// admit reports whether to pass a request to the library. A repeated request is only
// counted: the library has it already, and repeats its own packet.
func (c *tftpConn) admit(peer netip.AddrPort, local net.IP) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	crowded := !c.count(peer.Addr(), now)
	if s := c.live[peer]; s != nil && !s.lost(now) {
		if !crowded {
			s.asked++
		}
		return false
	} else if s != nil {
		c.forget(s)
	}
	if c.undecided >= tftpUndecided || len(c.live) >= 2*tftpSessions {
		for _, s := range c.live {
			if s.lost(now) {
				c.forget(s)
			}
		}
	}
	if c.closed || c.undecided >= tftpUndecided || crowded && c.crowd >= tftpCrowd || len(c.live) >= 2*tftpSessions {
		return false
	}
	c.undecided++
	if crowded {
		c.crowd++
	}
	c.live[peer] = &tftpSession{peer: peer, local: local, crowded: crowded, last: now, asked: 1, block: -1, waits: -1}
	return true
}

// lost reports whether the library has no transfer for s. The library drops a request
// while it is ending the previous transfer of the same port.
func (s *tftpSession) lost(now time.Time) bool {
	return (s.over || s.rank == rankUndecided) && now.Sub(s.last) > tftpLost
}

// session returns the transfer with peer, or nil if it is over already.
func (c *tftpConn) session(peer netip.AddrPort) *tftpSession {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live[peer]
}

// serve reports whether to serve a request of that rank, and makes room for it. A
// machine's reserved address is served even after too many requests, because others
// may have forged them.
func (c *tftpConn) serve(s *tftpSession, rank tftpRank) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.over || s.crowded && rank < rankOwn {
		return false
	}
	c.uncount(s)
	s.rank = rank
	c.transfers++
	c.serving[s.peer.Addr()]++
	if c.transfers <= tftpSessions {
		return true
	}
	worst := c.leastValuable(s, time.Now())
	if c.finish(worst) {
		c.evicted = append(c.evicted, worst.peer)
	}
	return worst != s
}

// leastValuable returns the transfer to end: the one with the lowest value, then of
// the address with the most transfers, then the one that has been idle longest. It
// may be newest itself.
func (c *tftpConn) leastValuable(newest *tftpSession, now time.Time) *tftpSession {
	worst := newest
	for _, s := range c.live {
		if s.over || s.rank == rankUndecided {
			continue
		}
		if c.before(s, worst, now) {
			worst = s
		}
	}
	return worst
}

// before reports whether a should be ended before b.
func (c *tftpConn) before(a, b *tftpSession, now time.Time) bool {
	if v, w := a.value(now), b.value(now); v != w {
		return v < w
	}
	if n, m := c.serving[a.peer.Addr()], c.serving[b.peer.Addr()]; n != m {
		return n > m
	}
	return a.last.Before(b.last)
}

// value orders transfers by how much would be lost if they ended. It is highest for a
// machine with an open window, from its own address, that is making progress.
func (s *tftpSession) value(now time.Time) int {
	goesOn := s.proven && now.Sub(s.last) < tftpStalled
	switch {
	case s.rank == rankOwn && goesOn:
		return 4
	case s.rank == rankOwn:
		return 3
	case goesOn:
		return 2
	case s.rank == rankArmed:
		return 1
	}
	return 0
}

// acknowledged reports whether the transfer with peer expects the ACK of that block,
// and notes it. Any other ACK is dropped: it would restart the library's timeout.
func (c *tftpConn) acknowledged(peer netip.AddrPort, block int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.live[peer]
	if s == nil || s.over || s.waits != block {
		return false
	}
	s.waits, s.handed, s.last = -1, true, time.Now()
	c.prove(s)
	return true
}

// prove notes that the client of s answers. Its request no longer counts as one that
// may be forged.
func (c *tftpConn) prove(s *tftpSession) {
	if n := c.recent[s.peer.Addr()]; !s.proven && n > 0 {
		c.recent[s.peer.Addr()] = n - 1
	}
	s.proven = true
}

// ended marks the transfer with peer as ended by its client, and reports whether the
// library must get the client's error.
func (c *tftpConn) ended(peer netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.live[peer]
	if s == nil || s.over {
		return false
	}
	c.prove(s)
	return c.finish(s)
}

// finish marks s as ended and reports whether the library is waiting for a packet of
// s, so that it must get an error packet. Otherwise, an error of WriteTo ends s.
//
// When a transfer ends, the library closes the channel that its loop sends the
// transfer's packets on, and sending on a closed channel panics. Therefore WriteTo
// does not end a transfer before it has read a packet that was passed to it.
func (c *tftpConn) finish(s *tftpSession) (waits bool) {
	c.uncount(s)
	waits = s.waits >= 0
	s.over, s.waits, s.handed = true, -1, s.handed || waits
	return waits
}

// nextEvicted returns the next evicted transfer that is still live.
func (c *tftpConn) nextEvicted() (peer netip.AddrPort, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.evicted) > 0 && !ok {
		peer, c.evicted = c.evicted[0], c.evicted[1:]
		_, ok = c.live[peer]
	}
	return peer, ok
}

// end forgets a transfer that the library has ended.
func (c *tftpConn) end(s *tftpSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(s)
}

// forget is end with the lock held.
func (c *tftpConn) forget(s *tftpSession) {
	if c.live[s.peer] == s {
		delete(c.live, s.peer)
		c.uncount(s)
		s.over = true // in case the library still has the transfer
	}
}

// uncount removes s from the counters.
func (c *tftpConn) uncount(s *tftpSession) {
	switch a := s.peer.Addr(); {
	case s.over:
	case s.rank == rankUndecided:
		c.undecided--
		if s.crowded {
			c.crowd--
		}
	default:
		c.transfers--
		if c.serving[a]--; c.serving[a] == 0 {
			delete(c.serving, a)
		}
	}
}

func peerOf(a *net.UDPAddr) netip.AddrPort {
	p := a.AddrPort()
	return netip.AddrPortFrom(unmap(p.Addr()), p.Port())
}

// shut ends all transfers and rejects new ones.
func (c *tftpConn) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for peer, s := range c.live {
		if c.finish(s) {
			c.evicted = append(c.evicted, peer)
		}
	}
}
