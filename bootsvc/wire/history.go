// Package wire has what the boot protocols share on the network: addresses, sockets and packets, the last requests of each
// client, and the records of what was seen. It decides nothing.
package wire

import (
	"bytes"
	"container/list"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Limits of what is remembered of clients (security S48). It is kept in memory only.
const (
	maxMACs   = 1024 // clients whose last requests are kept
	maxEach   = 16   // requests of each
	maxPacket = 1500 // bytes of a packet
	MaxText   = 200  // characters of any other request
)

// Entry is a request as it is remembered; History.Of makes its text.
type Entry struct {
	At             time.Time
	Where          string     // interface or protocol
	Relay          netip.Addr // if valid, it replaces where
	Packet         []byte     // of DHCP, which has no request
	Answer         Reply      // of DHCP, which has no reply
	Request, Reply string
}

// History remembers the last requests of each client.
type History struct {
	mu    sync.Mutex
	order *list.List // of *client, least recent first
	byMAC map[string]*list.Element
	// sending counts the files that are being sent to armed machines, by their MACs. The connections bound it.
	sending map[string]int
}

type client struct {
	mac  string
	last []Entry // a ring when it is full
	next int     // the oldest, then
}

// NewHistory returns a History of no client.
func NewHistory() *History {
	return &History{order: list.New(), byMAC: map[string]*list.Element{}, sending: map[string]int{}}
}

// BeginTransfer notes that a file is being sent to a machine, until end is called.
func (w *History) BeginTransfer(mac string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sending[mac]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.sending[mac]--; w.sending[mac] == 0 {
			delete(w.sending, mac)
		}
	}
}

// Add remembers a request. It copies h.packet.
func (w *History) Add(mac string, h Entry) {
	if mac == "" || len(h.Packet) > maxPacket {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	to := w.client(mac).slot()
	h.Packet = append(to.Packet[:0], h.Packet...)
	*to = h
}

// client returns the client of mac and makes it the most recent one. When maxMACs are known, it reuses the memory of the
// least recent one.
func (w *History) client(mac string) *client {
	e := w.byMAC[mac]
	switch {
	case e != nil:
	case len(w.byMAC) < maxMACs:
		e = w.order.PushBack(&client{mac: mac})
	default:
		e = w.order.Front()
		c := e.Value.(*client)
		delete(w.byMAC, c.mac)
		c.mac, c.last, c.next = mac, c.last[:0], 0
	}
	w.byMAC[mac] = e
	w.order.MoveToBack(e)
	return e.Value.(*client)
}

// slot returns where the client's next request is remembered.
func (c *client) slot() *Entry {
	n := len(c.last)
	switch {
	case n == maxEach:
		n = c.next
		c.next = (c.next + 1) % maxEach
	case n < cap(c.last):
		c.last = c.last[:n+1] // with the memory of an earlier packet
	default:
		c.last = append(c.last, Entry{})
	}
	return &c.last[n]
}

// HasAskedSince reports whether a client has asked for anything since then, or is being sent a file that it has asked for before.
// It forgets clients that were silent while many others asked.
func (w *History) HasAskedSince(mac string, since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sending[mac] > 0 {
		return true
	}
	e := w.byMAC[mac]
	return e != nil && slices.ContainsFunc(e.Value.(*client).last, func(h Entry) bool { return !h.At.Before(since) })
}

// Of returns the last requests of a client, oldest first.
func (w *History) Of(mac string) []inventory.Exchange {
	w.mu.Lock()
	var last []Entry
	if e := w.byMAC[mac]; e != nil {
		c := e.Value.(*client)
		last = slices.Concat(c.last[c.next:], c.last[:c.next])
		for n := range last {
			last[n].Packet = bytes.Clone(last[n].Packet)
		}
	}
	w.mu.Unlock()
	var out []inventory.Exchange
	for _, h := range last {
		if len(h.Packet) > 0 {
			h.Request, h.Reply = decodeDHCP(h.Packet), h.Answer.String()
		}
		if h.Relay.IsValid() {
			h.Where = "relay " + h.Relay.String()
		}
		out = append(out, inventory.Exchange{At: h.At, Where: h.Where, Request: h.Request, Answer: h.Reply})
	}
	return out
}
