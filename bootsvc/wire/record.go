package wire

import (
	"container/list"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// Limits on what unauthenticated packets can make the server store (security S46, S48).
const (
	maxPendingSyslog = 4096                   // syslog lines between two writes
	maxSyslogEach    = 200                    // syslog lines of one machine between two writes
	maxPendingEvents = 4096                   // distinct events between two writes
	maxSeenPerPort   = 64                     // distinct unknown MACs per relay or interface between two writes
	maxSeenRelayed   = 256                    // distinct unknown MACs of all relays together, because relay addresses can be forged
	flushEvery       = 500 * time.Millisecond // shortest time between two writes of events or syslog lines
	seenEvery        = 5 * time.Second        // the same for unknown MACs
	flushSoon        = 20 * time.Millisecond  // time from the first record to the write
)

// Journal stores what was seen on the network, in batches. The handling of packets does not wait for it.
type Journal interface {
	AppendEvents(ctx context.Context, events []inventory.Event) error
	PutSeen(ctx context.Context, seen []inventory.Seen) error
	PutSyslog(ctx context.Context, lines []inventory.SyslogLine) error
}

// Recorder takes records from packet handlers without blocking them, merges equal events and writes all in batches.
type Recorder struct {
	journal Journal
	guard   *guard.Guard
	log     *slog.Logger
	now     func() time.Time
	// A value in one of these channels tells Run that there are records of this kind to write.
	wakeEvents, wakeSeen, wakeSyslog chan struct{}

	mu     sync.Mutex
	events pendingEvents
	seen   *pendingSeen
	lines  syslogQueue

	droppedEvents, droppedSeen, droppedSyslog atomic.Int64
}

type eventKey struct {
	machine, run string
	epoch        int64
	boot         int
	kind         string
}

// pendingEvents are events that are not written yet, in the order in which they first occurred.
type pendingEvents struct {
	list  []inventory.Event
	index map[eventKey]int // indexes of list
}

// add appends e, or merges it with an equal event. It returns false if there are already maxPendingEvents.
func (p *pendingEvents) add(e inventory.Event) bool {
	k := eventKey{e.Machine, e.Run, e.Epoch, e.Boot, e.Kind}
	if i, ok := p.index[k]; ok {
		p.list[i].Count += e.Count
		p.list[i].Message, p.list[i].Detail = e.Message, e.Detail
		return true
	}
	if len(p.list) >= maxPendingEvents {
		return false
	}
	if p.index == nil {
		p.index = map[eventKey]int{}
	}
	p.index[k] = len(p.list)
	p.list = append(p.list, e)
	return true
}

// pendingSeen are unknown MACs that are not written yet.
type pendingSeen struct {
	order   *list.List // of seenMAC, least recently seen first
	byMAC   map[string]*list.Element
	ports   map[string]int // number of MACs per port
	relayed int            // number of MACs that were seen through relays
}

type seenMAC struct {
	inventory.Seen
	port string // the relay's address, or the interface
}

func newPendingSeen() *pendingSeen {
	return &pendingSeen{order: list.New(), byMAC: map[string]*list.Element{}, ports: map[string]int{}}
}

// add adds m, merged with an earlier entry for the same MAC. If the port of m now has too many MACs, add drops the
// least recently seen MAC of this port. If all relays together have too many, it drops the least recently seen MAC of
// the relay with the most MACs. It returns how many packets of the dropped MAC were counted.
func (p *pendingSeen) add(m seenMAC) (dropped int64) {
	if known := p.byMAC[m.MAC]; known != nil {
		old := p.remove(known)
		m.First, m.Count = old.First, m.Count+old.Count
	}
	p.byMAC[m.MAC] = p.order.PushBack(m)
	p.ports[m.port]++
	if m.Giaddr != "" {
		p.relayed++
	}
	port := m.port
	switch {
	case p.ports[port] > maxSeenPerPort:
	case m.Giaddr != "" && p.relayed > maxSeenRelayed:
		for e := p.order.Front(); e != nil; e = e.Next() { // of relays with equally many MACs, take the one that comes first
			if x := e.Value.(seenMAC); x.Giaddr != "" && (port == m.port || p.ports[x.port] > p.ports[port]) {
				port = x.port
			}
		}
	default:
		return 0
	}
	for e := p.order.Front(); e != nil; e = e.Next() {
		if e.Value.(seenMAC).port == port {
			return p.remove(e).Count
		}
	}
	return 0
}

func (p *pendingSeen) remove(e *list.Element) seenMAC {
	m := p.order.Remove(e).(seenMAC)
	delete(p.byMAC, m.MAC)
	if p.ports[m.port]--; p.ports[m.port] == 0 {
		delete(p.ports, m.port)
	}
	if m.Giaddr != "" {
		p.relayed--
	}
	return m
}

// NewRecorder returns a Recorder that writes to j. Run does the writing.
func NewRecorder(j Journal, g *guard.Guard, log *slog.Logger, now func() time.Time) *Recorder {
	return &Recorder{
		journal: j, guard: g, log: log, now: now, wakeEvents: make(chan struct{}, 1), wakeSeen: make(chan struct{}, 1),
		wakeSyslog: make(chan struct{}, 1),
		seen:       newPendingSeen(),
	}
}

// Transfer records e, the event of a completed file transfer, with the duration of the transfer. began is its start time.
func (r *Recorder) Transfer(e inventory.Event, began time.Time) {
	detail, err := json.Marshal(inventory.Transfer{Seconds: r.now().Sub(began).Seconds()})
	if err == nil { // encoding numbers does not fail
		e.Detail = detail
	}
	r.Event(e)
}

// Event records an event that happens now. It merges and counts equal events.
func (r *Recorder) Event(e inventory.Event) {
	if e.Machine == "" {
		return // no events are recorded for an unknown machine during its discovery
	}
	e.At, e.Count = r.now(), 1
	r.mu.Lock()
	ok := r.events.add(e)
	r.mu.Unlock()
	if !ok {
		r.droppedEvents.Add(1)
		return
	}
	signal(r.wakeEvents)
}

// Unknown records a MAC that belongs to no machine. port is where it was seen: the relay's address, or the interface.
// If there are too many MACs, the least recently seen ones are dropped.
func (r *Recorder) Unknown(mac, port, giaddr, class string) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.droppedSeen.Add(r.seen.add(seenMAC{inventory.Seen{
		MAC: mac, First: now, Last: now, Count: 1, Giaddr: giaddr,
		Class: ShortText(class),
	}, port}))
	signal(r.wakeSeen)
}

