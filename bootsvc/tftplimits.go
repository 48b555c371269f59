package bootsvc

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

const (
	tftpSessions  = 1024 // transfers at once
	tftpUndecided = 256  // requests at once that are not decided yet (rankUndecided)
	tftpCrowd     = 8    // of tftpUndecided, for addresses with more than tftpPerWindow requests
	tftpPerWindow = 100  // requests of one address in tftpWindow without an ACK, so they may be forged
	tftpWindow    = 10 * time.Second
	tftpSources   = 4096            // addresses whose requests are counted
	tftpStalled   = 5 * time.Second // without an expected ACK
)

// tftpRank is how important a request is, from the inventory.
type tftpRank int

const (
	rankUndecided tftpRank = iota // not looked up yet
	rankKnown                     // a file that is served to any client that names its machine
	rankArmed                     // a file of a machine with an open netboot window
	rankOwn                       // like rankArmed, requested from the machine's own address
)

var (
	// errBusy means that transfers of a higher rank need the room. The client gets no
	// answer and retries.
	errBusy     = errors.New("too many transfers")
	errBrokeOff = errors.New("the transfer broke off")
)

// errNoFile is the error that a client gets, for any reason.
var errNoFile = errors.New("file not found")

// errOptional is errNoFile for a file that shim or GRUB can do without. It is not counted.
var errOptional = fmt.Errorf("optional: %w", errNoFile)

// admit reports whether to handle a request, and registers it. A repeated request is
// counted, and is answered like the first one. A request that follows a transfer which its client has
// given up replaces that transfer: some clients always use the same port.
func (c *tftpConn) admit(s *tftpSession) bool {
	crowded := !c.count(s.peer.Addr(), s.last)
	known := c.live[s.peer]
	if known != nil && !crowded && known.givenUp(s) {
		c.end(known)
		known = nil
	}
	if known != nil {
		if !crowded {
			known.asked++
			c.repeatAnswer(known)
		}
		return false
	}
	if c.closed || c.undecided >= tftpUndecided || crowded && c.crowd >= tftpCrowd {
		return false
	}
	c.undecided++
	if crowded {
		c.crowd++
	}
	s.crowded, s.asked, s.wake = crowded, 1, make(chan struct{}, 1)
	c.live[s.peer] = s
	return true
}

// givenUp reports whether a request of the same client shows that it has given up the transfer s: it asks
// for something else, or it has received a part and has been silent for long enough to begin again. A
// request that was only delayed by the network does not end a transfer that makes progress. A request that
// is not decided yet is not replaced, because its look-up goes on.
func (s *tftpSession) givenUp(next *tftpSession) bool {
	return s.rank != rankUndecided && (next.request != s.request || s.proven && next.last.Sub(s.last) >= tftpTimeout)
}

// count counts a request of an address and returns false if there were too many. If there
// are too many addresses to count, it begins a new window, so that forged addresses
// cannot lock out others.
func (c *tftpConn) count(a netip.Addr, now time.Time) bool {
	if now.Sub(c.since) > tftpWindow || len(c.recent) >= tftpSources {
		c.recent, c.since = map[netip.Addr]int{}, now
	}
	c.recent[a]++
	return c.recent[a] <= tftpPerWindow
}

// serve reports whether to serve a request of that rank, and makes room for it. A
// machine's own address is served even after too many requests, because others
// may have forged them.
func (c *tftpConn) serve(s *tftpSession, rank tftpRank) bool {
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
	c.end(worst)
	return worst != s
}

// leastValuable returns the transfer to end: the one with the lowest value, then of
// the address with the most transfers, then the one that has been idle longest. It
// may be newest itself.
func (c *tftpConn) leastValuable(newest *tftpSession, now time.Time) *tftpSession {
	worst := newest
	for _, s := range c.live {
		if s.rank != rankUndecided && c.before(s, worst, now) {
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

// end forgets a transfer. Nothing more is sent.
func (c *tftpConn) end(s *tftpSession) {
	if s.over {
		return
	}
	delete(c.live, s.peer)
	c.uncount(s)
	s.over = true
	s.wakeUp()
}

// uncount removes s from the counters.
func (c *tftpConn) uncount(s *tftpSession) {
	if s.rank == rankUndecided {
		c.undecided--
		if s.crowded {
			c.crowd--
		}
		return
	}
	c.transfers--
	a := s.peer.Addr()
	if c.serving[a]--; c.serving[a] == 0 {
		delete(c.serving, a)
	}
}
