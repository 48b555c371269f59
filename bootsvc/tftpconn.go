package bootsvc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pin/tftp/v3/netascii"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/guard"
)

const tftpBatch = 64 // packets that one system call writes

// packets is the socket of a tftpConn, a *tftpSocket.
type packets interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
	LocalAddr() net.Addr
	// Stop makes a ReadBatch that waits return, and later ones return at once.
	Stop()
	Close() error
}

// tftpConn has the transfers of one socket. It answers from the address that the request
// was sent to. Because the source of a request is easily forged, a source that has not
// sent an ACK gets at most as many packets as it has sent (security S34).
//
// If there are more transfers than tftpSessions, the least valuable one is ended: see
// value.
type tftpConn struct {
	packets
	guard *guard.Guard

	mu        sync.Mutex
	live      map[netip.AddrPort]*tftpSession
	serving   map[netip.Addr]int // transfers by address
	transfers int                // total of serving
	undecided int
	crowd     int
	recent    map[netip.Addr]int // requests since the time since
	since     time.Time
	closed    bool
	out       []ipv4.Message // to be sent by flush; their buffers are headers and contents
	queued    int            // of out
	sleeping  []*tftpSession // to be woken by flush: sending comes first
}

// tftpSession is one transfer, from its request until its end.
type tftpSession struct {
	*tftpSender // nil until the file is known

	peer    netip.AddrPort
	to      net.Addr // peer
	local   net.IP
	source  []byte // the control message that makes local the source of packets
	request tftpRequest
	rank    tftpRank
	crowded bool // its address has sent more than tftpPerWindow requests
	last    time.Time
	asked   int  // requests received
	answers int  // packets sent before the first ACK
	proven  bool // the client has sent an ACK, so its address is not forged
	over    bool // nothing more is sent
	wake    chan struct{}
}

func newTFTPConn(p packets) *tftpConn {
	c := &tftpConn{
		packets: p, live: map[netip.AddrPort]*tftpSession{}, serving: map[netip.Addr]int{}, recent: map[netip.Addr]int{},
		out: make([]ipv4.Message, tftpBatch),
	}
	for n := range c.out {
		c.out[n].Buffers = [][]byte{make([]byte, 4), nil}
	}
	return c
}

// receive handles packets until the socket is closed. It calls begin for each request
// that is admitted, with c.mu locked.
func (c *tftpConn) receive(begin func(*tftpSession)) error {
	in := make([]ipv4.Message, tftpBatch/4)
	for n := range in {
		in[n].Buffers = [][]byte{make([]byte, maxTFTPRequest+1)} // a longer packet is cut off, and invalid
		in[n].OOB = ipv4.NewControlMessage(ipv4.FlagDst)
	}
	for {
		n, err := c.ReadBatch(in, unix.MSG_WAITFORONE)
		switch {
		case c.isShut():
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("reading TFTP packets: %w", err)
		}
		c.take(in[:n], begin)
	}
}

// take handles packets that were received at once.
func (c *tftpConn) take(in []ipv4.Message, begin func(*tftpSession)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.guard.Recover("a TFTP packet")
	now := time.Now()
	for _, m := range in {
		b := m.Buffers[0][:m.N]
		from, ok := m.Addr.(*net.UDPAddr)
		if !ok || len(b) < 4 || b[0] != 0 {
			continue
		}
		peer := peerOf(from)
		switch b[1] {
		case opRRQ, opWRQ:
			c.ask(&tftpSession{peer: peer, to: from, local: localAddress(m.OOB[:m.NN]), last: now}, b, begin)
		case opACK:
			c.acknowledged(peer, binary.BigEndian.Uint16(b[2:]), now)
		case opError:
			if s := c.live[peer]; s != nil {
				c.prove(s)
				c.end(s)
			}
		}
	}
	c.flush()
}

// localAddress returns the address that a packet was sent to, or nil if that was not one
// address of this host.
func localAddress(control []byte) net.IP {
	var m ipv4.ControlMessage
	if m.Parse(control) != nil || m.Dst == nil || m.Dst.IsMulticast() || m.Dst.Equal(net.IPv4bcast) {
		return nil
	}
	return m.Dst
}

// ask handles a request. s becomes its session.
func (c *tftpConn) ask(s *tftpSession, b []byte, begin func(*tftpSession)) {
	s.source = (&ipv4.ControlMessage{Src: s.local}).Marshal()
	if b[1] == opWRQ {
		if c.count(s.peer.Addr(), s.last) {
			c.queue(s, []byte{0, opError, 0, 2}, []byte("read-only\x00"))
		}
		return
	}
	var ok bool
	if s.request, ok = readRequest(b); ok && c.admit(s) {
		begin(s)
	}
}

// repeatAnswer sends the first packet of a transfer again, if its client repeats the
// request.
func (c *tftpConn) repeatAnswer(s *tftpSession) {
	if s.tftpSender != nil && !s.proven && s.sent > s.acked {
		s.sent = s.acked
		c.push(s, time.Now())
	}
}

