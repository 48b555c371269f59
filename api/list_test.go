package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/inventory"
)

// countingStore counts what is read of single machines, and how often all are read.
type countingStore struct {
	Store
	single, all atomic.Int64
}

func (c *countingStore) Grant(ctx context.Context, machine string) (inventory.Grant, error) {
	c.single.Add(1)
	return c.Store.Grant(ctx, machine)
}

func (c *countingStore) LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error) {
	c.single.Add(1)
	return c.Store.LatestWorkflow(ctx, machine)
}

func (c *countingStore) MachineAgent(ctx context.Context, machine string) (inventory.Agent, error) {
	c.single.Add(1)
	return c.Store.MachineAgent(ctx, machine)
}

func (c *countingStore) Machines(ctx context.Context) ([]inventory.Machine, error) {
	c.all.Add(1)
	return c.Store.Machines(ctx)
}

// TestListsDoNotReadEachMachine: however many machines there are, a list is a constant number of reads, and the status
// reads none of them.
func TestListsDoNotReadEachMachine(t *testing.T) {
	var store *countingStore
	s := newSite(t, func(c *siteConfig) {
		store = &countingStore{Store: c.Store}
		c.Store = store
	})
	for n := range 9 {
		s.AddMachine(fmt.Sprintf("m%d", n), fmt.Sprintf("52:54:00:00:01:%02x", n))
	}
	s.Arm("m7", "r7")
	store.single.Store(0)
	got := decode[struct{ Items []apitypes.MachineView }](t, s.do(http.MethodGet, "/v1/machines", nil), http.StatusOK)
	require.Len(t, got.Items, 9)
	require.Equal(t, "r7", got.Items[7].Workflow.Run)
	require.True(t, got.Items[7].Netboot.AllowPXE)
	require.Zero(t, store.single.Load(), "reads of single machines")

	store.all.Store(0)
	st := decode[apitypes.Status](t, s.do(http.MethodGet, "/v1/status", nil), http.StatusOK)
	require.Equal(t, 9, st.Machines)
	require.Equal(t, 1, st.OpenWorkflows)
	require.Zero(t, store.all.Load(), "reads of all machines")
}

// forgetful is a store in which the fresh run of machine m1 is forgotten while a
// list looks at it, and whose count of machines fails if told so.
type forgetful struct {
	Store
	fresh *engine.Runs
	err   error
}

func (f *forgetful) LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error) {
	f.fresh.Forget("run-1")
	return f.Store.LatestWorkflow(ctx, machine)
}

func (f *forgetful) MachineCount(ctx context.Context) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return f.Store.MachineCount(ctx)
}

func forgetfulSite(t *testing.T) (*site, *forgetful) {
	store := &forgetful{}
	s := newSite(t, func(c *siteConfig) { store.Store, c.Store = c.Store, store })
	store.fresh = s.engine.Runs
	return s, store
}

// TestListOutlivesAFreshRun: a run that is deleted while the list is read is left out, and
// the list is complete.
func TestListOutlivesAFreshRun(t *testing.T) {
	s, _ := forgetfulSite(t)
	s.AddMachine("m1", mac)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	require.Equal(t, "run-1", decode[apitypes.Started](t, s.do(http.MethodPost, "/v1/machines/m1/inspect", nil), http.StatusAccepted).Run)
	got := decode[struct{ Items []apitypes.MachineView }](t, s.do(http.MethodGet, "/v1/machines", nil), http.StatusOK)
	require.Len(t, got.Items, 2)
	require.Nil(t, got.Items[0].Workflow)
}

// TestBoardOutlivesTheStatus: when the status cannot be read, its last one
// stays, and machines are shown as they are now.
func TestBoardOutlivesTheStatus(t *testing.T) {
	s, store := forgetfulSite(t)
	b := s.api.board
	var cancel func()
	b.take, cancel = s.Store.Changes.Follow()
	defer cancel()
	require.NoError(t, s.api.board.refresh(t.Context(), true))
	status := b.cells[cellKey{"status", ""}]
	require.NotEmpty(t, status)

	store.err = inventory.ErrFull
	s.AddMachine("m1", mac)
	before := b.version
	require.NoError(t, s.api.board.refresh(t.Context(), true))
	text, _, err := b.since(before)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), "event: machine\n"))
	require.Equal(t, status, b.cells[cellKey{"status", ""}])
}
