package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestOpenWork(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	asked := w.clock.Now().Add(-time.Hour).UTC()
	question := func(id string) *inventory.Question { return &inventory.Question{ID: id, Since: asked} }
	for _, r := range []inventory.Workflow{
		{Run: "r1", Machine: "m1", Type: inventory.TypeProvision, State: inventory.StateRunning, Phase: inventory.PhaseAction},
		{
			Run: "r2", Machine: "m2", Type: inventory.TypeProvision, State: inventory.StateRunning, Phase: inventory.PhaseWaiting,
			Question: question("3.power.1.2"), Next: "decide",
		},
		{
			Run: "r3", Machine: "m3", Type: inventory.TypeInspect, State: inventory.StateRunning, Phase: inventory.PhaseWaiting,
			Question: question("3.4.1"), Next: "decide",
		},
		{Run: "r4", Machine: "m4", Type: inventory.TypeProvision, State: inventory.StateRunning, Phase: inventory.PhasePower, Next: "button"},
		{Run: "r6", Machine: "m6", Type: inventory.TypeProvision, State: inventory.StateRunning, Phase: inventory.PhaseAction},
		{Run: "r5", Machine: "m5", Type: inventory.TypeProvision, State: inventory.StateSuccess, Phase: inventory.PhaseDone},
		{
			Run: "r7", Machine: "m7", Type: inventory.TypeDecommission, State: inventory.StateRunning, Phase: inventory.PhaseWaiting,
			Question: question("3.off.8"), Next: "decide",
		},
		{
			Run: "r8", Machine: "m8", Type: inventory.TypeProvision, State: inventory.StateRunning, Phase: inventory.PhaseWaiting,
			Question: question("3.4.1.stop"), Next: "decide",
		},
		{
			Run: "r9", Machine: "m9", Type: inventory.TypeDecommission, State: inventory.StateRunning, Phase: inventory.PhaseWaiting,
			Question: question("3.4.1.off"), Next: "decide",
		},
	} {
		require.NoError(t, w.Workflows.PutWorkflow(ctx, r))
	}
	require.NoError(t, w.Operations.PutOperation(ctx, inventory.Operation{
		Run: "o1", ID: "recover/a", Type: inventory.TypeRecover, Name: "a", State: inventory.StateRunning, Question: question("1"),
	}))

	got, err := w.Overview.OpenWork(ctx)
	require.NoError(t, err)
	require.ElementsMatch(t, []inventory.OpenWork{
		{Count: 2, Type: "Provision", Phase: "action"},
		{Count: 1, Type: "Provision", Machine: "m2", Phase: "waiting-for-operator", About: "power", Since: asked},
		{Count: 1, Type: "Inspect", Machine: "m3", Phase: "waiting-for-operator", About: "action", Since: asked},
		{Count: 1, Type: "Provision", Machine: "m4", Phase: "power", About: "button", Since: w.clock.Now().UTC()},
		{Count: 1, Type: "Decommission", Machine: "m7", Phase: "waiting-for-operator", About: "off", Since: asked},
		{Count: 1, Type: "Provision", Machine: "m8", Phase: "waiting-for-operator", About: "stop", Since: asked},
		{Count: 1, Type: "Decommission", Machine: "m9", Phase: "waiting-for-operator", About: "manual-off", Since: asked},
		{Count: 1, Type: "Recover", Name: "a", About: "step", Since: asked},
	}, got)

	// The same runs are found by the filter, and no others.
	require.NoError(
		t,
		w.Operations.PutOperation(
			ctx,
			inventory.Operation{Run: "o2", ID: "recover/b", Type: inventory.TypeRecover, State: inventory.StateRunning},
		),
	)
	runs, err := w.Workflows.Workflows(ctx, inventory.WorkflowFilter{State: inventory.FilterWaiting})
	require.NoError(t, err)
	var waiting []string
	for _, r := range runs {
		require.True(t, r.AwaitsOperator(), r.Run)
		waiting = append(waiting, r.Run)
	}
	require.ElementsMatch(t, []string{"r2", "r3", "r4", "r7", "r8", "r9"}, waiting)
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m2", 2), machine("m6", 6)}, false, "test"))
	names, err := w.Views.MachineNames(ctx, inventory.MachineFilter{State: inventory.FilterWaiting})
	require.NoError(t, err)
	require.Equal(t, []string{"m2"}, names)
	operations, err := w.Operations.Operations(ctx, inventory.OperationFilter{State: inventory.FilterWaiting})
	require.NoError(t, err)
	require.Len(t, operations, 1)
	require.Equal(t, "o1", operations[0].Run)
	operations, err = w.Operations.Operations(ctx, inventory.OperationFilter{State: inventory.StateSuccess})
	require.NoError(t, err)
	require.Empty(t, operations)
}

