package neighbours

import (
	"net/netip"
	"testing"
	"time"
)

// TestS34WaitingAnswersAreBounded: what waits for ARP is bounded in all and for one address. It has room again when the kernel has
// given up.
func TestS34WaitingAnswersAreBounded(t *testing.T) {
	address := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 10, 128, byte(n)}) }
	w := NewLimits(nil).others
	began := time.Now()
	for n := range perOther + 1 {
		if got := w.add(address(0), began); got != (n < perOther) {
			t.Errorf("answer %d to one address: %t", n+1, got)
		}
	}
	for n := range 2 * othersWaiting {
		if got := w.add(address(1+n), began); got != (n < othersWaiting-perOther) {
			t.Errorf("answer to address %d: %t", n+1, got)
		}
	}
	if w.add(address(0), began.Add(arpGivesUp-1)) {
		t.Error("there is room while all wait")
	}
	if !w.add(address(0), began.Add(arpGivesUp)) {
		t.Error("there is no room when the kernel has given up")
	}
}

// TestS34ArmedMachineHasRoomOfItsOwn: answers to many absent neighbours leave room for the address that is reserved for an armed
// machine, and the reverse.
func TestS34ArmedMachineHasRoomOfItsOwn(t *testing.T) {
	l := NewLimits(func(netip.Addr) bool { return true })
	self := netip.MustParseAddr("10.10.20.11")
	count := func(own bool) (sent int) {
		for n := range 1000 {
			to := self
			if !own {
				to = netip.AddrFrom4([4]byte{10, 10, byte(128 + n>>8), byte(n)})
			}
			if l.Admit(to, own) {
				sent++
			}
		}
		return sent
	}
	if others, own := count(false), count(true); others != othersWaiting || own != perOwn {
		t.Errorf("%d answers to others and %d to the machine are sent", others, own)
	}
	l.askKernel = func(netip.Addr) bool { return false } // the machine has answered ARP
	if own := count(true); own != 1000 {
		t.Errorf("%d answers to the machine are sent when its MAC is known", own)
	}
}

func TestTokenBucket(t *testing.T) {
	b := tokenBucket{rate: 10, size: 3}
	now := time.Now()
	take := func(want int) {
		t.Helper()
		for n := range want + 1 {
			if got := b.take(now); got != (n < want) {
				t.Errorf("token %d of %d: %t", n+1, want, got)
			}
		}
	}
	take(3)
	now = now.Add(200 * time.Millisecond)
	take(2)
	now = now.Add(time.Hour)
	take(3)
}

// S34: an address that is proven gives its token back, and no more than the bucket holds.
func TestProvenClientsAreNotLimited(t *testing.T) {
	l := NewLimits(nil)
	l.unproven = tokenBucket{size: 2, tokens: 2}
	for range 5 {
		if !l.TakeUnproven() {
			t.Error("a client that answers is limited")
		}
		l.ReturnUnproven()
	}
	l.ReturnUnproven()
	for n := range 3 {
		if got := l.TakeUnproven(); got != (n < 2) {
			t.Errorf("first answer %d: %t", n, got)
		}
	}
}
