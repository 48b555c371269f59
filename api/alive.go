package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// flushEvery is how often what agents said of themselves is written.
const flushEvery = 10 * time.Second

// maxPendingLog is how much log of an attempt waits for a flush, in bytes:
// with flushEvery it bounds what an agent can make the store write.
const maxPendingLog = 64 << 10

// maxPendingAttempts is of how many attempts of one agent log waits.
const maxPendingAttempts = 4

// agents is what the agents of this moment said: progress, last signs of
// life, new lines of log.
type agents struct {
	store   agentStore
	guard   *guard.Guard
	log     *slog.Logger
	elapsed func() time.Duration
	changed notifier

	mu       sync.Mutex
	machines map[string]*alive
	moved    map[string]bool // machines whose agent made progress since takeMoved
	// flushing keeps two flushes from writing log lines in the wrong order.
	flushing sync.Mutex
}

// alive is the agent of a machine's newest boot.
type alive struct {
	owner     inventory.Owner
	boot      int
	seen      time.Time     // by the wall clock, for people
	heard     time.Duration // the same by the clock that nobody sets
	dirty     bool
	wrote     bool
	running   *action.Progress
	idleSince time.Time // zero while it works
	logs      []pendingLog
}

type pendingLog struct {
	key  action.Key
	text string
}

func newAgents(store agentStore, guard *guard.Guard, log *slog.Logger, elapsed func() time.Duration) *agents {
	return &agents{store: store, guard: guard, log: log, elapsed: elapsed, machines: map[string]*alive{}, moved: map[string]bool{}}
}

// of returns the entry of a's machine, new when a is of a later boot or
// another grant. The caller holds mu.
func (g *agents) of(a inventory.Agent) *alive {
	l := g.machines[a.Machine]
	if l == nil || l.owner != a.Owner || l.boot != a.Boot {
		l = &alive{owner: a.Owner, boot: a.Boot, wrote: a.Wrote}
		g.machines[a.Machine] = l
	}
	return l
}

func (g *agents) saw(a inventory.Agent, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.of(a)
	l.seen, l.heard, l.dirty = now, g.elapsed(), true
}

func (g *agents) assigned(a inventory.Agent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of(a).idleSince = time.Time{}
}

func (g *agents) finished(a inventory.Agent, k action.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.of(a); l.running != nil && l.running.Key == k {
		l.running = nil
	}
}

func (g *agents) beat(a inventory.Agent, h action.Heartbeat, now time.Time) {
	g.mu.Lock()
	l := g.of(a)
	l.seen, l.heard, l.dirty, l.wrote = now, g.elapsed(), true, l.wrote || h.Wrote
	if !h.Idle {
		l.idleSince = time.Time{}
	} else if l.idleSince.IsZero() {
		l.idleSince = now
	}
	moved := false
	if p := h.Running; p != nil && p.Key.Epoch == a.Epoch {
		if p.Log != "" {
			l.keep(p.Key, tail(p.Log, maxLogTail))
		}
		moved = l.running == nil || l.running.Key != p.Key || l.running.Done != p.Done || l.running.Message != p.Message
		l.running = &action.Progress{Key: p.Key, Done: p.Done, Total: p.Total, Message: head(p.Message, 256)}
	} else if l.running != nil {
		l.running, moved = nil, true
	}
	if moved {
		g.moved[a.Machine] = true
	}
	g.mu.Unlock()
	if moved {
		g.changed.notify()
	}
}

// takeMoved returns the machines whose agents made progress since it was called last.
func (g *agents) takeMoved() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := slices.Sorted(maps.Keys(g.moved))
	clear(g.moved)
	return names
}

// keep adds text to what waits for the next flush; of too much the end stays.
func (l *alive) keep(k action.Key, text string) {
	if n := len(l.logs); n > 0 && l.logs[n-1].key == k {
		l.logs[n-1].text = tail(l.logs[n-1].text+text, maxPendingLog)
		return
	}
	if len(l.logs) == maxPendingAttempts {
		l.logs = append(l.logs[:0], l.logs[1:]...)
	}
	l.logs = append(l.logs, pendingLog{k, text})
}

// take returns the log of an attempt that waits for a flush, and forgets it.
func (g *agents) take(a inventory.Agent, k action.Key) (text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.of(a)
	l.logs = slices.DeleteFunc(l.logs, func(p pendingLog) bool {
		if p.key == k {
			text += p.text
		}
		return p.key == k
	})
	return text
}

// giveBack undoes take.
func (g *agents) giveBack(a inventory.Agent, k action.Key, text string) {
	if text == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of(a).prepend(k, text)
}

