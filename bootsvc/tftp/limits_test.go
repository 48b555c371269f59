package tftp

import (
	"net/netip"
	"testing"
	"time"
)

// TestS34TheLeastValuableTransferEnds: when all places are taken, a transfer that no client answers ends first, then one of the busiest
// source, then the one that has been idle longest. An armed machine's own ends last.
func TestS34TheLeastValuableTransferEnds(t *testing.T) {
	now := time.Now()
	of := func(peer string, rank Rank, proven bool, idle time.Duration) *session {
		return &session{peer: netip.MustParseAddrPort(peer), rank: rank, proven: proven, last: now.Add(-idle)}
	}
	c := newTestConn(&fakeWire{})
	c.serving[netip.MustParseAddr("192.0.2.1")] = 7
	order := []*session{
		of("192.0.2.1:1", RankKnown, false, 0), // of the busiest source
		of("192.0.2.2:1", RankKnown, true, 2*stalled),
		of("192.0.2.2:2", RankKnown, false, 0),
		of("192.0.2.2:3", RankArmed, false, 0),
		of("192.0.2.1:2", RankArmed, true, 0), // of the busiest source
		of("192.0.2.2:4", RankArmed, true, time.Second),
		of("192.0.2.2:5", RankKnown, true, 0),
		of(client.String()+":1", RankOwn, false, 0),
		of(client.String()+":2", RankOwn, true, 0),
	}
	for i, a := range order {
		for j, b := range order {
			if got := c.before(a, b, now); got != (i < j) {
				t.Errorf("transfer %d ends before %d: %v", i, j, got)
			}
		}
	}
}

// TestS34TransfersAreBounded: of more transfers than places, those of machines with an open window stay.
func TestS34TransfersAreBounded(t *testing.T) {
	c := newTestConn(&fakeWire{})
	serve := func(n int, rank Rank) bool {
		s := &session{peer: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 1069), last: time.Now()}
		return c.admit(s) && c.serve(s, rank)
	}
	for n := range maxSessions {
		if !serve(n, RankOwn) {
			t.Fatalf("transfer %d is refused", n)
		}
	}
	if serve(maxSessions, RankKnown) {
		t.Error("any client's transfer ends an armed machine's")
	}
	if !serve(maxSessions+1, RankOwn) || c.transfers != maxSessions || len(c.live) != maxSessions {
		t.Errorf("%d transfers, %d sessions", c.transfers, len(c.live))
	}
}

// TestS34AnACKRepeatsLittle: a client that repeats its ACKs gets each window a few times. An ACK that comes too soon to be about the
// last packets repeats none.
func TestS34AnACKRepeatsLittle(t *testing.T) {
	const window = 8
	now := time.Now()
	s := newSender(request{blockSize: 512, window: window}, 1<<20, 1)
	sent := func() (n int) {
		for {
			if _, _, ok := s.next(); !ok {
				return n
			}
			n++
			s.sentAt = now
		}
	}
	after := func(d time.Duration, block uint16) int {
		now = now.Add(d)
		s.ack(block, now)
		return sent()
	}
	sent() // the OACK
	s.ack(0, now)
	s.addChunk(make([]byte, s.perChunk*512), false)
	if got := sent(); got != window {
		t.Fatalf("the window has %d blocks", got)
	}
	if got := after(time.Second, window); got != window {
		t.Fatalf("the next window has %d blocks", got)
	}
	for _, block := range []uint16{window, window + 2} {
		if got := after(time.Millisecond, block); got != 0 {
			t.Errorf("an early ACK of block %d repeats %d blocks", block, got)
		}
	}
	repeated := 0
	for range 100 {
		repeated += after(time.Second, window+2)
	}
	if repeated > Retries*window {
		t.Errorf("%d blocks for 100 ACKs", repeated)
	}
}
