package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// Pump sends events to the runs that wait for them.
//
// Nothing else sends events. The events of one run are sent in their order. Pump uses the gRPC request with RunID and
// RequestId: because of RunID, a late event does not reach the next run with the same workflow id; because of
// RequestId, an event that is sent twice counts once. An event is marked as sent only after Temporal has accepted it or
// has refused it permanently. A run reads refused events from the store when one of its deadlines passes.
type Pump struct {
	stores    Stores
	temporal  Temporal
	namespace string
	converter converter.DataConverter // used by the Temporal clients, too
	guard     *guard.Guard            // counts panics: packets and agents' reports may cause them
	log       *slog.Logger

	sending sync.WaitGroup // running calls of send
	slots   chan struct{}  // holds a value for each run that is being signalled
	freed   chan struct{}  // receives a value when a slot becomes free or a run is no longer busy

	mu       sync.Mutex
	queue    map[string][]inventory.Event // run → its events that were read from the store, but not taken by takeDue yet, in order
	read     int64                        // sequence number of the last event that was put into queue
	waits    map[string]retry             // run → when to try again
	busy     map[string]bool              // runs whose events are being signalled or marked as sent
	finished []batch                      // batches whose events are not marked as sent yet
	marking  bool                         // a goroutine is marking finished batches
	problem  error                        // errors since the last takeProblem
	refused  atomic.Int64
}

// A batch holds events of one run: those that one call of send signals.
type batch struct {
	run  string
	sent []inventory.Event // accepted, refused permanently or no longer needed
	left []inventory.Event // must be sent later
}

type retry struct {
	at    time.Time
	step  time.Duration
	tries int // number of errors of Temporal that may be temporary
}

// Refused returns how many events Temporal has refused permanently since the server started.
func (p *Pump) Refused() int64 { return p.refused.Load() }

const (
	pumpEvery  = 5 * time.Second
	pumpBatch  = 256
	pumpMax    = 1 << 14 // events in memory; the others wait in the store
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
	maxTries   = 100 // after so many tries (almost an hour), an event counts as refused permanently
)

// Run sends events until ctx is done: at the start, whenever the store has changed, and every five seconds. While
// Temporal is unavailable, events wait in the store.
func (p *Pump) Run(ctx context.Context) error {
	changed, cancel := p.stores.Changes.Subscribe()
	defer cancel()
	defer p.sending.Wait()
	down := false
	for {
		wait, wake, freed := time.Second, (<-chan struct{})(nil), (<-chan struct{})(nil)
		if tc, ok := p.temporal(); ok {
			pause, err := p.begin(ctx, tc)
			if down {
				p.sending.Wait() // these calls show whether Temporal is available again
			}
			err = errors.Join(err, p.takeProblem())
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil && !down:
				p.log.Warn("cannot signal events to their runs; the events wait in the store", "error", err)
			case err == nil && down:
				p.log.Info("events are signalled to their runs again")
			}
			// Writes to the store wake Run only while Temporal is available and a slot is free.
			if down = err != nil; !down {
				wait, freed = pause, p.freed
				if p.hasSlot() {
					wake = changed
				}
			}
		}

		t := time.NewTimer(wait)
		select {
		case <-wake:
		case <-freed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		t.Stop()
	}
}

// begin starts a goroutine for each run whose events may be sent now, while there are free slots. It returns how long
// Run may wait at most before it calls begin again.
func (p *Pump) begin(ctx context.Context, tc client.Client) (time.Duration, error) {
	if !p.hasSlot() {
		return pumpEvery, nil // freed wakes Run
	}
	if err := p.readQueue(ctx); err != nil {
		return 0, err
	}
	for p.hasSlot() && !p.hasProblem() {
		run, es, next := p.takeDue(time.Now())
		if run == "" {
			return next, nil
		}
		p.slots <- struct{}{}
		p.sending.Go(func() { p.send(ctx, tc, run, es) })
	}
	return pumpEvery, nil // Run is woken by freed, or reads the problem
}

// hasSlot reports whether a slot is free for another run. Only begin takes slots.
func (p *Pump) hasSlot() bool { return len(p.slots) < cap(p.slots) }

// readQueue moves the events that were stored since the last call into queue, until about pumpMax events are in memory.
// Only begin calls it.
func (p *Pump) readQueue(ctx context.Context) error {
	for {
		p.mu.Lock()
		held := 0
		for _, es := range p.queue {
			held += len(es)
		}
		after := p.read
		p.mu.Unlock()
		if held >= pumpMax {
			return nil
		}
		es, err := p.stores.Events.Unsignalled(ctx, after, pumpBatch)
		if err != nil {
			return fmt.Errorf("reading events to signal: %w", err)
		}
		p.mu.Lock()
		for _, e := range es {
			p.queue[e.Run] = append(p.queue[e.Run], e)
			p.read = e.Seq
		}
		p.mu.Unlock()
		if len(es) < pumpBatch {
			return nil
		}
	}
}

// takeDue removes the events of the next run from queue, marks the run as busy, and returns the run and its events.
// If no run is due, run is "" and next is the time until one may be due. Runs with the result of an action go first,
// so that work that has begun ends before other machines boot; then the run with the oldest event goes first.
func (p *Pump) takeDue(now time.Time) (run string, due []inventory.Event, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = pumpEvery
	reported := false // due contains the result of an action
	for r, es := range p.queue {
		if p.busy[r] {
			continue
		}
		if w, ok := p.waits[r]; ok && now.Before(w.at) {
			next = min(next, w.at.Sub(now))
			continue
		}
		reports := hasReport(es)
		if run == "" || reports && !reported || reports == reported && es[0].Seq < due[0].Seq {
			run, due, reported = r, es, reports
		}
	}
	if run != "" {
		p.busy[run] = true
		delete(p.queue, run)
	}
	return run, due, next
}