// prepend puts text that could not be written before what came meanwhile; of
// too much the end stays.
func (l *alive) prepend(k action.Key, text string) {
	for i := range l.logs {
		if p := &l.logs[i]; p.key == k {
			p.text = tail(text+p.text, maxPendingLog)
			return
		}
	}
	if len(l.logs) < maxPendingAttempts {
		l.logs = slices.Insert(l.logs, 0, pendingLog{k, tail(text, maxPendingLog)})
	}
}

// join is text followed by tail, of which text may hold the beginning already.
func join(text, tail string) string {
	if strings.Contains(tail, text) {
		return tail
	}
	for i := max(0, len(text)-len(tail)); i < len(text); i++ {
		if strings.HasPrefix(tail, text[i:]) {
			return text[:i] + tail
		}
	}
	return text + tail
}

// progress returns where o's running attempt stands.
func (g *agents) progress(o inventory.Owner) (action.Progress, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.machines[o.Machine]; l != nil && l.running != nil && l.owner == o {
		return *l.running, true
	}
	return action.Progress{}, false
}

// lastSeen returns when the machine's agent was heard last, zero if not by
// this process.
func (g *agents) lastSeen(machine string) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.machines[machine]; l != nil {
		return l.seen
	}
	return time.Time{}
}

// sign is what reconcile needs of an agent.
type sign struct {
	seen, idleSince time.Time
	silence         time.Duration
}

func (g *agents) sign(a inventory.Agent) (sign, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.machines[a.Machine]; l != nil && l.owner == a.Owner && l.boot == a.Boot {
		return sign{l.seen, l.idleSince, g.elapsed() - l.heard}, true
	}
	return sign{}, false
}

// Heard tells how long ago this process heard the agent of the owner's boot,
// by a clock that nobody sets; false: never.
func (s *Server) Heard(o inventory.Owner, boot int) (time.Duration, bool) {
	found, ok := s.agents.sign(inventory.Agent{Owner: o, Boot: boot})
	return found.silence, ok
}

// forget drops machines whose agents have been silent for so long, and of
// whom nothing waits to be written.
func (g *agents) forget(silence time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.elapsed()
	for name, l := range g.machines {
		if !l.dirty && len(l.logs) == 0 && now-l.heard > silence {
			delete(g.machines, name)
		}
	}
}

// flush writes what is new: signs of life in one transaction, then logs.
func (g *agents) flush(ctx context.Context) error {
	g.flushing.Lock()
	defer g.flushing.Unlock()
	type entry struct {
		of  *alive
		log pendingLog
	}
	var seen []inventory.AgentSeen
	var logs []entry
	g.mu.Lock()
	for _, l := range g.machines {
		if l.dirty {
			seen = append(seen, inventory.AgentSeen{Owner: l.owner, Boot: l.boot, LastSeen: l.seen, Wrote: l.wrote})
			l.dirty = false
		}
		for _, p := range l.logs {
			logs = append(logs, entry{l, p})
		}
		l.logs = nil
	}
	g.mu.Unlock()
	var errs []error
	if len(seen) > 0 {
		if err := g.store.TouchAgents(ctx, seen); err != nil {
			errs = append(errs, fmt.Errorf("writing signs of life: %w", err))
			g.mu.Lock()
			for _, a := range seen {
				if l := g.machines[a.Machine]; l != nil {
					l.dirty = true
				}
			}
			g.mu.Unlock()
		}
	}
	var kept []entry
	for _, e := range logs {
		err := g.store.AppendLog(ctx, e.of.owner, e.log.key, e.log.text)
		// Fenced or unknown: the log of a run that is over stays as it is.
		if err != nil && !errors.Is(err, inventory.ErrFenced) && !errors.Is(err, inventory.ErrNotFound) {
			errs = append(errs, fmt.Errorf("writing the log of %q: %w", e.of.owner.Machine, err))
			kept = append(kept, e)
		}
	}
	g.mu.Lock()
	for _, e := range slices.Backward(kept) {
		e.of.prepend(e.log.key, e.log.text)
	}
	g.mu.Unlock()
	return errors.Join(errs...)
}

// run flushes until ctx is done, and once more then.
func (g *agents) run(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.flushOrLog(ctx)
			g.forget(time.Hour)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushEvery/2)
			defer cancel()
			g.flushOrLog(last)
			return nil
		}
	}
}

// flushOrLog is flush with its error, or its panic, logged.
func (g *agents) flushOrLog(ctx context.Context) {
	defer g.guard.Recover("what agents said")
	if err := g.flush(ctx); err != nil {
		g.log.Warn("writing what agents said", "error", err)
	}
}
