package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/ingotmetal/ingot/inventory"
)

// panicking is a store in which some look-ups panic.
type panicking struct{ Store }

func (panicking) AgentByToken(context.Context, []byte) (inventory.Agent, error) { panic("a test's") }

func (panicking) MachineStates(context.Context, []string) ([]inventory.MachineState, error) {
	panic("a test's")
}

// TestNoRequestEndsTheProcess: a request of an agent or an operator that panics
// is answered with status 500, and is counted (security S35).
func TestNoRequestEndsTheProcess(t *testing.T) {
	s := newSite(t, func(c *Config) { c.Store, c.Log = panicking{c.Store}, slog.New(slog.DiscardHandler) })
	for n := range 3 {
		for i, ask := range []struct {
			h           http.Handler
			path, token string
		}{{s.agent, "/agent/v1/next", "a-token"}, {s.operator, "/v1/machines", adminToken}} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+ask.path, nil)
			r.Header.Set("Authorization", "Bearer "+ask.token)
			w := httptest.NewRecorder()
			ask.h.ServeHTTP(w, r)
			require.Equal(t, http.StatusInternalServerError, w.Code, ask.path)
			require.EqualValues(t, 2*n+i+1, s.server.cfg.Guard.Panics())
		}
	}
}

// TestNoEventEndsThePump: an event that makes the pump panic waits, and those
// of other runs are sent (security S35).
func TestNoEventEndsThePump(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	s.addMachine("m2", "52:54:00:00:00:0b")
	o1, o2 := s.armed("m1", "r1"), s.armed("m2", "r2")
	s.temporal.unsigned = func(r *workflowservice.SignalWorkflowExecutionRequest) error {
		if r.WorkflowExecution.RunId == "r1" {
			panic("a test's")
		}
		return nil
	}
	for _, o := range []inventory.Owner{o1, o2} {
		require.NoError(t, s.store.AppendEvents(t.Context(), []inventory.Event{{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: inventory.EventDHCP, At: s.clock.now(), Count: 1}}))
	}
	s.server.pump.waits = map[string]retryAt{}
	_, err := s.server.pump.pass(t.Context(), s.temporal)
	require.NoError(t, err)
	_, kept := s.temporal.requests()
	require.Len(t, kept, 1)
	require.Equal(t, "r2", kept[0].WorkflowExecution.RunId)
	require.EqualValues(t, 1, s.server.cfg.Guard.Panics())
}

// spoiled is a store that panics while spoil is set.
type spoiled struct {
	Store
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
	return s.Store.Grant(ctx, machine)
}

func (s *spoiled) TouchAgents(ctx context.Context, seen []inventory.AgentSeen) error {
	s.panics()
	return s.Store.TouchAgents(ctx, seen)
}

func (s *spoiled) Follow() (func() ([]string, bool), func()) {
	take, cancel := s.Store.Follow()
	return func() ([]string, bool) { s.panics(); return take() }, cancel
}

func spoiledSite(t *testing.T) (*site, *spoiled) {
	var store *spoiled
	s := newSite(t, func(c *Config) {
		store = &spoiled{Store: c.Store}
		c.Store, c.Log = store, slog.New(slog.DiscardHandler)
	})
	return s, store
}

// TestNoRunEndsTheReconciler: a run whose judgement panics is left as it is, and
// the others are repaired (security S35).
func TestNoRunEndsTheReconciler(t *testing.T) {
	s, store := spoiledSite(t)
	s.addMachine("m1", mac)
	s.addMachine("m2", "52:54:00:00:00:0b")
	for machine, run := range map[string]string{"m1": "r1", "m2": "r2"} {
		s.armed(machine, run)
		s.temporal.end(run, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
	}
	store.spoil.Store(true)
	require.NoError(t, s.server.recon.Runs(t.Context()))
	require.EqualValues(t, 1, s.server.cfg.Guard.Panics())
	g, err := store.Store.Grant(t.Context(), "m2")
	require.NoError(t, err)
	require.Empty(t, g.Run)
}

// TestNoFlushEndsTheServer: writing what agents said may panic (security S35).
func TestNoFlushEndsTheServer(t *testing.T) {
	s, store := spoiledSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	s.welcome(o, nonceA)
	store.spoil.Store(true)
	ended, end := context.WithCancel(t.Context())
	end()
	require.NoError(t, s.server.Run(ended))
	require.EqualValues(t, 1, s.server.cfg.Guard.Panics())
}

// TestNoRowEndsTheBoard: when reading what pages show panics, their streams end,
// and later ones get everything (security S35).
func TestNoRowEndsTheBoard(t *testing.T) {
	s, store := spoiledSite(t)
	s.addMachine("m1", mac)
	store.spoil.Store(true)
	for range s.watch() {
	}
	require.NotZero(t, s.server.cfg.Guard.Panics())
	store.spoil.Store(false)
	f := until(t, s.watch(), func(f frame) bool { return f.event == "machines" })
	require.Contains(t, f.data, `"m1"`)
}
