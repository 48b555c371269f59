package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

type pumpStore interface {
	Unsignalled(ctx context.Context, limit int) ([]inventory.Event, error)
	MarkSignalled(ctx context.Context, seqs []int64) error
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	Subscribe() (ch <-chan struct{}, cancel func())
}

// Pump passes events on to the runs that wait for them.
//
// It alone sends them, in the order of each run, by the raw request with RunID
// and RequestId: the run, so that a late event cannot reach the next run under
// the same workflow id; the request id, so that an event sent twice counts
// once. An event is marked only after Temporal took it, or when it refused it
// for good: then the run learns what it said when it asks for evidence.
type Pump struct {
	Store     pumpStore
	Temporal  Temporal
	Namespace string
	Guard     *guard.Guard // of events that packets and agents cause
	Log       *slog.Logger

	waits   map[string]retryAt // run → when to try again
	refused atomic.Int64
}

type retryAt struct {
	at    time.Time
	step  time.Duration
	tries int // that Temporal refused in a way that may pass
}

// Refused is how many events Temporal has refused for good since the start.
func (p *Pump) Refused() int64 { return p.refused.Load() }

const (
	pumpEvery    = 5 * time.Second
	pumpBatch    = 256
	pumpMax      = 1 << 14 // events looked at when those before them wait
	pumpParallel = 16      // runs signalled at once
	signalWait   = 10 * time.Second
	firstRetry   = 500 * time.Millisecond
	lastRetry    = 30 * time.Second
	maxSignal    = 2 << 10 // bytes of a message inside a signal
	maxTries     = 100     // of an event that Temporal refuses: almost an hour
)

// Run pumps until ctx is done: at start, whenever the store changed, and every
// five seconds. While Temporal is away, events wait in the store.
func (p *Pump) Run(ctx context.Context) error {
	p.waits = map[string]retryAt{}
	changed, cancel := p.Store.Subscribe()
	defer cancel()
	down := false
	for {
		tc, ok := p.Temporal()
		var wait time.Duration
		if !ok {
			wait = time.Second
		} else {
			var err error
			wait, err = p.pass(ctx, tc)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				if !down {
					p.Log.Warn("signalling events, which wait in the store", "error", err)
				}
				down, wait = true, time.Second
			} else if down {
				p.Log.Info("signalling events again")
				down = false
			}
		}
		t := time.NewTimer(wait)
		wake := changed
		if down || !ok {
			wake = nil // or every write would knock at a closed door
		}
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

// pass sends what may be sent now and returns how long to wait for the next
// pass at most.
func (p *Pump) pass(ctx context.Context, tc client.Client) (time.Duration, error) {
	now := time.Now()
	limit := pumpBatch
	for {
		es, err := p.Store.Unsignalled(ctx, limit)
		if err != nil {
			return 0, fmt.Errorf("reading events to signal: %w", err)
		}
		due, next := p.due(es, now)
		if len(due) == 0 {
			if len(es) == limit && limit < pumpMax {
				limit *= 2 // all of these wait: look behind them
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

// due groups those events by run whose run need not wait, and tells when the
// first of the others is due.
func (p *Pump) due(es []inventory.Event, now time.Time) (map[string][]inventory.Event, time.Duration) {
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
			delete(p.waits, run) // its grant moved on, or another limit
		}
	}
	return due, next
}

// send signals events: runs beside each other, the events of one in order. It
// returns an error when Temporal cannot be reached.
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
					p.Guard.Caught("the events of a run", v)
					mu.Lock()
					defer mu.Unlock()
					p.later(run, 1) // or it would be the next one, too
				}
			}()
			g, err := p.Store.Grant(ctx, es[0].Machine)
			if err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("asking who owns %q: %w", es[0].Machine, err))
				mu.Unlock()
				return
			}
			if g.Run != run {
				return // it moved on this moment: the store skips the rest
			}
			for _, e := range es {
				err := p.signal(ctx, tc, g.Workflow, e)
				var gone *serviceerror.NotFound
				var never *serviceerror.InvalidArgument
				mu.Lock()
				switch {
				case err == nil:
					sent = append(sent, e.Seq)
					delete(p.waits, run)
				case errors.As(err, &never) || !errors.As(err, &gone) && !away(err) && p.waits[run].tries >= maxTries:
					// It would be refused each time, and all behind it would wait.
					p.Log.Error("an event cannot be signalled", "seq", e.Seq, "kind", e.Kind, "machine", e.Machine, "run", run, "error", err)
					p.refused.Add(1)
					sent, err = append(sent, e.Seq), nil
					delete(p.waits, run)
				case errors.As(err, &gone):
					// The same code for a finished run, for one that Temporal
					// does not know yet and for a namespace that is missing:
					// whether a run is over is for its grant to say.
					p.later(run, 0)
				case !away(err):
					// What is wrong with this run is no reason for others to wait.
					p.Log.Warn("signalling an event, which waits in the store", "kind", e.Kind, "machine", e.Machine, "run", run, "error", err)
					p.later(run, 1)
				default:
					errs = append(errs, err)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if len(sent) > 0 {
		// Not undone by the end of ctx: unmarked, they would be sent again.
		mark, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalWait)
		defer cancel()
		if err := p.Store.MarkSignalled(mark, sent); err != nil {
			errs = append(errs, fmt.Errorf("marking events as signalled: %w", err))
		}
	}
	return errors.Join(errs...)
}

