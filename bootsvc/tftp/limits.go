package tftp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

const (
	maxSessions  = 1024 // transfers at once
	maxUndecided = 256  // requests whose rank is not decided yet (rankUndecided)
	maxCrowd     = 8    // the part of maxUndecided for addresses with more than maxPerWindow requests
	maxPerWindow = 100  // requests of one address per countWindow; a request whose client has sent an ACK does not count
	countWindow  = 10 * time.Second
	maxSources   = 4096            // addresses whose requests are counted
	stalled      = 5 * time.Second // a transfer without an ACK for this long makes no progress
)

// Rank is the importance of a request. The handler derives it from the inventory.
type Rank int

// Ranks, lowest first.
const (
	rankUndecided Rank = iota // not looked up yet
	RankKnown                 // a file that is served to any client that names its machine, armed or not
	RankArmed                 // a file of a machine with an open netboot window
	RankOwn                   // like RankArmed, and requested from the machine's own address
)

var (
	// errBusy means that transfers of a higher rank need the capacity. The client gets no answer and retries.
	errBusy     = errors.New("too many transfers")
	errBrokeOff = errors.New("the transfer broke off")
)

// ErrNoFile means that there is no file for the client, for any reason. The client gets it as an error packet.
var ErrNoFile = errors.New("file not found")

// ErrOptional is an ErrNoFile for a file without which shim or GRUB also works. Such an answer does not count as a
// refusal.
var ErrOptional = fmt.Errorf("optional: %w", ErrNoFile)

// admit registers a request and reports whether to handle it. For a repeated request, it sends the answer again and
// returns false. Some clients always use the same port: if the client has given up the earlier transfer to its address
// and port, the new request replaces that transfer.
func (c *Conn) admit(s *session) bool {
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
	if c.closed || c.undecided >= maxUndecided || crowded && c.crowd >= maxCrowd {
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

// givenUp reports whether next, a request from the same address and port, shows that the client has given up the
// transfer s: next asks for something else, or the client has acknowledged a part and was then silent for Timeout. A
// repeated request that the network delayed therefore does not end a transfer that makes progress. While the rank of s
// is not decided, s is not replaced, because its look-up is running.
func (s *session) givenUp(next *session) bool {
	return s.rank != rankUndecided && (next.request != s.request || s.proven && next.last.Sub(s.last) >= Timeout)
}

// count counts a request of an address and returns false if the address has sent too many in countWindow. When
// maxSources addresses are counted, all counts start again at zero, so that forged addresses cannot lock out others.
func (c *Conn) count(a netip.Addr, now time.Time) bool {
	if now.Sub(c.since) > countWindow || len(c.recent) >= maxSources {
		c.recent, c.since = map[netip.Addr]int{}, now
	}
	c.recent[a]++
	return c.recent[a] <= maxPerWindow
}

// serve reports whether to serve a request with this rank. If there are then too many transfers, it ends the least
// valuable one, which may be s. A request with RankOwn is served even if its address has sent too many requests,
// because other hosts may have forged these.
func (c *Conn) serve(s *session, rank Rank) bool {
	if s.over || s.crowded && rank < RankOwn {
		return false
	}
	c.uncount(s)
	s.rank = rank
	c.transfers++
	c.serving[s.peer.Addr()]++
	if c.transfers <= maxSessions {
		return true
	}
	worst := c.leastValuable(s, time.Now())
	c.end(worst)
	return worst != s
}

// leastValuable returns the transfer to end: the one with the lowest value; among these, the one whose address has the
// most transfers; among these, the one with the longest time without an ACK. It may return newest.
func (c *Conn) leastValuable(newest *session, now time.Time) *session {
	worst := newest
	for _, s := range c.live {
		if s.rank != rankUndecided && c.before(s, worst, now) {
			worst = s
		}
	}
	return worst
}

// before reports whether to end a rather than b.
func (c *Conn) before(a, b *session, now time.Time) bool {
	if v, w := a.value(now), b.value(now); v != w {
		return v < w
	}
	if n, m := c.serving[a.peer.Addr()], c.serving[b.peer.Addr()]; n != m {
		return n > m
	}
	return a.last.Before(b.last)
}

// value ranks a transfer by how much is lost if it ends. The highest value is for a transfer that makes progress, to
// the own address of an armed machine.
func (s *session) value(now time.Time) int {
	goesOn := s.proven && now.Sub(s.last) < stalled
	switch {
	case s.rank == RankOwn && goesOn:
		return 4
	case s.rank == RankOwn:
		return 3
	case goesOn:
		return 2
	case s.rank == RankArmed:
		return 1
	}
	return 0
}

// end removes a transfer and wakes its goroutine. Nothing more is sent for this transfer.
func (c *Conn) end(s *session) {
	if s.over {
		return
	}
	delete(c.live, s.peer)
	c.uncount(s)
	s.over = true
	s.wakeUp()
}

// uncount removes s from the counters of its rank.
func (c *Conn) uncount(s *session) {
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
