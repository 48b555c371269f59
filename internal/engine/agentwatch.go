package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
)

// agentWatch detects agents that have work and are silent, and agents that ask for work and get none. It appends an
// event for the run to which such an agent belongs.
type agentWatch struct {
	stores               Stores
	agents               *Agents
	now                  func() time.Time
	up                   func() time.Duration // how long the server has listened to agents without a break
	lostAfter, idleAfter time.Duration
	repairs              *repairs

	mu   sync.Mutex
	idle map[string]idleness
	lost map[string]string // machine → key of its last agent-lost event
}

// idleAtMost is the longest interval between two agent-idle events for the same idle agent.
const idleAtMost = 10 * time.Minute

// idleness records which agent-idle events were sent for an agent.
type idleness struct {
	owner inventory.Owner
	since time.Time
	sent  int
	next  time.Time
}

// watchedAgent is the agent of a machine that belongs to a run. If an attempt is assigned to the agent, hasWork is true
// and work is the assignment.
type watchedAgent struct {
	inventory.Agent
	hasWork bool
	work    inventory.Assignment
}

// attempt returns the key of the assigned attempt, or nil if there is none.
func (a watchedAgent) attempt() *action.Key {
	if !a.hasWork {
		return nil
	}
	return &a.work.Key
}

// check checks the agents of all machines that belong to runs. It checks each agent once.
func (x *agentWatch) check(ctx context.Context) error {
	grants, err := x.stores.Grants.Grants(ctx)
	if err != nil {
		return fmt.Errorf("reading grants: %w", err)
	}

	idle := map[string]idleness{}
	var errs []error
	for _, g := range grants {
		if g.ByOperator() {
			continue
		}
		a, err := x.find(ctx, g.Owner)
		if err != nil && !errors.Is(err, inventory.ErrNotFound) && !errors.Is(err, inventory.ErrFenced) {
			errs = append(errs, err)
		}
		if err != nil || a.Revoked || a.Conflict {
			continue
		}
		errs = append(errs, x.checkLost(ctx, a))
		i, err := x.checkIdle(ctx, a)
		errs = append(errs, err)
		if err == nil && !i.since.IsZero() {
			idle[g.Machine] = i
		}
	}
	x.mu.Lock()
	x.idle = idle
	x.mu.Unlock()

	return errors.Join(errs...)
}

// find returns the agent of the owner's newest boot, with the attempt that is assigned to the agent.
func (x *agentWatch) find(ctx context.Context, o inventory.Owner) (watchedAgent, error) {
	a, err := x.stores.Agents.Agent(ctx, o)
	if err != nil {
		return watchedAgent{}, fmt.Errorf("reading the agent of machine %q: %w", o.Machine, err)
	}
	work, err := x.stores.Assignments.NextAssignment(ctx, o)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) && !errors.Is(err, inventory.ErrFenced) {
		return watchedAgent{}, fmt.Errorf("reading the assignment of machine %q: %w", o.Machine, err)
	}

	a.Owner = o
	return watchedAgent{Agent: a, hasWork: err == nil && (work.Boot == 0 || work.Boot == a.Boot), work: work}, nil
}

// checkLost appends the event agent-lost if an agent has work, whether or not it has fetched that work, and
// has been silent for lostAfter. Silence is measured by the monotonic clock. It counts only from the time at
// which this server began to listen: while the server was down or suspended, it could not receive anything.
func (x *agentWatch) checkLost(ctx context.Context, a watchedAgent) error {
	if !a.hasWork {
		return nil
	}
	contact, silence := a.LastSeen, x.up()
	if s, ok := x.agents.lastSign(a.Owner, a.Boot); ok {
		contact, silence = s.seen, min(silence, s.silence)
	}
	if silence < x.lostAfter {
		return nil
	}

	// The key consists of the attempt and the time of the last contact, so that each silence causes only one event.
	key := a.work.Key.String() + "@" + strconv.FormatInt(contact.Unix(), 10)
	x.mu.Lock()
	reported := x.lost[a.Machine] == key
	x.mu.Unlock()
	if reported {
		return nil
	}
	err := x.send(ctx, a, inventory.Event{
		Kind: inventory.EventAgentLost, Key: key,
		Message: "the agent has been silent since " + contact.UTC().Format(time.RFC3339),
	})
	if err != nil {
		return err
	}

	x.repairs.count(func(c *apitypes.Repairs) { c.AgentsLost++ })
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lost[a.Machine] = key

	return nil
}

// checkIdle appends the event agent-idle if an agent asks for work and gets none, for example because
// the database was restored without its assignment. The first event comes after idleAfter, later ones at
// growing intervals up to idleAtMost. While the run waits for the operator, checkIdle appends nothing.
func (x *agentWatch) checkIdle(ctx context.Context, a watchedAgent) (idleness, error) {
	s, ok := x.agents.lastSign(a.Owner, a.Boot)
	if !ok || s.idleSince.IsZero() || a.hasWork && !a.work.Delivered.IsZero() {
		return idleness{}, nil
	}
	x.mu.Lock()
	i := x.idle[a.Machine]
	x.mu.Unlock()
	if i.owner != a.Owner || !i.since.Equal(s.idleSince) {
		i = idleness{owner: a.Owner, since: s.idleSince, next: s.idleSince.Add(x.idleAfter)}
	}
	now := x.now()
	if now.Before(i.next) {
		return i, nil
	}
	// The run assigns more work only after it has received earlier events. While earlier events still wait to be sent,
	// agent-idle would only add to them.
	behind, err := x.stores.Events.PendingSignals(ctx, a.Owner)
	if err != nil {
		return i, err
	}
	if behind > 0 {
		i.next = now.Add(x.idleAfter)
		return i, nil
	}
	w, err := x.stores.Workflows.Workflow(ctx, a.Run)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return i, fmt.Errorf("reading the record of run %q: %w", a.Run, err)
	}
	if w.Phase == inventory.PhaseWaiting {
		return i, nil
	}

	i.next = now.Add(min(x.idleAfter<<min(i.sent, 10), idleAtMost))
	i.sent++
	err = x.send(ctx, a, inventory.Event{
		Kind: inventory.EventAgentIdle, Key: strconv.FormatInt(s.idleSince.Unix(), 10) + "." + strconv.Itoa(i.sent),
		Message: "the agent asks for work, but none is assigned",
	})
	if err == nil {
		x.repairs.count(func(c *apitypes.Repairs) { c.AgentsIdle++ })
	}

	return i, err
}

// send appends an event about an agent. The Pump sends it to the run.
func (x *agentWatch) send(ctx context.Context, a watchedAgent, e inventory.Event) error {
	detail, err := json.Marshal(attemptDetail{Key: a.attempt()})
	if err != nil {
		return fmt.Errorf("encoding %s: %w", e.Kind, err)
	}
	e.Machine, e.Run, e.Epoch, e.Boot = a.Machine, a.Run, a.Epoch, a.Boot
	e.At, e.Count, e.Detail = x.now(), 1, detail
	if err := x.stores.Events.AppendEvents(ctx, []inventory.Event{e}); err != nil {
		return fmt.Errorf("appending event %s of machine %q: %w", e.Kind, a.Machine, err)
	}

	return nil
}