// acknowledged handles an ACK.
func (c *tftpConn) acknowledged(peer netip.AddrPort, block uint16, now time.Time) {
	s := c.live[peer]
	if s == nil || s.tftpSender == nil {
		return
	}
	if s.ack(block, now) {
		s.last = now
		c.prove(s)
	}
	c.push(s, now)
	if s.done() || s.wantsChunk() {
		c.sleeping = append(c.sleeping, s)
	}
}

// prove notes that the client of s answers. Its request no longer counts as one that
// may be forged.
func (c *tftpConn) prove(s *tftpSession) {
	if n := c.recent[s.peer.Addr()]; !s.proven && n > 0 {
		c.recent[s.peer.Addr()] = n - 1
	}
	s.proven = true
}

// wakeUp makes the goroutine of s look at its state.
func (s *tftpSession) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // it will look in any case
	}
}

// transfer sends a file, and returns when the client has acknowledged its last block. It
// returns errBusy if transfers of a higher rank need the room.
func (c *tftpConn) transfer(s *tftpSession, rank tftpRank, size int64, content io.Reader) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.serve(s, rank) {
		return errBusy
	}
	request := s.request
	if rank < rankOwn {
		request.window = min(request.window, tftpOthersWindow)
	}
	if request.netascii {
		content = netascii.ToReader(content)
	}
	s.tftpSender = newTFTPSender(request, size)
	timer := time.NewTimer(s.timeout)
	defer timer.Stop()
	for {
		c.push(s, time.Now())
		c.flush()
		switch {
		case s.done():
			return nil
		case s.over || s.expired():
			return errBrokeOff
		case s.wantsChunk():
			if err := c.readAhead(s, content); err != nil {
				return err
			}
			continue
		}
		timer.Reset(time.Until(s.sentAt.Add(s.timeout)))
		c.unlocked(func() {
			select {
			case <-s.wake:
			case <-timer.C:
			}
		})
		if time.Since(s.sentAt) >= s.timeout && s.sent > s.acked && !s.over {
			s.repeat()
		}
	}
}

// readAhead reads a chunk of the file. No other transfer waits for a slow disk.
func (c *tftpConn) readAhead(s *tftpSession, content io.Reader) (err error) {
	chunk, last := s.buffer(), false
	c.unlocked(func() { chunk, last, err = readChunk(content, chunk) })
	if err == nil {
		s.addChunk(chunk, last)
	}
	return err
}

// unlocked calls f without the lock.
func (c *tftpConn) unlocked(f func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	f()
}

// push queues the blocks that s may send.
func (c *tftpConn) push(s *tftpSession, now time.Time) {
	for !s.over && !s.expired() {
		block, content, ok := s.next()
		if !ok {
			return
		}
		s.sentAt = now
		if s.sent == 0 {
			c.answer(s, s.oack[:4], s.oack[4:])
			continue
		}
		head := [4]byte{0, opData}
		binary.BigEndian.PutUint16(head[2:], block)
		c.answer(s, head[:], content)
	}
}

// answer queues a packet of a transfer, unless the client has not proven its address and
// has got as many packets as it has sent.
func (c *tftpConn) answer(s *tftpSession, head, content []byte) {
	if !s.proven {
		if s.answers >= s.asked {
			return
		}
		s.answers++
	}
	c.queue(s, head, content)
}

// queue adds a packet to those that flush sends. content must remain valid until then.
func (c *tftpConn) queue(s *tftpSession, head, content []byte) {
	if c.queued == len(c.out) {
		c.flush()
	}
	m := &c.out[c.queued]
	copy(m.Buffers[0], head)
	m.Buffers[1], m.OOB, m.Addr = content, s.source, s.to
	c.queued++
}

// flush sends the queued packets. A packet that cannot be sent is lost, as on the network.
func (c *tftpConn) flush() {
	queued := c.out[:c.queued]
	c.queued = 0
	for len(queued) > 0 && !c.closed {
		n, err := c.WriteBatch(queued, 0)
		if err != nil || n <= 0 {
			n = 1
		}
		for i := range queued[:n] {
			queued[i].Buffers[1] = nil // the file may be gone before the next packet
		}
		queued = queued[n:]
	}
	for _, s := range c.sleeping {
		s.wakeUp()
	}
	c.sleeping = c.sleeping[:0]
}

// finish ends s after its goroutine has returned err.
func (c *tftpConn) finish(s *tftpSession, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, errNoFile) && !s.crowded && !s.over {
		c.answer(s, []byte{0, opError, 0, 1}, []byte(errNoFile.Error()+"\x00"))
		c.flush()
	}
	c.end(s)
}

func peerOf(a *net.UDPAddr) netip.AddrPort {
	p := a.AddrPort()
	return netip.AddrPortFrom(unmap(p.Addr()), p.Port())
}

// shut ends all transfers, and receive.
func (c *tftpConn) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	for _, s := range c.live {
		c.end(s)
	}
	c.Stop()
}

func (c *tftpConn) isShut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}
