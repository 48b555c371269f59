package bootsvc

import (
	"net/netip"
	"testing"
	"time"
)

// TestS34TheLeastValuableTransferEnds: when all places are taken, a transfer that nobody answers ends first, then one of the busiest
// source, then the one that has been idle longest. An armed machine's own ends last.
func TestS34TheLeastValuableTransferEnds(t *testing.T) {
	now := time.Now()
	of := func(peer string, rank tftpRank, proven bool, idle time.Duration) *tftpSession {
		return &tftpSession{peer: netip.MustParseAddrPort(peer), rank: rank, proven: proven, last: now.Add(-idle)}
	}
	c := newTFTPConn(&fakeWire{})
	c.serving[netip.MustParseAddr("192.0.2.1")] = 7
	order := []*tftpSession{
		of("192.0.2.1:1", rankKnown, false, 0), // of the busiest source
		of("192.0.2.2:1", rankKnown, true, 2*tftpStalled),
		of("192.0.2.2:2", rankKnown, false, 0),
		of("192.0.2.2:3", rankArmed, false, 0),
		of("192.0.2.1:2", rankArmed, true, 0), // of the busiest source
		of("192.0.2.2:4", rankArmed, true, time.Second),
		of("192.0.2.2:5", rankKnown, true, 0),
		of(testAddr+":1", rankOwn, false, 0),
		of(testAddr+":2", rankOwn, true, 0),
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
	c := newTFTPConn(&fakeWire{})
	serve := func(n int, rank tftpRank) bool {
		s := &tftpSession{peer: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 1069), last: time.Now()}
		return c.admit(s) && c.serve(s, rank)
	}
	for n := range tftpSessions {
		if !serve(n, rankOwn) {
			t.Fatalf("transfer %d is refused", n)
		}
	}
	if serve(tftpSessions, rankKnown) {
		t.Error("any client's transfer ends that of an armed machine")
	}
	if !serve(tftpSessions+1, rankOwn) || c.transfers != tftpSessions || len(c.live) != tftpSessions {
		t.Errorf("%d transfers, %d sessions", c.transfers, len(c.live))
	}
}

// TestS34AnACKRepeatsLittle: a client that repeats its ACKs gets each window a few times. An ACK that comes too soon to be about the
// last packets repeats none.
func TestS34AnACKRepeatsLittle(t *testing.T) {
	const window = 8
	now := time.Now()
	s := newTFTPSender(tftpRequest{blockSize: 512, window: window}, 1<<20, 1)
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
	if repeated > tftpRetries*window {
		t.Errorf("%d blocks for 100 ACKs", repeated)
	}
}
