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
	tftpUndecided = 256  // requests at once of which it is not known yet whether they are served
	tftpCrowd     = 8    // of them, of addresses that have asked too often
	tftpPerWindow = 100  // requests of one address in tftpWindow that it did not prove to be its own
	tftpWindow    = 10 * time.Second
	tftpSources   = 4096
	tftpStalled   = 5 * time.Second // without an ACK that was waited for
	tftpLost      = 3 * tftpStalled // undecided, or over: the library does not have it
	tftpBuffer    = 2 << 20         // bytes
	maxTFTPError  = 128             // bytes of a client's error that the library is given
)

// A tftpRank says who asks, as far as the inventory knows.
type tftpRank int

const (
	rankUndecided tftpRank = iota // not looked up yet
	rankKnown                     // a file that is served to any client that names its machine
	rankArmed                     // a file of a machine with an open window
	rankOwn                       // as rankArmed, requested from the machine's reserved address
)

// packets is how a tftpConn reads and writes: *ipv4.PacketConn.
type packets interface {
	ReadFrom(b []byte) (n int, cm *ipv4.ControlMessage, src net.Addr, err error)
	WriteTo(b []byte, cm *ipv4.ControlMessage, dst net.Addr) (n int, err error)
}

// A tftpConn stands between the library and the socket. It gives the library
// nothing but requests that readRequest wrote, the ACKs that are waited for and
// short errors; answers from the address that was asked; and sends to a source
// that has not answered yet no more packets than came from it, because the
// source of a request is easily forged (security S34).
//
// When there are more transfers than tftpSessions, the one of the lowest rank ends:
// first one whose client has not answered, and last one for a machine with an open
// window, from its own address.
type tftpConn struct {
	net.PacketConn
	packets packets
	guard   *guard.Guard

	mu        sync.Mutex
	live      map[netip.AddrPort]*tftpSession
	evicted   []netip.AddrPort // whose transfers the library is to end
	serving   map[netip.Addr]int
	transfers int // those in serving
	undecided int
	crowd     int
	recent    map[netip.Addr]int // requests since
	since     time.Time
	closed    bool
}

// A tftpSession is one transfer, from its request until the library has ended it.
type tftpSession struct {
	peer    netip.AddrPort
	local   net.IP
	rank    tftpRank
	crowded bool // its address has asked too often
	last    time.Time
	asked   int  // requests seen
	sent    int  // packets sent before the first ACK
	block   int  // that the library has sent last; 0: the OACK, -1: none yet
	repeats int  // of it
	waits   int  // for the ACK of this block, -1: for none
	handed  bool // the library is handed a packet, and has sent nothing new since
	proven  bool // it has acknowledged what was sent to it
	over    bool // evicted, or ended by its client: nothing more is sent
}

func listenTFTP(ctx context.Context, addr string, self netip.Addr) (*tftpConn, error) {
	full := httpserve.WithHost(addr, self)
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			// Requests wait there while a burst of forged ones is looked at. Without
			// CAP_NET_ADMIN it stays as long as the kernel has it.
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, tftpBuffer)
		})
	}}
	pc, err := lc.ListenPacket(ctx, "udp4", full)
	if err != nil {
		return nil, fmt.Errorf("binding UDP %s for TFTP: %w (%s)", full, err, httpserve.BindRemedy(err, "TFTP address"))
	}
	p4 := ipv4.NewPacketConn(pc)
	if err := p4.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return nil, errors.Join(fmt.Errorf("asking for packet information: %w", err), pc.Close())
	}
	return newTFTPConn(pc, p4), nil
}

func newTFTPConn(pc net.PacketConn, p packets) *tftpConn {
	return &tftpConn{
		PacketConn: pc, packets: p,
		live: map[netip.AddrPort]*tftpSession{}, serving: map[netip.Addr]int{}, recent: map[netip.Addr]int{},
	}
}

// ReadFrom returns the next packet that the library is to see. b is longer than
// any of them.
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
				time.Sleep(10 * time.Millisecond) // the library reads on until its transfers have ended
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

// take returns the length of what the library is given of the n bytes that are
// in b, which it rewrites; 0: nothing.
func (c *tftpConn) take(b []byte, n int, src *net.UDPAddr, local net.IP) int {
	peer := peerOf(src)
	switch b[1] {
	case opWRQ:
		if c.mayAsk(peer.Addr()) {
			_, _ = c.packets.WriteTo([]byte("\x00\x05\x00\x02read-only\x00"), &ipv4.ControlMessage{Src: local},
				src) // a lost error costs the client a time-out
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
			b[n] = 0 // the library wants a message, and there is room: b is longer
			return n + 1
		}
	}
	return 0
}

