package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/selector"
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

	parse := func(text string) selector.Selector {
		s, err := selector.Parse(text)
		require.NoError(t, err)
		return s
	}
	rack := parse("rack=a1")
	for _, c := range []struct {
		f    inventory.MachineFilter
		want []string
	}{
		{inventory.MachineFilter{}, []string{"m1", "m2", "m3"}},
		{inventory.MachineFilter{Limit: 2, After: "m1"}, []string{"m2", "m3"}},
		{inventory.MachineFilter{Descending: true, After: "m3", Limit: 1}, []string{"m2"}},
		{inventory.MachineFilter{Selector: rack, State: inventory.StateRunning}, []string{"m2"}},
		{inventory.MachineFilter{Selector: parse("rack=a2")}, []string{}},
		{inventory.MachineFilter{Selector: parse("rack!=a1"), Limit: 1, After: "m1"}, []string{"m3"}},
		{inventory.MachineFilter{Selector: parse("rack!=a1"), Descending: true, Limit: 2}, []string{"m3", "m1"}},
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
	require.Equal(t, []string{"r2"}, runs(inventory.WorkflowFilter{Selector: rack}))
	require.ElementsMatch(t, []string{"r1", "r3"}, runs(inventory.WorkflowFilter{Selector: parse("rack!=a1")}))
	require.Equal(t, []string{"r2"}, runs(inventory.WorkflowFilter{Selector: parse("rack,rack in (a1,a2),!old")}))
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

// The database selects the same machines as Selector.Matches.
func TestLabelsInSQL(t *testing.T) {
	w := newWorld(t)
	all := []inventory.Machine{machine("m1", 1), machine("m2", 2), machine("m3", 3), machine("m4", 4), machine("m5", 5)}
	for i, labels := range []map[string]string{
		nil, {}, {"rack": "a1", "example.org/zone.x": "Z.9"}, {"rack": "", "in": "notin"}, {"rack": "A1", "r": "a1"},
	} {
		all[i].Labels = labels
	}
	require.NoError(t, w.Machines.PutMachines(t.Context(), all, true, "test"))

	for _, text := range []string{
		"rack", "!rack", "rack=a1", "rack!=a1", "rack=", "rack!=", "rack in (a1,)", "rack notin (a1,A1)", "rack in (x)", "in=notin",
		"example.org/zone.x=Z.9", "!example.org/zone.x,rack", "example.org/zone", "rack,!rack", "rack!=a1,rack!=A1,!in", "r=a1,rack=A1",
	} {
		s, err := selector.Parse(text)
		require.NoError(t, err)
		want := []string{}
		for _, m := range all {
			if s.Matches(m.Labels) {
				want = append(want, m.Name)
			}
		}
		got, err := w.Views.MachineNames(t.Context(), inventory.MachineFilter{Selector: s})
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}