// Dropped counts the records that were dropped because there were too many.
type Dropped struct {
	Events, Seen, Syslog int64
}

// Dropped returns how many records were dropped since the start.
func (r *Recorder) Dropped() Dropped {
	return Dropped{r.droppedEvents.Load(), r.droppedSeen.Load(), r.droppedSyslog.Load()}
}

func signal(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// Run writes records until ctx ends, then writes the remaining ones and returns nil.
func (r *Recorder) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { r.every(ctx, flushEvery, r.wakeEvents, r.flushEvents); return nil })
	g.Go(func() error { r.every(ctx, seenEvery, r.wakeSeen, r.flushSeen); return nil })
	g.Go(func() error { r.every(ctx, flushEvery, r.wakeSyslog, r.flushSyslog); return nil })
	return g.Wait()
}

// every calls flush shortly after a signal on wake, at most once per d. When ctx ends, it flushes once more and
// returns.
func (r *Recorder) every(ctx context.Context, d time.Duration, wake <-chan struct{}, flush func(context.Context)) {
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			flush(last)
			return
		case <-wake:
		}
		if clock.Sleep(ctx, flushSoon) != nil {
			continue
		}
		flush(ctx)
		_ = clock.Sleep(ctx, d)
	}
}

// Flush writes all pending records now.
func (r *Recorder) Flush(ctx context.Context) {
	r.flushEvents(ctx)
	r.flushSeen(ctx)
	r.flushSyslog(ctx)
}

// flushEvents writes the pending events in one batch. If that fails, it puts them back in front of newer events, as
// far as maxPendingEvents permits.
func (r *Recorder) flushEvents(ctx context.Context) {
	defer r.guard.Recover("events of packets")
	r.mu.Lock()
	batch := r.events
	r.events = pendingEvents{}
	r.mu.Unlock()
	if len(batch.list) == 0 {
		return
	}
	err := r.journal.AppendEvents(ctx, batch.list)
	if err == nil {
		return
	}
	r.log.Warn("cannot write boot events; they are kept for the next attempt", "error", err, "events", len(batch.list))
	r.mu.Lock()
	defer r.mu.Unlock()
	newer := r.events.list
	r.events = batch
	for _, e := range newer {
		if !r.events.add(e) {
			r.droppedEvents.Add(e.Count)
		}
	}
	signal(r.wakeEvents)
}

// flushSeen writes the pending unknown MACs in one batch. If that fails, it puts them back.
func (r *Recorder) flushSeen(ctx context.Context) {
	defer r.guard.Recover("unknown MACs")
	r.mu.Lock()
	seen := r.seen
	r.seen = newPendingSeen()
	r.mu.Unlock()
	if seen.order.Len() == 0 {
		return
	}
	var batch []inventory.Seen
	for e := seen.order.Front(); e != nil; e = e.Next() {
		batch = append(batch, e.Value.(seenMAC).Seen)
	}
	err := r.journal.PutSeen(ctx, batch)
	if err == nil {
		return
	}
	r.log.Warn("cannot write unknown MACs; they are kept for the next attempt", "error", err, "macs", len(batch))
	r.mu.Lock()
	defer r.mu.Unlock()
	// Add the MACs that were seen during the write: they are more recent.
	since := r.seen
	r.seen = seen
	for e := since.order.Front(); e != nil; e = e.Next() {
		r.droppedSeen.Add(r.seen.add(e.Value.(seenMAC)))
	}
	signal(r.wakeSeen)
}

// syslogQueue holds lines that are not written yet. Recorder.mu guards it.
type syslogQueue struct {
	lines []inventory.SyslogLine
	of    map[string]int // number of lines per machine
}

// syslog queues a line of a machine. If there are too many lines, it drops and counts the line.
func (r *Recorder) syslog(x inventory.SyslogLine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := &r.lines
	if len(q.lines) >= maxPendingSyslog || q.of[x.Machine] >= maxSyslogEach {
		r.droppedSyslog.Add(1)
		return
	}
	if q.of == nil {
		q.of = map[string]int{}
	}
	q.of[x.Machine]++
	q.lines = append(q.lines, x)
	signal(r.wakeSyslog)
}

// flushSyslog writes the queued lines. If that fails, for example because the disk is full, the lines are lost:
// everything important is also recorded as an event.
func (r *Recorder) flushSyslog(ctx context.Context) {
	defer r.guard.Recover("lines of syslog")
	r.mu.Lock()
	lines := r.lines.lines
	r.lines.lines, r.lines.of = nil, nil
	r.mu.Unlock()
	if len(lines) == 0 {
		return
	}
	if err := r.journal.PutSyslog(ctx, lines); err != nil {
		r.droppedSyslog.Add(int64(len(lines)))
		r.log.Warn("cannot write syslog messages of machines; the messages are lost", "error", err, "lines", len(lines))
	}
}