func TestOpenWindows(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	more := []inventory.Machine{machine("m2", 2), machine("m3", 3)}
	require.NoError(t, w.Machines.PutMachines(ctx, more, false, "test"))
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{Run: "run-1", Machine: "m1", State: inventory.StateRunning}))
	o := w.armed()
	require.NoError(t, w.Grants.OpenSecrets(ctx, o, w.in(time.Minute)))
	_, err := w.Grants.ArmByHand(ctx, "m2", "admin", w.in(time.Hour))
	require.NoError(t, err)
	g, err := w.Grants.TakeGrant(ctx, "m3", "run-3", "machine/m3", false) // it has no record
	require.NoError(t, err)
	_, err = w.Grants.AllowBoot(ctx, g.Owner, 1, w.in(time.Hour))
	require.NoError(t, err)

	got, err := w.Overview.OpenWindows(ctx)
	require.NoError(t, err)
	require.Equal(t, []inventory.OpenWindow{
		{Count: 1, Window: "netboot", Holder: "run", Until: w.in(time.Hour).UTC()},
		{Count: 1, Window: "secrets", Holder: "run", Until: w.in(time.Minute).UTC()},
		{Count: 1, Machine: "m2", Window: "netboot", Holder: "operator", Until: w.in(time.Hour).UTC()},
		{Count: 1, Machine: "m3", Window: "netboot", Holder: "none", Until: w.in(time.Hour).UTC()},
	}, got)

	require.NoError(t, w.Grants.CloseNetboot(ctx, o))
	w.clock.Add(2 * time.Hour)
	got, err = w.Overview.OpenWindows(ctx)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestPhaseEnds(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	m := machine("m2", 2)
	m.Labels = map[string]string{inventory.LabelClass: "r640"}
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{m}, false, "test"))
	begun, err := w.Events.LastSeq(ctx)
	require.NoError(t, err)

	started := w.clock.Now().UTC()
	r := inventory.Workflow{
		Run: "r1", Machine: "m2", Type: inventory.TypeProvision, State: inventory.StateRunning, Phase: inventory.PhasePlan, Started: started,
	}
	for seq, phase := range []string{inventory.PhasePlan, inventory.PhaseArm, inventory.PhaseFailed} {
		r.Phase, r.Seq, r.Updated = phase, int64(seq+1), started.Add(time.Duration(seq)*time.Minute)
		require.NoError(t, w.Workflows.PutWorkflow(ctx, r))
	}
	got, last, err := w.Overview.PhaseEnds(ctx, begun)
	require.NoError(t, err)
	require.Len(t, got, 3)
	require.Equal(t, inventory.PhaseEnd{
		Type: "Provision", Class: "r640", Started: started,
		PhaseChange: inventory.PhaseChange{Phase: "arm", Before: "plan", Began: started.Add(time.Minute), Seconds: 60},
	}, got[1])
	require.False(t, got[1].Ended())
	require.True(t, got[2].Ended())

	got, _, err = w.Overview.PhaseEnds(ctx, last)
	require.NoError(t, err)
	require.Empty(t, got, "each change is read once")
}

func TestPhaseTimes(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	// Each run plans for a number of minutes, and then arms for one.
	add := func(run, kind, state string, plans int) {
		began := w.clock.Now().UTC()
		for seq, at := range []int{0, plans, plans + 1} {
			r := inventory.Workflow{
				Run: run, Machine: "m1", Type: kind, State: inventory.StateRunning, Started: began,
				Phase: []string{inventory.PhasePlan, inventory.PhaseArm, inventory.PhaseDone}[seq],
				Seq:   int64(seq + 1), Updated: began.Add(time.Duration(at) * time.Minute),
			}
			if seq == 2 {
				r.State, r.Ended, r.NoSystem = state, r.Updated, run == "wipes"
			}
			require.NoError(t, w.Workflows.PutWorkflow(ctx, r))
		}
		w.clock.Add(time.Hour)
	}
	add("oldest", inventory.TypeProvision, inventory.StateSuccess, 50)
	add("slow", inventory.TypeProvision, inventory.StateSuccess, 9)
	add("middle", inventory.TypeReprovision, inventory.StateSuccess, 3)
	add("quick", inventory.TypeProvision, inventory.StateSuccess, 2)
	add("failed", inventory.TypeProvision, inventory.StateFailed, 70)
	add("wipes", inventory.TypeProvision, inventory.StateSuccess, 70)
	add("other", inventory.TypeDecommission, inventory.StateSuccess, 70)

	got, err := w.Workflows.PhaseTimes(ctx, 3)
	require.NoError(t, err)
	require.Equal(t, []inventory.PhaseTime{{Phase: "arm", Seconds: 60, Count: 3}, {Phase: "plan", Seconds: 180, Count: 3}}, got)
}

func TestStandings(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	require.NoError(t, w.Machines.Retire(ctx, w.take("run-1"), inventory.Standing{State: inventory.StandingQuarantined}, true))
	got, err := w.Overview.Standings(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]int{inventory.StandingQuarantined: 1}, got)
	read, write := w.Overview.Pools()
	require.Equal(t, 8, read.MaxOpenConnections)
	require.Equal(t, 1, write.MaxOpenConnections)
	require.Equal(t, w.path, w.Path())
}
