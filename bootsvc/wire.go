package bootsvc

import (
	"bytes"
	"cmp"
	"container/list"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/inventory"
)

// Limits of what is remembered of clients (security S48). It is kept in memory only.
const (
	maxWireMACs   = 1024 // clients whose last requests are kept
	maxWireEach   = 16   // requests of each
	maxWirePacket = 1500 // bytes of a packet
	maxWireText   = 200  // characters of any other request
	maxLeases     = 1 << 17
)

// Heard is a request of a client and its answer, as Explanation shows them.
type Heard struct {
	At      time.Time `json:"at"`
	Where   string    `json:"where"` // interface, relay or protocol
	Request string    `json:"request"`
	Answer  string    `json:"answer"`
}

// heard is a request as it is remembered; wire.of makes its text.
type heard struct {
	at             time.Time
	where          string     // interface or protocol
	relay          netip.Addr // if valid, it replaces where
	packet         []byte     // of DHCP, which has no request
	answer         dhcpAnswer // of DHCP, which has no reply
	request, reply string
}

// dhcpAnswer is what is remembered of a reply.
type dhcpAnswer struct {
	route   route
	kind    dhcpv4.MessageType
	address netip.Addr
	file    string
}

// wire remembers the last requests of each client.
type wire struct {
	mu    sync.Mutex
	order *list.List // of *wireClient, least recent first
	byMAC map[string]*list.Element
	// sending counts the files that are being sent to armed machines, by their MACs. The connections bound it.
	sending map[string]int
}

type wireClient struct {
	mac  string
	last []heard // a ring when it is full
	next int     // the oldest, then
}

func newWire() *wire {
	return &wire{order: list.New(), byMAC: map[string]*list.Element{}, sending: map[string]int{}}
}