// WriteTo sends what the library has for a transfer. An error of it ends the
// transfer, because it is not a net.Error.
func (c *tftpConn) WriteTo(b []byte, to net.Addr) (n int, err error) {
	defer c.guard.Recover("a TFTP answer")
	dst, ok := to.(*net.UDPAddr)
	if !ok || len(b) < 4 {
		return 0, net.ErrClosed
	}
	local, send, err := c.leaves(peerOf(dst), b)
	if err != nil || !send {
		return len(b), err
	}
	return c.packets.WriteTo(b, &ipv4.ControlMessage{Src: local}, to)
}

// leaves reports whether a packet is to be sent to peer, and from which address.
func (c *tftpConn) leaves(peer netip.AddrPort, b []byte) (local net.IP, send bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.live[peer]
	if s == nil {
		return nil, false, io.ErrClosedPipe
	}
	last := b[1] == opError // of every transfer that has one
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

// note takes notice of a packet that the library sends: the next block, or the
// same once more because its wait has timed out.
func (s *tftpSession) note(block int) {
	if block == s.block {
		s.repeats++
		return
	}
	s.block, s.repeats, s.handed = block, 0, false
}

// mayAsk counts a request of an address; false: too many.
func (c *tftpConn) mayAsk(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count(a, time.Now())
}

// count is mayAsk with the lock held. More addresses than it can remember begin
// a new window: a forged one has no way to close it to others.
func (c *tftpConn) count(a netip.Addr, now time.Time) bool {
	if now.Sub(c.since) > tftpWindow || len(c.recent) >= tftpSources {
		c.recent, c.since = map[netip.Addr]int{}, now
	}
	c.recent[a]++
	return c.recent[a] <= tftpPerWindow
}

// admit reports whether the library is to see a request. One that is repeated is
// only counted: the library has it, and repeats its packet.
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

// lost reports whether the library has no transfer for s. It drops a request that
// comes while it is just ending the transfer before, of the same port.
func (s *tftpSession) lost(now time.Time) bool {
	return (s.over || s.rank == rankUndecided) && now.Sub(s.last) > tftpLost
}

// session returns the transfer with peer; nil: it is over already.
func (c *tftpConn) session(peer netip.AddrPort) *tftpSession {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.live[peer]
}

// serve reports whether a request of that rank is to be served, and makes room
// for it. An address that has asked too often is served if it is the machine's
// own: others can forge requests in its name, and must not close TFTP to it.
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

// leastValuable returns the transfer that has to go: of those with the least
// value one of the address with the most transfers, and of these the one that
// has waited for an answer the longest. It may be the newest itself.
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

func (c *tftpConn) before(a, b *tftpSession, now time.Time) bool {
	if v, w := a.value(now), b.value(now); v != w {
		return v < w
	}
	if n, m := c.serving[a.peer.Addr()], c.serving[b.peer.Addr()]; n != m {
		return n > m
	}
	return a.last.Before(b.last)
}

// value orders transfers by what would be lost with them.
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

// acknowledged reports whether the transfer with peer waits for the ACK of that
// block. Any other would restart the library's time-out.
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

// prove notes that s answers: its request counts no longer as one that may be forged.
func (c *tftpConn) prove(s *tftpSession) {
	if n := c.recent[s.peer.Addr()]; !s.proven && n > 0 {
		c.recent[s.peer.Addr()] = n - 1
	}
	s.proven = true
}

// ended reports whether the library has to hear that the client of a transfer has
// ended it.
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

// finish marks s as ended and reports whether the library is to be handed an error
// from its client, because it is waiting for a packet. The library closes the
// channel on which its loop hands packets over when a transfer ends, and sending on
// a closed one panics. So a transfer that is handed a packet is not ended by WriteTo
// before it has read it; one that is not learns from WriteTo that it is over.
func (c *tftpConn) finish(s *tftpSession) (waits bool) {
	c.uncount(s)
	waits = s.waits >= 0
	s.over, s.waits, s.handed = true, -1, s.handed || waits
	return waits
}

// nextEvicted returns a transfer that was evicted, once.
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
		s.over = true // should the library have it all the same
	}
}

// uncount takes s out of the numbers.
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

// shut ends all transfers, and takes no more.
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
