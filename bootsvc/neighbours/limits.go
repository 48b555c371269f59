package neighbours

import (
	"net/netip"
	"sync"
	"time"
)

// What is sent to an address of a network of this host waits in the kernel until the address answers ARP, or for arpGivesUp. It is
// charged to the socket that has sent it, and the address takes a place in the kernel's neighbour table (net.ipv4.neigh.default.
// gc_thresh3, by default 1,024). Sources and relays are easily forged, so what waits is bounded: else a few hundred forged packets
// a second would fill both (security S30, S34).
const (
	arpGivesUp = 4 * time.Second // mcast_solicit times retrans_time_ms, and a second for the clock of the neighbour table

	// Answers that may wait for ARP, in all and for one address. Those to the address that is reserved for an armed machine
	// have room of their own. The first of them resolves the address of a machine that is there.
	othersWaiting = 64
	perOther      = 4
	ownWaiting    = 128
	perOwn        = 16

	// First answers by TFTP to clients that have not sent an ACK, to any address but an armed machine's own.
	unprovenPerSecond = 1000
	unprovenAtOnce    = 2000
)

// Limits bounds the answers to addresses that may be forged.
type Limits struct {
	askKernel func(netip.Addr) bool // the function of Unresolved

	mu          sync.Mutex
	others, own waitingAnswers
	unproven    tokenBucket
}

// NewLimits returns limits for answers to addresses for which unresolved returns true.
func NewLimits(unresolved func(netip.Addr) bool) *Limits {
	return &Limits{
		askKernel: unresolved,
		others:    waitingAnswers{ring: make([]waitingAnswer, othersWaiting), perAddress: perOther},
		own:       waitingAnswers{ring: make([]waitingAnswer, ownWaiting), perAddress: perOwn},
		unproven:  tokenBucket{rate: unprovenPerSecond, size: unprovenAtOnce},
	}
}

// Unresolved reports whether the kernel has to ask for an address by ARP before it can send. It may wait for the kernel.
func (l *Limits) Unresolved(a netip.Addr) bool { return l.askKernel(a) }

// Admit reports whether an answer may be sent to an address now. own means that the address is reserved for an armed machine; it
// can be forged as well.
func (l *Limits) Admit(to netip.Addr, own bool) bool {
	return !l.Unresolved(to) || l.MayWait(to, own)
}

// MayWait reports whether one more answer may wait for ARP.
func (l *Limits) MayWait(to netip.Addr, own bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own {
		return l.own.add(to, time.Now())
	}
	return l.others.add(to, time.Now())
}

// TakeUnproven reports whether a first answer may be sent to a client that has not proven its address.
func (l *Limits) TakeUnproven() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unproven.take(time.Now())
}

// ReturnUnproven says that a client of TakeUnproven has proven its address.
func (l *Limits) ReturnUnproven() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unproven.tokens = min(l.unproven.tokens+1, l.unproven.size)
}

// waitingAnswers are the answers of the last arpGivesUp that had to wait for ARP.
type waitingAnswers struct {
	ring       []waitingAnswer
	oldest     int // index in ring
	perAddress int
}

type waitingAnswer struct {
	to netip.Addr
	at time.Time
}

// add adds an answer, or returns false if there is no room.
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

// tokenBucket permits rate events a second, and size at once.
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
