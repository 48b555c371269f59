// Package wire contains the code for network packets that all boot protocols use: addresses, sockets, the last
// requests of each client, and the recorder of what was seen. Whether a machine gets an answer is decided elsewhere.
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

// Limits of the history of clients (security S48). The history is kept only in memory.
const (
	maxMACs   = 1024 // clients with a history
	maxEach   = 16   // requests per client
	maxPacket = 1500 // bytes of a DHCP packet; a longer one is not kept
	MaxText   = 200  // characters of a request that is not DHCP
)

// Entry is a request in the history. History.Of turns it into text.
type Entry struct {
	At             time.Time
	Where          string     // interface or protocol
	Relay          netip.Addr // the relay's address, shown instead of Where if it is valid
	Packet         []byte     // for DHCP, instead of Request
	Answer         Reply      // for DHCP, instead of Reply
	Request, Reply string
}

// History keeps the last requests of each client.
type History struct {
	mu    sync.Mutex
	order *list.List // of *client, least recently active first
	byMAC map[string]*list.Element
	// sending counts, by MAC, the running file transfers to armed machines. The number of connections bounds the size
	// of this map.
	sending map[string]int
}

type client struct {
	mac  string
	last []Entry // a ring once it has maxEach entries
	next int     // index of the oldest entry of a full ring
}

// NewHistory returns an empty History.
func NewHistory() *History {
	return &History{order: list.New(), byMAC: map[string]*list.Element{}, sending: map[string]int{}}
}

// BeginTransfer records that a file is being sent to a machine until end is called.
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

// Add adds a request to the history of mac. It copies h.Packet. It ignores an empty mac, and packets of more than
// maxPacket bytes.
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

// client returns the history of mac and makes it the most recently active one. If there are already maxMACs, it reuses
// the memory of the least recently active one.
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

// slot returns the entry for the client's next request.
func (c *client) slot() *Entry {
	n := len(c.last)
	switch {
	case n == maxEach:
		n = c.next
		c.next = (c.next + 1) % maxEach
	case n < cap(c.last):
		c.last = c.last[:n+1] // reuse the memory of an earlier packet
	default:
		c.last = append(c.last, Entry{})
	}
	return &c.last[n]
}

// HasAskedSince reports whether a client has sent a request since the given time, or is still being sent a file. It
// can return false for a client whose history was dropped because maxMACs other clients have sent requests since.
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
