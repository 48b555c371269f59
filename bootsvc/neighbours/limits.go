package neighbours

import (
	"net/netip"
	"sync"
	"time"
)

// A packet to an address on a network of this host waits in the kernel until the address answers ARP, at most for
// arpGivesUp. A waiting packet uses up the buffer of the sending socket, and takes an entry of the kernel's neighbour
// table (net.ipv4.neigh.default.gc_thresh3, by default 1,024). Source and relay addresses are easily forged: without a
// limit on waiting packets, a few hundred forged packets per second would fill the buffer and the table (security S30,
// S34).
const (
	arpGivesUp = 4 * time.Second // mcast_solicit × retrans_time_ms, plus a second for the timer granularity of the neighbour table

	// Answers that may wait for ARP, in total and per address. Answers to an address that is reserved for an armed
	// machine have limits of their own: if the machine is on the network, ARP resolves its address after the first
	// answer.
	othersWaiting = 64
	perOther      = 4
	ownWaiting    = 128
	perOwn        = 16

	// Limits on the first TFTP packets to clients that have not sent an ACK. Packets to the own address of an armed
	// machine do not count.
	unprovenPerSecond = 1000
	unprovenAtOnce    = 2000
)

// Limits limits the answers to addresses that may be forged.
type Limits struct {
	askKernel func(netip.Addr) bool // implements Unresolved

	mu          sync.Mutex
	others, own waitingAnswers
	unproven    tokenBucket
}

// NewLimits returns limits. unresolved reports whether the kernel must first resolve an address by ARP.
func NewLimits(unresolved func(netip.Addr) bool) *Limits {
	return &Limits{
		askKernel: unresolved,
		others:    waitingAnswers{ring: make([]waitingAnswer, othersWaiting), perAddress: perOther},
		own:       waitingAnswers{ring: make([]waitingAnswer, ownWaiting), perAddress: perOwn},
		unproven:  tokenBucket{rate: unprovenPerSecond, size: unprovenAtOnce},
	}
}

// Unresolved reports whether the kernel must resolve the address a by ARP before it can send a packet there.
// Unresolved may block while it asks the kernel.
func (l *Limits) Unresolved(a netip.Addr) bool { return l.askKernel(a) }

// Admit reports whether an answer may be sent to an address now. own means that the address is reserved for an armed
// machine; the packet that asked from this address may still be forged.
func (l *Limits) Admit(to netip.Addr, own bool) bool {
	return !l.Unresolved(to) || l.MayWait(to, own)
}

// MayWait reports whether one more answer to the address may wait for ARP, and counts this answer. own is as in Admit.
func (l *Limits) MayWait(to netip.Addr, own bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own {
		return l.own.add(to, time.Now())
	}
	return l.others.add(to, time.Now())
}

// TakeUnproven reports whether a first answer may be sent to a client that has not proven its address. If so, it takes
// a token.
func (l *Limits) TakeUnproven() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unproven.take(time.Now())
}

// ReturnUnproven returns the token that TakeUnproven took, after the client has proven its address.
func (l *Limits) ReturnUnproven() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unproven.tokens = min(l.unproven.tokens+1, l.unproven.size)
}

// waitingAnswers are the recent answers that had to wait for ARP. After arpGivesUp they no longer count.
type waitingAnswers struct {
	ring       []waitingAnswer
	oldest     int // index of the oldest answer in ring
	perAddress int
}

type waitingAnswer struct {
	to netip.Addr
	at time.Time
}

// add adds an answer. It returns false if too many are waiting, in total or for the same address.
func (w *waitingAnswers) add(to netip.Addr, now time.Time) bool {
	toSame := 0
	for _, x := range w.ring {
		if x.to == to && now.Sub(x.at) < arpGivesUp {
			toSame++
		}
	}
	if toSame >= w.perAddress || now.Sub(w.ring[w.oldest].at) < arpGivesUp {
		return false
	}
	w.ring[w.oldest] = waitingAnswer{to, now}
	w.oldest = (w.oldest + 1) % len(w.ring)
	return true
}

// tokenBucket permits rate events per second on average, and up to size events at once.
type tokenBucket struct {
	rate, size, tokens float64
	last               time.Time
}

func (b *tokenBucket) take(now time.Time) bool {
	b.tokens = min(b.tokens+b.rate*now.Sub(b.last).Seconds(), b.size)
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
