package tftp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pin/tftp/v3/netascii"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
)

const (
	maxBatch  = 64                   // packets per system call
	fullPause = 5 * time.Millisecond // wait before sending again after the socket had no room
)

// packets is the socket of a Conn: in the product a *socket, in tests a fake.
type packets interface {
	// Receive waits for a packet and returns up to limit packets that have arrived. The packets are valid until the
	// next Receive.
	Receive(limit int) ([]datagram, error)
	// Send sends at most maxBatch packets without waiting and returns how many it has sent. If the socket has no room for
	// the first packet, it returns unix.EAGAIN. The field local of each packet must be valid. Only one goroutine may call
	// Send at a time.
	Send([]datagram) (int, error)
	// Stop makes a waiting call of Receive return at once, and all later calls, too.
	Stop()
	Close() error
}

// Limits limits the answers to addresses that may be forged.
type Limits interface {
	// Unresolved reports whether an answer to an address must wait for ARP. It may block while it asks the kernel.
	Unresolved(netip.Addr) bool
	// MayWait reports whether one more answer to the address may wait for ARP. own means that the address is reserved for
	// an armed machine.
	MayWait(to netip.Addr, own bool) bool
	// TakeUnproven reports whether a first answer may be sent to a client that has not proven its address, and counts
	// this answer. After that client has sent an ACK, ReturnUnproven undoes the count.
	TakeUnproven() bool
	ReturnUnproven()
}

type counters struct {
	served, refused, aborted atomic.Int64
	// Answers that were not sent.
	unresolved atomic.Int64 // too many waited for addresses that do not answer ARP
	unproven   atomic.Int64 // too many at once went to clients that have not sent an ACK
	unsent     atomic.Int64 // the socket had no room, or refused the packet
}

// Conn holds the transfers of one socket. It answers from the address that the request was sent to. Because the source
// of a request is easily forged, a source that has not sent an ACK gets at most as many packets as it has sent
// (security S34).
//
// If there are more than maxSessions transfers, Conn ends the least valuable one: see session.value.
type Conn struct {
	packets
	guard  *guard.Guard
	limits Limits
	stats  *counters

	mu        sync.Mutex
	live      map[netip.AddrPort]*session
	serving   map[netip.Addr]int // transfers by address
	transfers int                // total of serving
	undecided int
	crowd     int
	recent    map[netip.Addr]int // number of requests per address, counted from the time since
	since     time.Time
	closed    bool
	out       []datagram // packets for flush to send
	sleeping  []*session // transfers that flush wakes after it has sent
	held      []*session // transfers with blocks that the socket had no room for
}

// session is one transfer, from its request to its end.
type session struct {
	*sender // nil until the size of the file is known

	peer    netip.AddrPort
	local   netip.Addr
	request request
	rank    Rank
	crowded bool // its address has sent more than maxPerWindow requests
	last    time.Time
	asked   int  // requests received
	answers int  // packets sent before the first ACK
	proven  bool // the client has sent an ACK, so its address is not forged
	held    bool // its next block waits for room in the socket
	counted bool // its first answer was counted by Limits.TakeUnproven
	// unresolved means that the first answer must wait for ARP, as Limits.Unresolved reported when the request came.
	unresolved bool
	over       bool // nothing more is sent
	wake       chan struct{}
}

func newConn(p packets) *Conn {
	return &Conn{
		packets: p, live: map[netip.AddrPort]*session{}, serving: map[netip.Addr]int{}, recent: map[netip.Addr]int{},
		out: make([]datagram, 0, maxBatch),
	}
}

// receive handles packets until shut is called, and then returns nil. It calls begin with c.mu locked for each
// admitted request.
func (c *Conn) receive(begin func(*session)) error {
	for expected := 1; ; {
		in, err := c.Receive(expected)
		switch {
		case c.isShut():
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("reading TFTP packets: %w", err)
		}
		expected = max(1, c.take(in, begin))
	}
}

// take handles the packets of one Receive. It returns how many packets to expect next: one from each session, and two
// more for each packet that belonged to no session, because its sender may be flooding the socket.
func (c *Conn) take(in []datagram, begin func(*session)) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.guard.Recover("a TFTP packet")
	now, strangers := time.Now(), 0
	for _, d := range in {
		b, s := d.content, c.live[d.peer]
		if s == nil {
			strangers++
		}
		if len(b) < 4 || b[0] != 0 {
			continue
		}
		switch b[1] {
		case opRRQ, opWRQ:
			if d.local.IsValid() { // RFC 1123 §4.2.3.5: ignore requests that were broadcast
				c.ask(&session{peer: d.peer, local: d.local, last: now}, b, begin)
			}
		case opACK:
			c.acknowledged(s, binary.BigEndian.Uint16(b[2:]), now)
		case opError:
			if s != nil {
				c.prove(s)
				c.end(s)
			}
		}
	}
	c.flush()
	return len(c.live) + 2*strangers
}

// ask handles a read or write request. s becomes the session of a read request.
func (c *Conn) ask(s *session, b []byte, begin func(*session)) {
	if b[1] == opWRQ {
		if c.count(s.peer.Addr(), s.last) {
			s.asked, s.unresolved = 1, true // for an error packet, assume that ARP is needed: a look-up costs too much
			c.answer(s, [4]byte{0, opError, 0, 2}, []byte("read-only\x00"))
		}
		return
	}
	var ok bool
	if s.request, ok = readRequest(b); ok && c.admit(s) {
		begin(s)
	}
}

// repeatAnswer sends the first packet of a transfer again after its client has repeated the request.
func (c *Conn) repeatAnswer(s *session) {
	if s.sender != nil && !s.proven && s.sent > s.acked {
		s.sent = s.acked
		c.push(s, time.Now())
	}
}

