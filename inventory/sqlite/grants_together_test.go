package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestGrantsAreTakenTogether: if one machine cannot be taken, no grant changes, no event is stored, and no agent loses its
// token (security S68).
func TestGrantsAreTakenTogether(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m2", 2), machine("m3", 3)}, false, "test"))
	w.refreshIndex(t)
	record := func(run, machine, state string) {
		t.Helper()
		require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{Run: run, Machine: machine, State: state, Started: w.clock.Now()}))
	}
	all := func() (out []inventory.Grant) {
		t.Helper()
		for _, m := range []string{"m1", "m2", "m3"} {
			g, err := w.Grants.Grant(ctx, m)
			require.NoError(t, err)
			out = append(out, g)
		}
		return out
	}
	claimants := func(runs ...string) (out []inventory.Claimant) {
		for n, run := range runs {
			m := []string{"m1", "m2", "m3"}[n]
			out = append(out, inventory.Claimant{Machine: m, Run: run, Workflow: "machine/" + m})
		}
		return out
	}

	// m1 is taken last by a run that has ended, with an agent; m2 and m3 belong to other workflows.
	o := w.armed()
	_, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	for _, m := range []string{"m2", "m3"} {
		_, err := w.Grants.TakeGrant(ctx, m, "job-"+m, "bmc/"+m+"/off", false)
		require.NoError(t, err)
	}
	record("a", "m1", inventory.StatePreparing)
	record("b", "m2", inventory.StatePreparing)
	record("c", "m3", inventory.StatePreparing)
	before, events := all(), len(w.events(inventory.EventGrant))
	unchanged := func() {
		t.Helper()
		require.Equal(t, before, all())
		require.Len(t, w.events(inventory.EventGrant), events)
		agent, err := w.Agents.Agent(ctx, o)
		require.NoError(t, err)
		require.False(t, agent.Revoked)
	}
	err = w.Grants.TakeGrants(ctx, claimants("a", "b", "c"))
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, `machine "m2": run "job-m2" of workflow "bmc/m2/off" owns the machine`)
	require.ErrorContains(t, err, `machine "m3": run "job-m3"`)
	require.NotContains(t, err.Error(), `"m1"`)
	unchanged()

	// An unknown machine and a run that has ended are no exceptions.
	unknown := append(claimants("a"), inventory.Claimant{Machine: "m9", Run: "x", Workflow: "machine/m9"})
	require.ErrorIs(t, w.Grants.TakeGrants(ctx, unknown), inventory.ErrNotFound)
	unchanged()
	for _, m := range []string{"m2", "m3"} {
		g, err := w.Grants.Grant(ctx, m)
		require.NoError(t, err)
		require.NoError(t, w.Grants.EndGrant(ctx, g.Owner))
	}
	record("ended", "m3", inventory.StateCancelled)
	before = all()
	err = w.Grants.TakeGrants(ctx, claimants("a", "b", "ended"))
	require.ErrorContains(t, err, `machine "m3": run "ended" has ended: CANCELLED`)
	unchanged()

	require.NoError(t, w.Grants.TakeGrants(ctx, nil))
	unchanged()

	// Now each machine has its run, with all windows closed; the agent of the run before has lost its token.
	require.NoError(t, w.Grants.TakeGrants(ctx, claimants("a", "b", "c")))
	taken := all()
	for n, g := range taken {
		require.Equal(t, []string{"a", "b", "c"}[n], g.Run)
		require.Equal(t, before[n].Epoch+1, g.Epoch)
		require.False(t, g.NetbootOpen(w.clock.Now()))
	}
	require.Len(t, w.events(inventory.EventGrant), events+3)
	agent, err := w.Agents.Agent(ctx, o)
	require.NoError(t, err)
	require.True(t, agent.Revoked)

	// A second call of the same runs changes nothing, even after one of them has allowed a boot.
	_, err = w.Grants.AllowBoot(ctx, taken[1].Owner, 1, w.in(time.Hour))
	require.NoError(t, err)
	taken = all()
	require.NoError(t, w.Grants.TakeGrants(ctx, claimants("a", "b", "c")))
	require.Equal(t, taken, all())
	require.Len(t, w.events(inventory.EventGrant), events+3)
}
