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
// Only Pump sends them, in the order of each run, by the raw request with RunID and
// RequestId. RunID keeps a late event from reaching the next run with the same workflow id;
// RequestId makes a repeated event count once. An event is marked as sent only after
// Temporal accepted it or refused it permanently. In the latter case the run reads it when
// it asks for evidence.
type Pump struct {
	stores    Stores
	temporal  Temporal
	namespace string
	converter converter.DataConverter // as the clients do
	guard     *guard.Guard            // for events caused by packets and agents
	log       *slog.Logger

	sending sync.WaitGroup // runs whose events are under way
	slots   chan struct{}  // holds a value for each of them
	freed   chan struct{}  // receives a value when a slot is free or a run stops being busy

	mu       sync.Mutex
	queue    map[string][]inventory.Event // run → its events that are read and not yet taken, in their order
	read     int64                        // the last event that was put into queue
	waits    map[string]retry             // run → when to try again
	busy     map[string]bool              // runs whose events are being signalled or marked
	finished []batch                      // what is sent and not marked
	marking  bool                         // a goroutine marks what is finished
	problem  error                        // of a run, since the last look
	refused  atomic.Int64
}

// A batch is a run's events that are signalled in one go.
type batch struct {
	run  string
	sent []inventory.Event // need not be sent again
	left []inventory.Event // have to wait
}

type retry struct {
	at    time.Time
	step  time.Duration
	tries int // refusals by Temporal for a reason that may pass
}

// Refused counts the events that Temporal has refused permanently since the start.
func (p *Pump) Refused() int64 { return p.refused.Load() }

const (
	pumpEvery  = 5 * time.Second
	pumpBatch  = 256
	pumpMax    = 1 << 14 // events in memory; the others wait in the store
	firstRetry = 500 * time.Millisecond
	lastRetry  = 30 * time.Second
	maxTries   = 100 // of an event that Temporal refuses: almost an hour
)

// Run sends events until ctx is done: at the start, whenever the store changed, and every
// five seconds. While Temporal is unavailable, events wait in the store.
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
				p.sending.Wait() // whether Temporal is back is known afterwards
			}
			err = errors.Join(err, p.takeProblem())
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil && !down:
				p.log.Warn("signalling events, which wait in the store", "error", err)
			case err == nil && down:
				p.log.Info("signalling events again")
			}
			// While Temporal is unavailable, writes to the store start nothing; nor while no slot is free.
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

// begin starts to signal what may be sent now, as far as there are free slots: runs in parallel, the events of one run in
// order. It returns the longest wait until the next begin.
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
	return pumpEvery, nil // freed wakes Run, or Run reads the problem
}

// hasSlot reports whether a further run can be signalled. Only begin takes slots.
func (p *Pump) hasSlot() bool { return len(p.slots) < cap(p.slots) }

// readQueue reads the events that have come since the last call. Begin alone calls it.
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

// takeDue takes the events of the run that is next, and makes it busy, or returns "" and when the first of those that wait
// is due. Of the events in memory, those of a machine that has reported go before those of one that boots: what has begun ends
// first. Otherwise the oldest go first.
func (p *Pump) takeDue(now time.Time) (run string, due []inventory.Event, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = pumpEvery
	reported := false // of due
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

// send signals the events of a run, which is busy until they are marked.
func (p *Pump) send(ctx context.Context, tc client.Client, run string, es []inventory.Event) {
	b := batch{run: run, left: es}
	defer func() {
		if v := recover(); v != nil {
			p.guard.Caught("the events of a run", v)
			p.delay(run, 1) // otherwise it would be the next one again
		}
		<-p.slots
		p.wake()
		p.mark(ctx, b)
	}()
	if p.hasProblem() {
		return // Temporal is away: the others need not find that out, each by its time-out
	}
	if err := p.sendRun(ctx, tc, &b); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.problem = errors.Join(p.problem, err)
	}
}

// mark stores what was sent, and puts back what is left. One goroutine at a time does so, for all runs that have finished by then.
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

// wake lets Run look again whether a run can be signalled.
func (p *Pump) wake() {
	select {
	case p.freed <- struct{}{}:
	default: // one value is enough
	}
}

// markSent marks the events of all in one write.
func (p *Pump) markSent(ctx context.Context, all []batch) error {
	var seqs []int64
	for _, b := range all {
		for _, e := range b.sent {
			seqs = append(seqs, e.Seq)
		}
	}
	// Not canceled with ctx: events left unmarked would be sent again.
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

// takeProblem returns what has kept events from being sent since the last call.
func (p *Pump) takeProblem() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.problem
	p.problem = nil
	return err
}

// sendRun signals the events of one run in order, until one has to wait. It moves each event that need not be sent again from
// b.left to b.sent, and returns an error if Temporal cannot be reached.
func (p *Pump) sendRun(ctx context.Context, tc client.Client, b *batch) error {
	g, err := p.stores.Grants.Grant(ctx, b.left[0].Machine)
	if err != nil {
		return fmt.Errorf("asking who owns %q: %w", b.left[0].Machine, err)
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
			// Temporal uses this code for a finished run, for a run that it does not know
			// yet and for a missing namespace. Only the grant shows whether the run has ended.
			p.delay(b.run, 0)
			return nil
		case !errors.As(err, &never) && isAway(err):
			return err
		case !errors.As(err, &never) && p.triesOf(b.run) < maxTries:
			// A fault of this run must not delay the others.
			p.log.With(e.LogKeys()...).Warn("signalling an event, which waits in the store", "kind", e.Kind, "error", err)
			p.delay(b.run, 1)
			return nil
		default:
			// Temporal would refuse it each time, and later events would wait behind it.
			p.log.With(e.LogKeys()...).Error("an event cannot be signalled", "seq", e.Seq, "kind", e.Kind, "error", err)
			p.refused.Add(1)
		}
		b.sent, b.left = append(b.sent, e), b.left[1:]
		p.clearDelay(b.run)
	}

	return nil
}

// delay makes the run wait, longer each time, and counts the refusals.
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