// away tells that Temporal could not be reached, or not in time.
func away(err error) bool {
	var unavailable *serviceerror.Unavailable
	var late *serviceerror.DeadlineExceeded
	var cancelled *serviceerror.Canceled
	return errors.As(err, &unavailable) || errors.As(err, &late) || errors.As(err, &cancelled) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// later makes run wait, longer each time, and counts the refusals. The caller
// holds the lock.
func (p *Pump) later(run string, refusals int) {
	w := p.waits[run]
	step := min(max(2*w.step, firstRetry), lastRetry)
	p.waits[run] = retryAt{time.Now().Add(step), step, w.tries + refusals}
}

// signal sends one event to its run, whose workflow has that id.
func (p *Pump) signal(ctx context.Context, tc client.Client, id string, e inventory.Event) error {
	if !strings.HasPrefix(id, workflows.MachineID("")) {
		return nil // a BMC job owns the machine, and waits for no events
	}
	name, payload, err := signalOf(e)
	if err != nil {
		return serviceerror.NewInvalidArgument(err.Error())
	}
	input, err := converter.GetDefaultDataConverter().ToPayloads(payload)
	if err != nil {
		return serviceerror.NewInvalidArgument(err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, signalWait)
	defer cancel()
	_, err = tc.WorkflowService().SignalWorkflowExecution(ctx, &workflowservice.SignalWorkflowExecutionRequest{
		Namespace:         p.Namespace,
		WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: id, RunId: e.Run},
		SignalName:        name,
		Input:             input,
		Identity:          "ingot-pump",
		RequestId:         requestID(e),
	})
	return err
}

// requestID is the same each time that e is sent.
func requestID(e inventory.Event) string {
	if e.Kind == inventory.EventActionDone && e.Key != "" {
		return "report-" + e.Key
	}
	return "event-" + strconv.FormatInt(e.Seq, 10)
}

// attemptDetail is the detail of agent-idle and agent-lost.
type attemptDetail struct {
	Key *action.Key `json:"key,omitempty"`
}

// signalOf returns the name and payload of e's signal.
func signalOf(e inventory.Event) (string, any, error) {
	if e.Kind == inventory.EventActionDone {
		var r action.Result
		if err := json.Unmarshal(e.Detail, &r); err != nil {
			return "", nil, fmt.Errorf("reading the result in event %d: %w", e.Seq, err)
		}
		return workflows.SignalActionCompleted, workflows.ActionCompleted{
			Key: r.Key, State: r.State, ExitCode: r.ExitCode, Message: head(r.Message, maxSignal),
		}, nil
	}
	out := workflows.Event{Seq: e.Seq, Kind: e.Kind, Epoch: e.Epoch, Boot: e.Boot}
	if e.Kind == inventory.EventAgentIdle || e.Kind == inventory.EventAgentLost {
		var d attemptDetail
		if len(e.Detail) > 0 {
			if err := json.Unmarshal(e.Detail, &d); err != nil {
				return "", nil, fmt.Errorf("reading the attempt in event %d: %w", e.Seq, err)
			}
		}
		out.Key = d.Key
	}
	if e.Kind == inventory.EventInstalled || e.Kind == inventory.EventInstallFailed {
		out.Message = head(e.Message, maxSignal)
	}
	return workflows.SignalEvent, out, nil
}
