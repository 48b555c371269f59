package engine

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

// site is an engine with a real store and a Temporal that keeps its runs in memory.
type site struct {
	*fakesite.Site
	*Engine
	guard  *guard.Guard
	config Config
}

// testStore is all that the engine needs of a store.
type testStore interface {
	EventStore
	GrantStore
	WorkflowStore
	OperationStore
	AgentStore
	AssignmentStore
	ChangeStore
	IntakeStore
}

func storesOf(s testStore) Stores {
	return Stores{
		Agents: s, Assignments: s, Changes: s, Events: s, Grants: s, Intake: s, Operations: s, Workflows: s,
	}
}

func newSite(t *testing.T, change ...func(*Config)) *site {
	t.Helper()
	s := &site{Site: fakesite.New(t)}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s.config = Config{
		Stores: storesOf(fakesite.InventoryOf(s.Store)), Temporal: s.Temporal.Connect, Guard: guard.New(log), Log: log, Now: s.Clock.Now,
	}
	for _, f := range change {
		f(&s.config)
	}
	s.Engine, s.guard = New(s.config), s.config.Guard

	return s
}

func tokenOf(o inventory.Owner) string { return "the token of " + o.Machine }

// welcome redeems the claim of o's boot, as the agents' interface does.
func (s *site) welcome(o inventory.Owner) {
	s.T.Helper()
	h := fakesite.Hello(make([]byte, 32), o, 1, fakesite.NonceA)
	token := func(string) string { return tokenOf(o) }
	a, err := s.Store.Agents.Redeem(
		s.T.Context(),
		inventory.Redemption{Owner: o, Boot: 1, Hello: h, TokenFor: token, SecretsUntil: s.Clock.Now().Add(time.Hour)},
	)
	require.NoError(s.T, err)
	s.Agents.Saw(a, s.Clock.Now())
}

func (s *site) agentOf(o inventory.Owner) inventory.Agent {
	s.T.Helper()
	a, err := s.Store.Agents.Agent(s.T.Context(), o)
	require.NoError(s.T, err)
	return a
}

// beats is a heartbeat of o's agent.
func (s *site) beats(o inventory.Owner, h action.Heartbeat) {
	s.T.Helper()
	s.Agents.Beat(s.agentOf(o), h, s.Clock.Now())
}

// fetches is a poll of o's agent: it takes its work, if there is any.
func (s *site) fetches(o inventory.Owner) {
	s.T.Helper()
	a := s.agentOf(o)
	s.Agents.Saw(a, s.Clock.Now())
	work, err := s.Store.Assignments.NextAssignment(s.T.Context(), o)
	if err != nil {
		require.ErrorIs(s.T, err, inventory.ErrNotFound)
		return
	}
	require.NoError(s.T, s.Store.Assignments.Delivered(s.T.Context(), o, work.Key))
	s.Agents.Assigned(a)
}

// reports is the report of a result.
func (s *site) reports(o inventory.Owner, r action.Result) {
	s.T.Helper()
	r.Message = plaintext.Head(r.Message, 8<<10)
	_, err := s.Store.Assignments.Report(s.T.Context(), o, 1, r)
	require.NoError(s.T, err)
	s.Agents.Finished(s.agentOf(o), r.Key)
}
