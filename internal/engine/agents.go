package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// flushEvery is how often the agents' reports are written to the store.
const flushEvery = 10 * time.Second

// forgetAfter is the silence after which an agent is removed from memory.
const forgetAfter = time.Hour

// Agents holds the latest reports of all agents in memory: progress, time of the last contact, new log lines. The time
// of contact and the log lines are written to the store every 10 s, so that a thousand agents do not cause a commit
// each.
type Agents struct {
	store   AgentStore
	guard   *guard.Guard
	log     *slog.Logger
	elapsed func() time.Duration
	// Changed is notified when an agent makes progress, or when this process starts a run.
	Changed Notifier

	mu         sync.Mutex
	byMachine  map[string]*agentReport
	progressed map[string]bool // machines whose agents made progress since the last TakeProgressed
	// flushing is locked during a flush, so that log lines are written in order.
	flushing sync.Mutex
}

// agentReport holds the latest report of an agent. The agent is the one in the newest boot of its machine.
type agentReport struct {
	owner     inventory.Owner
	boot      int
	seen      time.Time     // time of the last contact, by the wall clock, for display
	contact   time.Duration // time of the last contact, by the monotonic clock
	dirty     bool
	wrote     bool
	running   *action.Progress
	idleSince time.Time // zero while it works
	logs      pendingLogs
}

func newAgents(store AgentStore, guard *guard.Guard, log *slog.Logger, elapsed func() time.Duration) *Agents {
	return &Agents{
		store: store, guard: guard, log: log, elapsed: elapsed,
		byMachine: map[string]*agentReport{}, progressed: map[string]bool{},
	}
}

// update calls change with the report of the agent a. If the machine has no report yet, or one of another boot or
// grant, change gets a new report.
func (g *Agents) update(a inventory.Agent, change func(r *agentReport)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.byMachine[a.Machine]
	if r == nil || r.owner != a.Owner || r.boot != a.Boot {
		r = &agentReport{owner: a.Owner, boot: a.Boot, wrote: a.Wrote}
		g.byMachine[a.Machine] = r
	}
	change(r)
}

// Saw records that the server has heard from an agent now.
func (g *Agents) Saw(a inventory.Agent, now time.Time) {
	g.update(a, func(r *agentReport) { r.seen, r.contact, r.dirty = now, g.elapsed(), true })
}

// Assigned records that an agent has fetched work.
func (g *Agents) Assigned(a inventory.Agent) {
	g.update(a, func(r *agentReport) { r.idleSince = time.Time{} })
}

// Finished records that attempt k has ended.
func (g *Agents) Finished(a inventory.Agent, k action.Key) {
	g.update(a, func(r *agentReport) {
		if r.running != nil && r.running.Key == k {
			r.running = nil
		}
	})
}

// Beat records a heartbeat and the progress in it.
func (g *Agents) Beat(a inventory.Agent, h action.Heartbeat, now time.Time) {
	progressed := false
	g.update(a, func(r *agentReport) {
		r.seen, r.contact, r.dirty, r.wrote = now, g.elapsed(), true, r.wrote || h.Wrote
		if !h.Idle {
			r.idleSince = time.Time{}
		} else if r.idleSince.IsZero() {
			r.idleSince = now
		}
		if progressed = r.progress(h.Running); progressed {
			g.progressed[a.Machine] = true
		}
	})
	if progressed {
		g.Changed.Notify()
	}
}

// progress records p, the progress of the running attempt; p is nil if no attempt runs. It reports whether the progress has changed.
func (r *agentReport) progress(p *action.Progress) (changed bool) {
	if p == nil || p.Key.Epoch != r.owner.Epoch {
		changed = r.running != nil
		r.running = nil
		return changed
	}
	if p.Log != "" {
		r.logs.add(p.Key, plaintext.Tail(p.Log, MaxLogTail))
	}
	old := r.running
	r.running = &action.Progress{Key: p.Key, Done: p.Done, Total: p.Total, Message: plaintext.Head(p.Message, 256)}

	return old == nil || old.Key != p.Key || old.Done != p.Done || old.Message != p.Message
}

// TakeProgressed returns the machines whose agents made progress since the last call.
func (g *Agents) TakeProgressed() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := slices.Sorted(maps.Keys(g.progressed))
	clear(g.progressed)

	return names
}

// TakeLog removes and returns the log text of attempt k that waits for the next flush.
func (g *Agents) TakeLog(a inventory.Agent, k action.Key) (text string) {
	g.update(a, func(r *agentReport) { text = r.logs.take(k) })
	return text
}

// GiveBackLog undoes TakeLog: it makes text wait for the next flush again.
func (g *Agents) GiveBackLog(a inventory.Agent, k action.Key, text string) {
	if text != "" {
		g.update(a, func(r *agentReport) { r.logs.prepend(k, text) })
	}
}

// find calls look with the report of a machine's agent. Without a report it does nothing.
func (g *Agents) find(machine string, look func(r *agentReport)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.byMachine[machine]; r != nil {
		look(r)
	}
}

