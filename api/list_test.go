package api

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

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
	s := newSite(t, func(c *Config) {
		store = &countingStore{Store: c.Store}
		c.Store = store
	})
	for n := range 9 {
		s.addMachine(fmt.Sprintf("m%d", n), fmt.Sprintf("52:54:00:00:01:%02x", n))
	}
	s.armed("m7", "r7")
	store.single.Store(0)
	got := decode[struct{ Items []MachineView }](t, s.do(http.MethodGet, "/v1/machines", nil), http.StatusOK)
	require.Len(t, got.Items, 9)
	require.Equal(t, "r7", got.Items[7].Workflow.Run)
	require.True(t, got.Items[7].Netboot.AllowPXE)
	require.Zero(t, store.single.Load(), "reads of single machines")

	store.all.Store(0)
	st := decode[Status](t, s.do(http.MethodGet, "/v1/status", nil), http.StatusOK)
	require.Equal(t, 9, st.Machines)
	require.Equal(t, 1, st.OpenWorkflows)
	require.Zero(t, store.all.Load(), "reads of all machines")
}