// beginTransfer notes that a file is being sent to the machine of d, until end is called.
func (w *wire) beginTransfer(d Decision) (end func()) {
	mac := d.Interface.MAC
	if mac == "" || !d.Armed() {
		return func() {}
	}
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

// add remembers a request. It copies h.packet.
func (w *wire) add(mac string, h heard) {
	if mac == "" || len(h.packet) > maxWirePacket {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	to := w.client(mac).slot()
	h.packet = append(to.packet[:0], h.packet...)
	*to = h
}

// client returns the client of mac and makes it the most recent one. When maxWireMACs are known, it reuses the memory of the
// least recent one.
func (w *wire) client(mac string) *wireClient {
	e := w.byMAC[mac]
	switch {
	case e != nil:
	case len(w.byMAC) < maxWireMACs:
		e = w.order.PushBack(&wireClient{mac: mac})
	default:
		e = w.order.Front()
		c := e.Value.(*wireClient)
		delete(w.byMAC, c.mac)
		c.mac, c.last, c.next = mac, c.last[:0], 0
	}
	w.byMAC[mac] = e
	w.order.MoveToBack(e)
	return e.Value.(*wireClient)
}

// slot returns where the client's next request is remembered.
func (c *wireClient) slot() *heard {
	n := len(c.last)
	switch {
	case n == maxWireEach:
		n = c.next
		c.next = (c.next + 1) % maxWireEach
	case n < cap(c.last):
		c.last = c.last[:n+1] // with the memory of an earlier packet
	default:
		c.last = append(c.last, heard{})
	}
	return &c.last[n]
}

// Heard reports whether a client has asked for anything since then, or is being sent a file that it has asked for before.
// It forgets clients that were silent while many others asked.
func (s *Server) Heard(mac string, since time.Time) bool {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	if s.wire.sending[mac] > 0 {
		return true
	}
	e := s.wire.byMAC[mac]
	return e != nil && slices.ContainsFunc(e.Value.(*wireClient).last, func(h heard) bool { return !h.at.Before(since) })
}

// of returns the last requests of a client, oldest first.
func (w *wire) of(mac string) []Heard {
	w.mu.Lock()
	var last []heard
	if e := w.byMAC[mac]; e != nil {
		c := e.Value.(*wireClient)
		last = slices.Concat(c.last[c.next:], c.last[:c.next])
		for n := range last {
			last[n].packet = bytes.Clone(last[n].packet)
		}
	}
	w.mu.Unlock()
	var out []Heard
	for _, h := range last {
		if len(h.packet) > 0 {
			h.request, h.reply = decodeDHCP(h.packet), h.answer.String()
		}
		if h.relay.IsValid() {
			h.where = "relay " + h.relay.String()
		}
		out = append(out, Heard{At: h.at, Where: h.where, Request: h.request, Answer: h.reply})
	}
	return out
}

// decodeDHCP returns the text of a DHCP packet with its options by code. Text of the client is
// quoted and shortened.
func decodeDHCP(payload []byte) string {
	p, err := dhcpv4.FromBytes(payload)
	if err != nil {
		return "malformed packet"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s xid=%s secs=%d", p.MessageType(), p.TransactionID, p.NumSeconds)
	for _, a := range []struct {
		name string
		addr netip.Addr
	}{{"ciaddr", addr4(p.ClientIPAddr)}, {"giaddr", addr4(p.GatewayIPAddr)}} {
		if a.addr.IsValid() {
			fmt.Fprintf(&b, " %s=%s", a.name, a.addr)
		}
	}
	if p.IsBroadcast() {
		b.WriteString(" broadcast")
	}
	for _, code := range sortedOptions(p.Options) {
		if code != uint8(dhcpv4.OptionDHCPMessageType.Code()) {
			b.WriteString(" " + decodeOption(code, p.Options[code]))
		}
	}
	return b.String()
}

func sortedOptions(o dhcpv4.Options) []uint8 {
	codes := make([]uint8, 0, len(o))
	for code := range o {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	return codes
}

// decodeOption returns an option as code=value: addresses, numbers and text where the code has
// them, bytes otherwise (RFC 2132, 4578, 3046).
func decodeOption(code uint8, b []byte) string {
	const most = 64
	switch c := dhcpv4.GenericOptionCode(code); {
	case (c == 50 || c == 54) && len(b) == 4:
		return fmt.Sprintf("%d=%s", code, addr4(b))
	case c == 12 || c == 60 || c == 77:
		return fmt.Sprintf("%d=%q", code, clean(string(b[:min(len(b), most)])))
	case c == 93 && len(b) >= 2 && len(b) <= most:
		names := make([]string, 0, len(b)/2)
		for _, arch := range architecturesOf(b) {
			names = append(names, iana.Arch(arch).String())
		}
		return fmt.Sprintf("%d=%s", code, strings.Join(names, ","))
	case c == 57 && len(b) == 2:
		return fmt.Sprintf("%d=%d", code, int(b[0])<<8|int(b[1]))
	case c == 55:
		return fmt.Sprintf("%d=%d", code, b[:min(len(b), most)])
	}
	if len(b) > most {
		return fmt.Sprintf("%d=%x…", code, b[:most])
	}
	return fmt.Sprintf("%d=%x", code, b)
}

// answerOf returns what is remembered of r.
func answerOf(r reply) dhcpAnswer {
	if r.route == routeNone {
		return dhcpAnswer{}
	}
	return dhcpAnswer{
		r.route, r.packet.MessageType(), addr4(r.packet.YourIPAddr), r.packet.BootFileNameOption(),
	}
}

func (a dhcpAnswer) String() string {
	if a.route == routeNone {
		return "not answered"
	}
	text := a.kind.String() + " by " + a.route.String()
	if a.address.IsValid() {
		text += ", address " + a.address.String()
	}
	if a.file != "" {
		text += ", boot file " + a.file
	}
	return text
}

// A lease keeps one copy of Where for all leases that have the same: each garbage collection visits them.
type lease struct {
	inventory.DHCPLease
	where unique.Handle[string]
}

// leases are the leases since the start of the server, by MAC.
type leases struct {
	mu     sync.Mutex
	byMAC  map[string]lease
	probed map[string]time.Time // when a DECLINE of a MAC has last caused a probe
}

// put stores a lease. Only machines of the inventory have leases, so their number is bounded. Machines that
// were removed from it stay until maxLeases: then a further one is not stored.
func (l *leases) put(x inventory.DHCPLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byMAC == nil {
		l.byMAC = map[string]lease{}
	}
	if _, known := l.byMAC[x.MAC]; known || len(l.byMAC) < maxLeases {
		where := unique.Make(x.Where)
		x.Where = where.Value()
		l.byMAC[x.MAC] = lease{x, where}
	}
}

func (l *leases) get(mac string) (inventory.DHCPLease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x, ok := l.byMAC[mac]
	return x.DHCPLease, ok
}

// Leases returns the leases of reservations since the start of the server, and those of discovery that have not
// ended, by address.
func (s *Server) Leases() []inventory.DHCPLease {
	s.leases.mu.Lock()
	out := make([]inventory.DHCPLease, 0, len(s.leases.byMAC))
	for _, x := range s.leases.byMAC {
		out = append(out, x.DHCPLease)
	}
	s.leases.mu.Unlock()
	for name, g := range s.guests {
		out = append(out, g.leases(name, s.now())...)
	}
	slices.SortFunc(out, func(a, b inventory.DHCPLease) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.MAC, b.MAC))
	})
	return out
}

// noteLease stores the result of an exchange with a machine that has a reservation. Guests have none:
// their MACs are not bounded by the inventory (security S48).
func (s *Server) noteLease(e *exchange, r reply) {
	if e.decision.Verdict == Discover {
		return
	}
	x := inventory.DHCPLease{
		MAC: e.decision.Interface.MAC, Machine: e.machine.Name, Address: e.decision.Interface.Address, At: s.now(), Where: e.where(),
	}
	switch kind := e.packet.MessageType(); {
	case kind == dhcpv4.MessageTypeDecline:
		if _, known := s.conflict(x.MAC, x.Address); known || !s.declinesReservation(e) {
			return
		}
		x.State = inventory.LeaseDeclined
		s.leases.put(x)
		s.probeDeclined(x)
		return
	case kind == dhcpv4.MessageTypeRelease && !s.isFor(e.packet):
		return
	case kind == dhcpv4.MessageTypeRelease:
		x.State = inventory.LeaseReleased
	case r.route == routeNone:
		return
	case r.packet.MessageType() == dhcpv4.MessageTypeOffer:
		if before, ok := s.leases.get(x.MAC); ok && before.State == inventory.LeaseBound && before.Address == x.Address {
			return // it may choose another server, and keeps what it has
		}
		x.State = inventory.LeaseOffered
	case r.packet.MessageType() == dhcpv4.MessageTypeAck && kind == dhcpv4.MessageTypeRequest:
		x.State = inventory.LeaseBound
		x.Expires = x.At.Add(r.packet.IPAddressLeaseTime(0))
	default:
		return
	}
	s.leases.put(x)
}

// where returns the relay or the interface that e came through.
func (e *exchange) where() string {
	if e.relay.IsValid() {
		return "relay " + e.relay.String()
	}
	return e.in.name
}
