package engine

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

// TestNoEventEndsThePump: an event that makes the pump panic waits, and those
// of other runs are sent (security S35).
func TestNoEventEndsThePump(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	o1, o2 := s.Arm("m1", "r1"), s.Arm("m2", "r2")
	s.Temporal.Refuse = func(r *workflowservice.SignalWorkflowExecutionRequest) error {
		if r.WorkflowExecution.RunId == "r1" {
			panic("a test's")
		}
		return nil
	}
	for _, o := range []inventory.Owner{o1, o2} {
		require.NoError(
			t,
			s.Store.Events.AppendEvents(
				t.Context(),
				[]inventory.Event{{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: inventory.EventDHCP, At: s.Clock.Now(), Count: 1}},
			),
		)
	}
	require.NoError(t, s.pumpOnce())
	_, kept := s.Temporal.Requests()
	require.Len(t, kept, 1)
	require.Equal(t, "r2", kept[0].WorkflowExecution.RunId)
	require.EqualValues(t, 1, s.guard.Panics())
}

// spoiled is a store that panics while spoil is set.
type spoiled struct {
	fakesite.Inventory
	spoil atomic.Bool
}

func (s *spoiled) panics() {
	if s.spoil.Load() {
		panic("a test's")
	}
}

func (s *spoiled) Grant(ctx context.Context, machine string) (inventory.Grant, error) {
	if machine == "m1" {
		s.panics()
	}
	return s.Inventory.Grant(ctx, machine)
}

func (s *spoiled) TouchAgents(ctx context.Context, seen []inventory.AgentSeen) error {
	s.panics()
	return s.Inventory.TouchAgents(ctx, seen)
}

func spoiledSite(t *testing.T) (*site, *spoiled) {
	store := &spoiled{}
	s := newSite(t, func(c *Config) {
		store.Inventory = c.Stores.Grants.(fakesite.Inventory)
		c.Stores, c.Log = storesOf(store), slog.New(slog.DiscardHandler)
		c.Guard = guard.New(c.Log)
	})
	return s, store
}

// TestNoRunEndsTheReconciler: a run whose judgement panics is left as it is, and
// the others are repaired (security S35).
func TestNoRunEndsTheReconciler(t *testing.T) {
	s, store := spoiledSite(t)
	s.AddMachine("m1", fakesite.MAC)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	for machine, run := range map[string]string{"m1": "r1", "m2": "r2"} {
		s.Arm(machine, run)
		s.Temporal.End(run, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
	}
	store.spoil.Store(true)
	require.NoError(t, s.Reconciler.CheckRuns(t.Context()))
	require.EqualValues(t, 1, s.guard.Panics())
	g, err := s.Store.Grants.Grant(t.Context(), "m2")
	require.NoError(t, err)
	require.Empty(t, g.Run)
}

// TestNoFlushEndsTheServer: writing what agents said may panic (security S35).
func TestNoFlushEndsTheServer(t *testing.T) {
	s, store := spoiledSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	store.spoil.Store(true)
	ended, end := context.WithCancel(t.Context())
	end()
	require.NoError(t, s.Run(ended))
	require.EqualValues(t, 1, s.guard.Panics())
}