// acknowledged handles an ACK. It ignores an ACK that belongs to no session (s is nil), and an ACK before s has a
// file.
func (c *Conn) acknowledged(s *session, block uint16, now time.Time) {
	if s == nil || s.sender == nil {
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

// prove records that the client of s has answered a packet, so its address is not forged. Its request therefore no
// longer counts for maxPerWindow.
func (c *Conn) prove(s *session) {
	if s.counted {
		c.limits.ReturnUnproven()
		s.counted = false
	}
	if n := c.recent[s.peer.Addr()]; !s.proven && n > 0 {
		c.recent[s.peer.Addr()] = n - 1
	}
	s.proven = true
}

// wakeUp makes the goroutine of s check the state of s again.
func (s *session) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// transfer sends a file, and returns nil when the client has acknowledged its last block. It returns errBusy if
// transfers of a higher rank need the capacity, and errBrokeOff if something has ended the transfer early or the
// client no longer answers.
func (c *Conn) transfer(s *session, rank Rank, size int64, content io.Reader) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.serve(s, rank) {
		return errBusy
	}
	request := s.request
	if rank < RankOwn {
		request.window = min(request.window, othersWindow)
	}
	if request.netascii {
		content = netascii.ToReader(content)
	}
	s.sender = newSender(request, size, c.transfers)
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

// readAhead reads the next chunk of the file. It unlocks c.mu while reading, so that no other transfer waits for a
// slow disk.
func (c *Conn) readAhead(s *session, content io.Reader) (err error) {
	chunk, last := s.buffer(), false
	c.unlocked(func() { chunk, last, err = readChunk(content, chunk) })
	if err == nil {
		s.addChunk(chunk, last)
	}
	return err
}

// unlocked calls f with c.mu unlocked.
func (c *Conn) unlocked(f func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	f()
}

// push queues the blocks that s may send now. If the limits do not permit the first block, push ends s, and the client
// repeats its request.
func (c *Conn) push(s *session, now time.Time) {
	for !s.over && !s.held && !s.expired() {
		block, content, ok := s.next()
		if !ok {
			return
		}
		s.sentAt = now
		head := [4]byte{0, opData}
		binary.BigEndian.PutUint16(head[2:], block)
		if s.sent == 0 {
			head, content = [4]byte(s.oack), s.oack[4:]
		}
		if !c.answer(s, head, content) {
			c.end(s)
		}
	}
}

// answer queues a packet of s. It drops the packet if the client has not proven its address and has already been sent
// one packet for each of its requests. It returns false if mayAnswer does not permit the packet. content must remain
// valid until flush.
func (c *Conn) answer(s *session, head [4]byte, content []byte) bool {
	d := datagram{peer: s.peer, local: s.local, head: head, content: content}
	switch {
	case s.proven && s.sender != nil:
		d.of, d.block = s, s.sent
	case s.proven:
	case s.answers >= s.asked:
		return true
	case !c.mayAnswer(s):
		return false
	default:
		s.answers++
	}
	if len(c.out) == maxBatch {
		if c.flush(); s.held {
			return true // this block must wait, too, after the blocks for which the socket had no room
		}
	}
	c.out = append(c.out, d)
	return true
}

// mayAnswer reports whether the limits permit a packet to a client that has not proven its address. It counts packets
// that are not permitted.
func (c *Conn) mayAnswer(s *session) bool {
	own := s.rank == RankOwn
	if s.unresolved && !c.limits.MayWait(s.peer.Addr(), own) {
		c.stats.unresolved.Add(1)
		return false
	}
	if !own && !s.counted {
		if !c.limits.TakeUnproven() {
			c.stats.unproven.Add(1)
			return false
		}
		s.counted = true
	}
	return true
}

// flush sends the queued packets. Send does not wait, so c.mu is held only while the kernel takes the packets. A
// packet that cannot be sent is lost, as it may be on the network. But if the socket has no room for blocks of a
// proven transfer, the transfer sends them again after fullPause.
func (c *Conn) flush() {
	queued := c.out
	c.out = c.out[:0]
	for left := queued; len(left) > 0 && !c.closed; {
		n, err := c.Send(left)
		switch {
		case errors.Is(err, unix.EAGAIN):
			c.hold(left)
			n = len(left)
		case err != nil || n <= 0:
			c.stats.unsent.Add(1)
			n = 1
		}
		left = left[n:]
	}
	clear(queued) // otherwise the queue keeps the chunks of ended transfers in memory
	for _, s := range c.sleeping {
		s.wakeUp()
	}
	c.sleeping = c.sleeping[:0]
}

// hold handles packets for which the socket has no room. Proven transfers send theirs again after fullPause; the other
// packets are dropped.
func (c *Conn) hold(packets []datagram) {
	for _, d := range packets {
		if d.of == nil {
			c.stats.unsent.Add(1)
			continue
		}
		if d.of.unsend(d.block); d.of.held {
			continue
		}
		d.of.held = true
		if c.held = append(c.held, d.of); len(c.held) == 1 {
			time.AfterFunc(fullPause, c.resume)
		}
	}
}

// resume wakes the transfers that wait for room in the socket.
func (c *Conn) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.held {
		s.held = false
		s.wakeUp()
	}
	c.held = nil
}

// finish ends s after its handler has returned err. For ErrNoFile, it sends an error packet.
func (c *Conn) finish(s *session, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, ErrNoFile) && !s.crowded && !s.over {
		c.answer(s, [4]byte{0, opError, 0, 1}, []byte(ErrNoFile.Error()+"\x00"))
		c.flush()
	}
	c.end(s)
}

// shut ends all transfers and makes receive return.
func (c *Conn) shut() {
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

func (c *Conn) isShut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}
