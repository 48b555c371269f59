package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// EventStore holds the events that runs wait for.
type EventStore interface {
	Unsignalled(ctx context.Context, limit int) ([]inventory.Event, error)
	MarkSignalled(ctx context.Context, seqs []int64) error
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	Subscribe() (ch <-chan struct{}, cancel func())
	AppendEvents(ctx context.Context, es []inventory.Event) error
	PendingSignals(ctx context.Context, o inventory.Owner) (int, error)
}

// Pump sends events to the runs that wait for them.
//
// Only Pump sends them, in the order of each run, by the raw request with RunID and
// RequestId. RunID keeps a late event from reaching the next run with the same workflow id;
// RequestId makes a repeated event count once. An event is marked as sent only after
// Temporal accepted it or refused it permanently. In the latter case the run reads it when
// it asks for evidence.
type Pump struct {
	store     EventStore
	temporal  Temporal
	namespace string
	converter converter.DataConverter // as that of the clients
	guard     *guard.Guard            // for events caused by packets and agents
	log       *slog.Logger

	mu      sync.Mutex       // guards waits while several runs are signaled in parallel
	waits   map[string]retry // run → when to try again
	refused atomic.Int64
}

type retry struct {
	at    time.Time
	step  time.Duration
	tries int // refusals by Temporal for a reason that may pass
}

// Refused counts the events that Temporal has refused permanently since the start.
func (p *Pump) Refused() int64 { return p.refused.Load() }

const (
	pumpEvery    = 5 * time.Second
	pumpBatch    = 256
	pumpMax      = 1 << 14 // events examined if earlier ones have to wait
	pumpParallel = 16      // runs signaled in parallel
	signalWait   = 10 * time.Second
	firstRetry   = 500 * time.Millisecond
	lastRetry    = 30 * time.Second
	maxTries     = 100 // of an event that Temporal refuses: almost an hour
)

// Run sends events until ctx is done: at the start, whenever the store changed, and every
// five seconds. While Temporal is unavailable, events wait in the store.
func (p *Pump) Run(ctx context.Context) error {
	changed, cancel := p.store.Subscribe()
	defer cancel()
	down := false
	for {
		wait, wake := time.Second, (<-chan struct{})(nil)
		if tc, ok := p.temporal(); ok {
			pause, err := p.pass(ctx, tc)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil && !down:
				p.log.Warn("signalling events, which wait in the store", "error", err)
			case err == nil && down:
				p.log.Info("signalling events again")
			}
			// While Temporal is unavailable, writes to the store start no pass.
			if down = err != nil; !down {
				wait, wake = pause, changed
			}
		}

		t := time.NewTimer(wait)
		select {
		case <-wake:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		t.Stop()
	}
}

// pass sends what may be sent now and returns the longest wait until the next pass.
func (p *Pump) pass(ctx context.Context, tc client.Client) (time.Duration, error) {
	now := time.Now()
	limit := pumpBatch
	for {
		es, err := p.store.Unsignalled(ctx, limit)
		if err != nil {
			return 0, fmt.Errorf("reading events to signal: %w", err)
		}
		due, next := p.selectDue(es, now)
		if len(due) == 0 {
			if len(es) == limit && limit < pumpMax {
				limit *= 2 // all of these wait: look at later ones
				continue
			}
			return min(next, pumpEvery), nil
		}
		if err := p.send(ctx, tc, due); err != nil {
			return 0, err
		}
		now = time.Now()
	}
}

// selectDue groups the events of runs that need not wait by run. It also returns when the
// first of the other runs is due.
func (p *Pump) selectDue(es []inventory.Event, now time.Time) (map[string][]inventory.Event, time.Duration) {
	due, next, open := map[string][]inventory.Event{}, pumpEvery, map[string]bool{}
	for _, e := range es {
		open[e.Run] = true
		if w, ok := p.waits[e.Run]; ok && now.Before(w.at) {
			next = min(next, w.at.Sub(now))
			continue
		}
		due[e.Run] = append(due[e.Run], e)
	}
	for run := range p.waits {
		if !open[run] {
			delete(p.waits, run) // its grant has changed, or another limit applies
		}
	}

	return due, next
}

// send signals events: runs in parallel, the events of one run in order. It returns an error
// if Temporal cannot be reached.
func (p *Pump) send(ctx context.Context, tc client.Client, due map[string][]inventory.Event) error {
	var (
		mu   sync.Mutex
		sent []int64
		errs []error
		wg   sync.WaitGroup
		slot = make(chan struct{}, pumpParallel)
	)
	for run, es := range due {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			defer func() {
				if v := recover(); v != nil {
					p.guard.Caught("the events of a run", v)
					p.delay(run, 1) // otherwise it would be the next one again
				}
			}()
			err := p.sendRun(ctx, tc, run, es, func(seq int64) {
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, seq)
			})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()

	if len(sent) > 0 {
		// Not canceled with ctx: events left unmarked would be sent again.
		mark, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalWait)
		defer cancel()
		if err := p.store.MarkSignalled(mark, sent); err != nil {
			errs = append(errs, fmt.Errorf("marking events as signalled: %w", err))
		}
	}

	return errors.Join(errs...)
}

// sendRun signals the events of one run in order, until one has to wait. It calls done for
// each event that need not be sent again, and returns an error if Temporal cannot be
// reached.
func (p *Pump) sendRun(
	ctx context.Context, tc client.Client, run string, es []inventory.Event, done func(seq int64),
) error {
	g, err := p.store.Grant(ctx, es[0].Machine)
	if err != nil {
		return fmt.Errorf("asking who owns %q: %w", es[0].Machine, err)
	}
	if g.Run != run {
		return nil // the grant has just changed: the store skips the rest
	}

	for _, e := range es {
		err := signal(ctx, tc, p.converter, p.namespace, g.Workflow, e)
		var never *serviceerror.InvalidArgument
		switch {
		case err == nil:
		case isNotFound(err):
			// Temporal uses this code for a finished run, for a run that it does not know
			// yet and for a missing namespace. Only the grant tells whether the run is over.
			p.delay(run, 0)
			return nil
		case !errors.As(err, &never) && isAway(err):
			return err
		case !errors.As(err, &never) && p.triesOf(run) < maxTries:
			// A fault of this run must not delay the others.
			p.log.With(e.LogKeys()...).Warn("signalling an event, which waits in the store", "kind", e.Kind, "error", err)
			p.delay(run, 1)
			return nil
		default:
			// Temporal would refuse it each time, and later events would wait behind it.
			p.log.With(e.LogKeys()...).Error("an event cannot be signalled", "seq", e.Seq, "kind", e.Kind, "error", err)
			p.refused.Add(1)
		}
		done(e.Seq)
		p.clearDelay(run)
	}

	return nil
}

// isAway reports whether Temporal could not be reached or did not answer in time.
func isAway(err error) bool {
	var unavailable *serviceerror.Unavailable
	var late *serviceerror.DeadlineExceeded
	var cancelled *serviceerror.Canceled

	return errors.As(err, &unavailable) || errors.As(err, &late) || errors.As(err, &cancelled) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// delay makes the run wait, longer each time, and counts the refusals.
func (p *Pump) delay(run string, refusals int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits == nil {
		p.waits = map[string]retry{}
	}
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