func hasReport(es []inventory.Event) bool {
	return slices.ContainsFunc(es, func(e inventory.Event) bool { return e.Kind == inventory.EventActionDone })
}

// send signals the events of a run, and calls mark, which marks them as sent. The run is busy until they are marked.
func (p *Pump) send(ctx context.Context, tc client.Client, run string, es []inventory.Event) {
	b := batch{run: run, left: es}
	defer func() {
		if v := recover(); v != nil {
			p.guard.Caught("the events of a run", v)
			p.delay(run, 1) // otherwise takeDue would return this run again at once
		}
		<-p.slots
		p.wake()
		p.mark(ctx, b)
	}()
	if p.hasProblem() {
		return // Temporal is unavailable: do not wait for another time-out
	}
	if err := p.sendRun(ctx, tc, &b); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.problem = errors.Join(p.problem, err)
	}
}

// mark marks the sent events of a batch in the store, and puts the other events back into queue. While one goroutine
// does this, others only add their batches, which the first goroutine handles, too.
func (p *Pump) mark(ctx context.Context, b batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished = append(p.finished, b)
	if p.marking {
		return
	}
	p.marking = true
	for len(p.finished) > 0 {
		all := p.finished
		p.finished = nil
		p.mu.Unlock()
		err := p.markSent(ctx, all)
		p.mu.Lock()
		p.problem = errors.Join(p.problem, err)
		for _, b := range all {
			delete(p.busy, b.run)
			if err != nil {
				b.left = append(b.sent, b.left...) // a repeated signal counts once
			}
			if es := append(b.left, p.queue[b.run]...); len(es) > 0 {
				p.queue[b.run] = es
			} else {
				delete(p.waits, b.run)
			}
		}
		p.wake()
	}
	p.marking = false
}

// wake makes Run call begin again.
func (p *Pump) wake() {
	select {
	case p.freed <- struct{}{}:
	default: // one value is enough
	}
}

// markSent marks the sent events of all batches in one write to the store.
func (p *Pump) markSent(ctx context.Context, all []batch) error {
	var seqs []int64
	for _, b := range all {
		for _, e := range b.sent {
			seqs = append(seqs, e.Seq)
		}
	}
	// This write is not canceled with ctx: events that stay unmarked would be sent again after a restart.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalWait)
	defer cancel()
	if err := p.stores.Events.MarkSignalled(ctx, seqs); err != nil {
		return fmt.Errorf("marking events as signalled: %w", err)
	}
	return nil
}

func (p *Pump) hasProblem() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem != nil
}

// takeProblem returns and clears the errors that have prevented events from being sent since the last call.
func (p *Pump) takeProblem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.problem
	p.problem = nil
	return err
}

// sendRun signals the events of one run in order, until an event must wait. It moves each event that need
// not be sent again from b.left to b.sent. The error is not nil if Temporal or the store is unavailable.
func (p *Pump) sendRun(ctx context.Context, tc client.Client, b *batch) error {
	g, err := p.stores.Grants.Grant(ctx, b.left[0].Machine)
	if err != nil {
		return fmt.Errorf("reading the grant of machine %q: %w", b.left[0].Machine, err)
	}
	if g.Run != b.run {
		b.sent, b.left = b.left, nil // the run has ended
		return nil
	}

	for len(b.left) > 0 {
		e := b.left[0]
		err := signal(ctx, tc, p.converter, p.namespace, g.Workflow, e)
		var never *serviceerror.InvalidArgument
		switch {
		case err == nil:
		case isNotFound(err):
			// Temporal returns NotFound for a run that has ended, for a run that it does not know yet and for a missing
			// namespace. Only the grant shows whether the run has ended, so try again later.
			p.delay(b.run, 0)
			return nil
		case !errors.As(err, &never) && isAway(err):
			return err
		case !errors.As(err, &never) && p.triesOf(b.run) < maxTries:
			// Only this run waits, because other runs may not have this error.
			p.log.With(e.LogKeys()...).Warn("cannot signal an event to its run; the event waits in the store", "kind", e.Kind, "error", err)
			p.delay(b.run, 1)
			return nil
		default:
			// Give up: Temporal would refuse the event each time, and later events of the run would wait for it.
			p.log.With(e.LogKeys()...).Error("dropped an event that cannot be signalled to its run", "seq", e.Seq, "kind", e.Kind, "error", err)
			p.refused.Add(1)
		}
		b.sent, b.left = append(b.sent, e), b.left[1:]
		p.clearDelay(b.run)
	}

	return nil
}

// delay makes a run wait before its next attempt. Each wait is twice as long as the one before, up to lastRetry.
// refusals is added to the counter that triesOf returns.
func (p *Pump) delay(run string, refusals int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.waits[run]
	step := min(max(2*w.step, firstRetry), lastRetry)
	p.waits[run] = retry{time.Now().Add(step), step, w.tries + refusals}
}

func (p *Pump) clearDelay(run string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waits, run)
}

func (p *Pump) triesOf(run string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waits[run].tries
}
