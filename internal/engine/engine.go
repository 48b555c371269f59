// Package engine connects the inventory with Temporal. Runs starts and changes runs. Pump sends events to them.
// Reconciler repairs records and grants of runs that were ended from outside, for example in Temporal's UI. Agents
// holds the latest reports of agents.
package engine

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/inventory"
)

// Config holds the dependencies of an Engine. Stores, Temporal, Guard and Log are required.
type Config struct {
	Stores    Stores
	Temporal  Temporal
	Namespace string // Temporal's namespace; "" means "default"
	// Converter encodes the payloads of signals. It must be the one that the Temporal clients use; nil means the SDK's
	// default.
	Converter converter.DataConverter
	// Parallel is how many runs are signalled at the same time; 0 means 3, which is enough to keep a Temporal on the same host busy.
	// Further signals would queue inside Temporal, where the Pump can no longer send the result of an action before other events.
	Parallel int
	Guard    *guard.Guard
	Log      *slog.Logger
	Now      func() time.Time // nil means time.Now
	// Elapsed is the monotonic clock by which silence is measured. If Elapsed is nil, the time since New is computed from
	// Now. Now must then be monotonic, as time.Now is.
	Elapsed func() time.Duration
	// Up returns how long this server has listened to agents without a break, by the clock of Elapsed. If Up is nil, the
	// server has listened since New.
	Up func() time.Duration
	// LostAfter is the silence after which an agent with work counts as lost; 0 means 60 s. IdleAfter is how long an
	// agent may ask for work without getting any before its run is informed; 0 means 10 s.
	LostAfter, IdleAfter time.Duration
	// IsBooting reports whether a machine has sent a request to the boot servers since the given time, or is receiving a
	// file from them. If IsBooting is nil, this is always assumed.
	IsBooting func(ctx context.Context, machine string, since time.Time) (bool, error)
	// Held returns the runs that were open when the server was restored from a backup and have been held since; nil
	// means none.
	Held func() []inventory.HeldRun
}

// An Engine is created with New.
type Engine struct {
	Agents     *Agents
	Runs       *Runs
	Pump       *Pump
	Reconciler *Reconciler
	// Stopping is closed when Run ends. Long polls and event streams then end.
	Stopping chan struct{}
}

// New returns an Engine. The caller must call Run, Pump.Run and Reconciler.Run to start its loops.
func New(c Config) *Engine {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Elapsed == nil {
		began := c.Now()
		c.Elapsed = func() time.Duration { return c.Now().Sub(began) }
	}
	if c.Up == nil {
		began := c.Elapsed()
		c.Up = func() time.Duration { return c.Elapsed() - began }
	}
	c.Converter = cmp.Or(c.Converter, converter.GetDefaultDataConverter())
	c.Namespace, c.Parallel = cmp.Or(c.Namespace, client.DefaultNamespace), cmp.Or(c.Parallel, 3)
	c.LostAfter, c.IdleAfter = cmp.Or(c.LostAfter, time.Minute), cmp.Or(c.IdleAfter, 10*time.Second)
	if c.IsBooting == nil {
		c.IsBooting = func(context.Context, string, time.Time) (bool, error) { return true, nil }
	}
	if c.Held == nil {
		c.Held = func() []inventory.HeldRun { return nil }
	}
	// Limit what agents can make the server log.
	c.Log = slog.New(quietlog.Handler(c.Log.Handler(), c.Now))

	e := &Engine{Stopping: make(chan struct{})}
	e.Agents = newAgents(c.Stores.Agents, c.Guard, c.Log, c.Elapsed)
	e.Runs = &Runs{
		store: c.Stores.Workflows, keyed: c.Stores.Keyed, temporal: c.Temporal, namespace: c.Namespace, converter: c.Converter,
		now: c.Now, changed: &e.Agents.Changed, fresh: map[string]inventory.Workflow{}, started: map[string]bool{},
	}
	e.Pump = &Pump{
		stores: c.Stores, temporal: c.Temporal, namespace: c.Namespace, converter: c.Converter, guard: c.Guard, log: c.Log,
		freed: make(chan struct{}, 1), slots: make(chan struct{}, c.Parallel),
		queue: map[string][]inventory.Event{}, waits: map[string]retry{}, busy: map[string]bool{},
	}
	repairs := &repairs{}
	e.Reconciler = &Reconciler{
		stores: c.Stores, temporal: c.Temporal, guard: c.Guard, log: c.Log, now: c.Now, elapsed: c.Elapsed,
		held: c.Held, pump: e.Pump, repairs: repairs, settled: map[string]bool{}, recentlyUnknown: map[string]time.Duration{},
		watch: agentWatch{
			stores: c.Stores, agents: e.Agents, now: c.Now, up: c.Up, repairs: repairs,
			lostAfter: c.LostAfter, idleAfter: c.IdleAfter, lost: map[string]string{},
		},
		boots: lostBoots{stores: c.Stores, now: c.Now, up: c.Up, isBooting: c.IsBooting},
	}

	return e
}

// Run writes the agents' reports to the store every 10 s until ctx is done. It closes Stopping when it ends, so it must
// be called only once.
func (e *Engine) Run(ctx context.Context) error {
	defer close(e.Stopping)

	return e.Agents.keepFlushing(ctx)
}
