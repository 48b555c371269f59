package neighbours

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	// A running server looks for other DHCP servers after rivalFirst, and then every rivalEvery.
	rivalFirst, rivalEvery = time.Minute, 15 * time.Minute
	// rivalFor is how long a server is remembered after it was last seen.
	rivalFor = time.Hour
	// maxRivals limits how many servers are remembered. Together with rivalFor it limits the alarms, because any host can
	// pretend to be many servers (security S33, S48).
	maxRivals = 8
)

// Rivals holds the other DHCP servers that were seen on networks in mode reservation.
type Rivals struct {
	checker    *Checker
	interfaces []string // in mode reservation
	events     eventWriter
	guard      *guard.Guard
	log        *slog.Logger
	now        func() time.Time
	sighted    chan inventory.Rival // servers that machines have chosen; buffered, so that the handling of packets does not wait
	mu         sync.Mutex
	known      []inventory.Rival
}

// eventWriter stores events, here alarms.
type eventWriter interface {
	AppendEvents(ctx context.Context, events []inventory.Event) error
}

// NewRivals returns an empty Rivals. c is the checker of this server, and interfaces are those on which this server
// assigns the addresses.
func NewRivals(c *Checker, interfaces []string, w eventWriter, log *slog.Logger, now func() time.Time) *Rivals {
	return &Rivals{
		checker: c, interfaces: interfaces, events: w, guard: c.guard, log: log, now: now,
		sighted: make(chan inventory.Rival, maxRivals),
	}
}

// Sight reports that a machine has chosen another server. It does not block.
func (r *Rivals) Sight(x inventory.Rival) {
	select {
	case r.sighted <- x:
	default: // too many at once: drop x, because the machine's next REQUEST names the server again
	}
}

// add stores x and reports whether its server was not known yet. If the server is known, add updates its entry. If
// maxRivals other servers are known, add drops x and returns false.
func (r *Rivals) add(x inventory.Rival) (isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = slices.DeleteFunc(r.known, func(old inventory.Rival) bool { return x.Last.Sub(old.Last) >= rivalFor })
	for n, old := range r.known {
		if old.Server == x.Server {
			x.First, x.Machine = old.First, cmp.Or(x.Machine, old.Machine)
			r.known[n] = x
			return false
		}
	}
	if len(r.known) >= maxRivals {
		return false
	}
	r.known = append(r.known, x)
	return true
}

// Recent returns the other DHCP servers that were seen within rivalFor, oldest first.
func (r *Rivals) Recent() []inventory.Rival {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.known)
	return slices.DeleteFunc(out, func(x inventory.Rival) bool { return r.now().Sub(x.Last) >= rivalFor })
}

// Watch raises an alarm for each other DHCP server that a machine chooses or that answers a DISCOVER, until ctx ends.
// It sends DISCOVERs only on interfaces in mode reservation: in the other modes, another server is expected.
func (r *Rivals) Watch(ctx context.Context) error {
	timer := time.NewTimer(rivalFirst)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case x := <-r.sighted:
			r.raise(ctx, x)
		case <-timer.C:
			for _, name := range r.interfaces {
				r.Probe(ctx, name)
			}
			timer.Reset(rivalEvery)
		}
	}
}

// Probe broadcasts a DISCOVER on an interface and raises an alarm for each other server that answers.
func (r *Rivals) Probe(ctx context.Context, iface string) {
	defer r.guard.Recover("a probe for other DHCP servers")
	found, err := r.checker.Ask(ctx, iface)
	if err != nil && ctx.Err() == nil {
		r.log.Info("looking for other DHCP servers", "interface", iface, "error", err)
		return
	}
	for _, server := range found.others {
		r.raise(ctx, inventory.Rival{Server: server, Where: iface})
	}
	for _, server := range found.twins {
		r.raise(ctx, inventory.Rival{Server: server, Where: iface, Ingot: true})
	}
}

// raise stores a server. If the server was not known yet, raise also writes a log record and an event.
func (r *Rivals) raise(ctx context.Context, x inventory.Rival) {
	defer r.guard.Recover("another DHCP server")
	if x.Server == r.checker.self || x.Server == (netip.Addr{}) {
		return
	}
	x.First, x.Last = r.now(), r.now()
	if !r.add(x) {
		return
	}
	text := x.String() + ": machines may get an address from that server, but no boot file; " +
		"stop it, exclude the machines there, or set netboot.dhcp"
	r.log.Error("another DHCP server answers", "server", x.Server.String(), "where", x.Where, "machine", x.Machine, "ingot", x.Ingot)
	err := r.events.AppendEvents(ctx, []inventory.Event{{
		Machine: x.Machine, Kind: inventory.EventOperator, Key: rand.Text(), By: "ingot", At: x.First, Message: text,
	}})
	if err != nil {
		r.log.Warn("recording another DHCP server", "error", err)
	}
}
