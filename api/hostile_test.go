package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

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
	s := newSite(t, func(c *siteConfig) { c.Store, c.Log = panicking{c.Store}, slog.New(slog.DiscardHandler) })
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
			require.EqualValues(t, 2*n+i+1, s.guard.Panics())
		}
	}
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
	s := newSite(t, func(c *siteConfig) {
		store = &spoiled{Store: c.Store}
		c.Store, c.Log = store, slog.New(slog.DiscardHandler)
	})
	return s, store
}

// TestNoRowEndsTheBoard: when refreshing the board panics, their streams end,
// and later ones get everything (security S35).
func TestNoRowEndsTheBoard(t *testing.T) {
	s, store := spoiledSite(t)
	s.AddMachine("m1", mac)
	store.spoil.Store(true)
	for range s.watch() {
	}
	require.NotZero(t, s.guard.Panics())
	store.spoil.Store(false)
	f := until(t, s.watch(), func(f frame) bool { return f.event == "machines" })
	require.Contains(t, f.data, `"m1"`)
}