// Progress returns the progress of the attempt that the owner's agent runs. It returns false if the agent runs none.
func (g *Agents) Progress(o inventory.Owner) (p action.Progress, ok bool) {
	g.find(o.Machine, func(r *agentReport) {
		if r.running != nil && r.owner == o {
			p, ok = *r.running, true
		}
	})
	return p, ok
}

// LastSeen returns the time of the last contact with the machine's agent, or zero if this process has had none.
func (g *Agents) LastSeen(machine string) (seen time.Time) {
	g.find(machine, func(r *agentReport) { seen = r.seen })
	return seen
}

// AgentCounts counts the agents that were in contact in the last hour. Each is either working, idle or silent.
type AgentCounts struct {
	Working, Idle int
	Silent        int // no contact for a minute
}

// silentAfter is the time without contact after which Counts counts an agent as silent.
const silentAfter = time.Minute

// Counts counts the agents in memory.
func (g *Agents) Counts() (c AgentCounts) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.elapsed()
	for _, r := range g.byMachine {
		switch {
		case now-r.contact > silentAfter:
			c.Silent++
		case r.idleSince.IsZero():
			c.Working++
		default:
			c.Idle++
		}
	}
	return c
}

// signOfLife describes the last contact with an agent: the time of the contact, and how long ago that was. idleSince is
// since when the agent has asked for work; it is zero if the agent works.
type signOfLife struct {
	seen, idleSince time.Time
	silence         time.Duration
}

func (g *Agents) lastSign(o inventory.Owner, boot int) (s signOfLife, ok bool) {
	g.find(o.Machine, func(r *agentReport) {
		if r.owner == o && r.boot == boot {
			s, ok = signOfLife{r.seen, r.idleSince, g.elapsed() - r.contact}, true
		}
	})
	return s, ok
}

// Silence returns the time since the last contact with the agent of this boot, by the monotonic clock. It returns false
// if this process has had no contact with that agent.
func (g *Agents) Silence(o inventory.Owner, boot int) (time.Duration, bool) {
	s, ok := g.lastSign(o, boot)
	return s.silence, ok
}

// forget removes each report whose agent was last in contact longer ago than silence. It keeps reports with data that
// must still be written to the store.
func (g *Agents) forget(silence time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.elapsed()
	maps.DeleteFunc(g.byMachine, func(_ string, r *agentReport) bool {
		return !r.dirty && len(r.logs) == 0 && now-r.contact > silence
	})
}

// Flush writes new data to the store: first the times of contact in one transaction, then the log lines. Data that
// cannot be written waits for the next flush.
func (g *Agents) Flush(ctx context.Context) error {
	g.flushing.Lock()
	defer g.flushing.Unlock()

	seen, logs := g.takeUnwritten()
	return errors.Join(g.flushSeen(ctx, seen), g.flushLogs(ctx, logs))
}

// unwrittenLogs holds the log text of one agent that a flush writes.
type unwrittenLogs struct {
	report *agentReport
	logs   pendingLogs
}

func (g *Agents) takeUnwritten() (seen []inventory.AgentSeen, logs []unwrittenLogs) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.byMachine {
		if r.dirty {
			seen = append(seen, inventory.AgentSeen{Owner: r.owner, Boot: r.boot, LastSeen: r.seen, Wrote: r.wrote})
			r.dirty = false
		}
		if len(r.logs) > 0 {
			logs = append(logs, unwrittenLogs{r, r.logs})
			r.logs = nil
		}
	}

	return seen, logs
}

func (g *Agents) flushSeen(ctx context.Context, seen []inventory.AgentSeen) error {
	if len(seen) == 0 {
		return nil
	}
	err := g.store.TouchAgents(ctx, seen)
	if err == nil {
		return nil
	}

	for _, a := range seen {
		g.find(a.Machine, func(r *agentReport) { r.dirty = true })
	}
	return fmt.Errorf("writing when the agents were last in contact: %w", err)
}

func (g *Agents) flushLogs(ctx context.Context, all []unwrittenLogs) error {
	var errs []error
	for _, u := range all {
		var kept pendingLogs
		for _, p := range u.logs {
			err := g.store.AppendLog(ctx, u.report.owner, p.key, p.text)
			// Fenced and not found mean that the run has ended: its log must not change any more.
			if err == nil || errors.Is(err, inventory.ErrFenced) || errors.Is(err, inventory.ErrNotFound) {
				continue
			}
			errs = append(errs, fmt.Errorf("writing the agent's log of machine %q: %w", u.report.owner.Machine, err))
			kept = append(kept, p)
		}

		g.mu.Lock()
		for _, p := range slices.Backward(kept) {
			u.report.logs.prepend(p.key, p.text)
		}
		g.mu.Unlock()
	}

	return errors.Join(errs...)
}

// keepFlushing flushes every flushEvery until ctx is done, and then once more.
func (g *Agents) keepFlushing(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.FlushOrLog(ctx)
			g.forget(forgetAfter)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushEvery/2)
			defer cancel()
			g.FlushOrLog(last)
			return nil
		}
	}
}

// FlushOrLog calls Flush and logs its error or panic.
func (g *Agents) FlushOrLog(ctx context.Context) {
	defer g.guard.Recover("the agents' reports")
	if err := g.Flush(ctx); err != nil {
		g.log.Warn("writing the agents' reports", "error", err)
	}
}
