package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestPages reads machines, runs and events page by page, in both directions.
func TestPages(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	labelled := machine("m2", 2)
	labelled.Labels = map[string]string{"rack": "a1"}
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{labelled, machine("m3", 3)}, false, "test"))
	for run, machine := range map[string]string{"r1": "m1", "r2": "m2", "r3": "m3"} {
		require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
			Run: run, ID: "machine/" + machine, Machine: machine, State: inventory.StateRunning, Phase: "agent", Started: w.in(0),
		}))
	}

	rack := map[string]string{"rack": "a1"}
	for _, c := range []struct {
		f    inventory.MachineFilter
		want []string
	}{
		{inventory.MachineFilter{}, []string{"m1", "m2", "m3"}},
		{inventory.MachineFilter{Limit: 2, After: "m1"}, []string{"m2", "m3"}},
		{inventory.MachineFilter{Descending: true, After: "m3", Limit: 1}, []string{"m2"}},
		{inventory.MachineFilter{Labels: rack, State: inventory.StateRunning}, []string{"m2"}},
		{inventory.MachineFilter{Labels: map[string]string{"rack": "a2"}}, []string{}},
		{inventory.MachineFilter{State: inventory.StateFailed}, []string{}},
	} {
		got, err := w.Views.MachineNames(ctx, c.f)
		require.NoError(t, err)
		require.Equal(t, c.want, got, c.f)
	}

	runs := func(f inventory.WorkflowFilter) (names []string) {
		t.Helper()
		found, err := w.Workflows.Workflows(ctx, f)
		require.NoError(t, err)
		for _, x := range found {
			names = append(names, x.Run)
		}
		return names
	}
	require.Equal(t, []string{"r2"}, runs(inventory.WorkflowFilter{Labels: rack}))
	all := runs(inventory.WorkflowFilter{})
	require.Len(t, all, 3)
	after := inventory.WorkflowFilter{RunPage: inventory.RunPage{AfterStarted: w.in(0), AfterRun: all[0]}}
	require.Equal(t, all[1:], runs(after), "all began at the same moment")
	after.AfterRun, after.Oldest = all[1], true
	require.Equal(t, all[:1], runs(after))
	after = inventory.WorkflowFilter{RunPage: inventory.RunPage{AfterStarted: w.in(-time.Minute), AfterRun: "deleted"}}
	require.Empty(t, runs(after))
	after = inventory.WorkflowFilter{RunPage: inventory.RunPage{AfterStarted: w.in(0), AfterRun: all[1] + "-deleted"}}
	require.Equal(t, all[1:], runs(after), "the run at which the page before ended is gone")

	newest, err := w.Events.Events(ctx, inventory.EventFilter{Descending: true, Limit: 1})
	require.NoError(t, err)
	before, err := w.Events.Events(ctx, inventory.EventFilter{Descending: true, After: newest[0].Seq, Limit: 1})
	require.NoError(t, err)
	require.Less(t, before[0].Seq, newest[0].Seq)
}
