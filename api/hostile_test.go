package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
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
