package sqlite

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// TestMachineStates compares the single statement for many machines with separate reads.
func TestMachineStates(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m2", 2), machine("m3", 3)}, false, "test"))
	o := w.take("run-1")
	_, err := w.Grants.AllowBoot(ctx, o, 1, w.in(time.Hour))
	require.NoError(t, err)
	for n, state := range []string{inventory.StateSuccess, inventory.StateRunning} {
		require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
			Run: fmt.Sprintf("run-%d", n), ID: "machine/m1", Type: inventory.TypeProvision, Machine: "m1", State: state,
			Phase: "agent", Started: w.in(time.Duration(n) * time.Minute),
		}))
	}
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "other", ID: "machine/m2", Type: inventory.TypeProvision, Machine: "m2", State: inventory.StateFailed,
		Phase: "failed", Started: w.in(0),
	}))

	all, err := w.Views.MachineStates(ctx, nil)
	require.NoError(t, err)
	require.Len(t, all, 3)
	for _, got := range all {
		m, err := w.Machines.Machine(ctx, got.Name)
		require.NoError(t, err)
		require.Equal(t, m, got.Machine)
		g, err := w.Grants.Grant(ctx, got.Name)
		require.NoError(t, err)
		require.Equal(t, g, got.Grant)
		if got.Name == "m3" {
			require.Nil(t, got.Workflow)
			continue
		}
		latest, err := w.Workflows.LatestWorkflow(ctx, got.Name)
		require.NoError(t, err)
		require.Equal(t, latest, *got.Workflow)
	}
	some, err := w.Views.MachineStates(ctx, []string{"m3", "m1", "unknown"})
	require.NoError(t, err)
	require.Equal(t, []inventory.MachineState{all[0], all[2]}, some)
	none, err := w.Views.MachineStates(ctx, []string{})
	require.NoError(t, err)
	require.Empty(t, none)

	n, err := w.Views.MachineCount(ctx)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	open, err := w.Views.OpenRuns(ctx)
	require.NoError(t, err)
	require.Equal(t, []inventory.OpenRun{{Run: "run-1", Machine: "m1"}}, open)
}

// The state of a machine comes from the runs that install or wipe it, and from any run that is open.
func TestShownRun(t *testing.T) {
	const (
		provision, reprovision, decommission = inventory.TypeProvision, inventory.TypeReprovision, inventory.TypeDecommission
		inspect, job                         = inventory.TypeInspect, inventory.TypeBMCJob
		success, failed, running             = inventory.StateSuccess, inventory.StateFailed, inventory.StateRunning
	)
	type run struct{ kind, state string }
	for name, c := range map[string]struct {
		runs []run
		want int // index of the run; -1 = none
	}{
		"no run":                              {nil, -1},
		"a power status of a failed machine":  {[]run{{provision, failed}, {job, success}}, 0},
		"a failed power job of a ready one":   {[]run{{provision, success}, {job, failed}}, 0},
		"a job under way":                     {[]run{{provision, success}, {job, running}}, 1},
		"a job of a new machine":              {[]run{{job, failed}}, -1},
		"an inspection of a ready machine":    {[]run{{reprovision, success}, {inspect, failed}}, 0},
		"an inspection under way":             {[]run{{reprovision, success}, {inspect, running}}, 1},
		"a job during an installation":        {[]run{{provision, running}, {job, running}}, 0},
		"a job that ended in an installation": {[]run{{provision, running}, {job, success}}, 0},
		"a wipe after an installation":        {[]run{{provision, success}, {decommission, success}, {inspect, success}}, 1},
		"an installation after a wipe":        {[]run{{decommission, success}, {job, success}, {provision, failed}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ctx := t.Context()
			require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m2", 2)}, false, "test"))
			for n, r := range append([]run{{provision, failed}}, c.runs...) { // the first one is another machine's
				require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
					Run: fmt.Sprint(n - 1), Type: r.kind, Machine: map[bool]string{true: "m2", false: "m1"}[n == 0], State: r.state,
					Phase: "x", Started: w.in(time.Duration(n) * time.Minute),
				}))
			}

			states, err := w.Views.MachineStates(ctx, []string{"m1"})
			require.NoError(t, err)
			latest, err := w.Workflows.LatestWorkflow(ctx, "m1")
			if c.want < 0 {
				require.Nil(t, states[0].Workflow)
				require.ErrorIs(t, err, inventory.ErrNotFound)
				return
			}
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(c.want), states[0].Workflow.Run)
			require.Equal(t, latest, *states[0].Workflow)
			for _, state := range []string{success, failed, running} {
				names, err := w.Views.MachineNames(ctx, inventory.MachineFilter{State: state})
				require.NoError(t, err)
				require.Equal(t, state == c.runs[c.want].state, slices.Contains(names, "m1"), state)
			}
		})
	}
}

// The order of the records decides which run is shown: a clock that was set back does not bring an older one to the front. If the
// record of the latest order was deleted, what was before it is not the state either. Retention keeps the order that is shown.
func TestShownRunIsOfTheNewestOrder(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	put := func(run, kind, state string, started time.Duration) {
		t.Helper()
		require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
			Run: run, Type: kind, Machine: "m1", State: state, Phase: "x", Epoch: 1, Started: w.in(started), Ended: w.in(started),
			Updated: w.in(started),
		}))
	}
	put("old", inventory.TypeProvision, inventory.StateSuccess, 24*time.Hour)
	put("new", inventory.TypeReprovision, inventory.StateFailed, time.Hour)
	shown, err := w.Workflows.LatestWorkflow(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, "new", shown.Run)

	for n := range 20 {
		put(fmt.Sprint("job", n), inventory.TypeBMCJob, inventory.StateSuccess, 2*time.Hour)
	}
	for range 2 {
		_, err = w.Workflows.PruneRuns(ctx, w.in(1000*time.Hour), 10, 100)
		require.NoError(t, err)
	}
	shown, err = w.Workflows.LatestWorkflow(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, "new", shown.Run)

	put("older", inventory.TypeProvision, inventory.StateSuccess, 0)
	put("newest", inventory.TypeProvision, inventory.StateFailed, 0)
	require.NoError(t, w.Workflows.DeleteWorkflow(ctx, "newest", "test"))
	_, err = w.Workflows.LatestWorkflow(ctx, "m1")
	require.ErrorIs(t, err, inventory.ErrNotFound)
}

// The SQL text and the method name the same types, and the index is used.
func TestIsOrder(t *testing.T) {
	w := newWorld(t)
	for _, kind := range []string{
		inventory.TypeProvision, inventory.TypeReprovision, inventory.TypeDecommission, inventory.TypeInspect, inventory.TypeBMCJob,
		inventory.TypeRecover, inventory.TypeMigrate, inventory.TypeGenesis, "",
	} {
		var found bool
		require.NoError(t, w.ro.Get(&found, "SELECT "+isOrder+" FROM (SELECT json_object('type', ?) AS doc)", kind))
		require.Equal(t, inventory.Workflow{Type: kind}.IsOrder(), found, kind)
	}
	var steps []struct {
		ID, Parent int
		NotUsed    int `db:"notused"`
		Detail     string
	}
	require.NoError(t, w.ro.Select(&steps, "EXPLAIN QUERY PLAN SELECT "+shownRun("'m1'")))
	require.Contains(t, fmt.Sprint(steps), "workflow_order")
}

// TestFollow calls every method that changes the page of a machine.
func TestFollow(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	take, cancel := w.Changes.Follow()
	told := func(what string, do func() error) {
		t.Helper()
		require.NoError(t, do(), what)
		machines, operations := take()
		require.Equal(t, []string{"m1"}, machines, what)
		require.False(t, operations, what)
		machines, _ = take()
		require.Empty(t, machines, "%s: twice", what)
	}
	var o inventory.Owner
	told("storing it", func() error { return w.Machines.PutMachines(ctx, []inventory.Machine{machine("m1", 1)}, true, "test") })
	told("taking the grant", func() error { o = w.take("run-1"); return nil })
	told("opening netboot", func() error { _, err := w.Grants.AllowBoot(ctx, o, 1, w.in(time.Hour)); return err })
	told("renewing netboot", func() error { return w.Grants.RenewNetboot(ctx, o, w.in(2*time.Hour)) })
	told("allowing more boots", func() error { return w.Grants.MoreBoots(ctx, o, 5) })
	told("closing netboot", func() error { return w.Grants.CloseNetboot(ctx, o) })
	record := inventory.Workflow{
		Run: "run-1", ID: "machine/m1", Machine: "m1", State: inventory.StateRunning, Phase: "agent", Seq: 1,
		Started: w.in(0),
	}
	told("a phase", func() error { return w.Workflows.PutWorkflow(ctx, record) })
	record.Message, record.Seq = "a message in the same phase", 2
	told("a record in the same phase", func() error { return w.Workflows.PutWorkflow(ctx, record) })
	told("a written disk", func() error { return w.Disks.DiskWritten(ctx, o, action.Disk{Path: "/dev/sda", Serial: "X"}) })
	told("the end of the grant", func() error { return w.Grants.EndGrant(ctx, o) })
	told("arming it by hand", func() error { _, err := w.Grants.ArmByHand(ctx, "m1", "test", w.in(time.Hour)); return err })
	told("disarming it by hand", func() error { return w.Grants.DisarmByHand(ctx, "m1", "test", false) })
	record.State, record.Ended = inventory.StateFailed, w.in(0)
	told("the end of the run", func() error { return w.Workflows.PutWorkflow(ctx, record) })
	told("deleting the record", func() error { return w.Workflows.DeleteWorkflow(ctx, "run-1", "test") })
	told("deleting it", func() error { return w.Machines.DeleteMachine(ctx, "m1", "test") })

	require.NoError(t, w.Operations.PutOperation(ctx, inventory.Operation{
		Run: "r", ID: "recover/x", Type: "Recover", Name: "x",
		State: inventory.StateRunning, Started: w.in(0),
	}))
	machines, operations := take()
	require.Empty(t, machines)
	require.True(t, operations)

	cancel()
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m1", 1)}, false, "test"))
	machines, _ = take()
	require.Empty(t, machines, "after cancel")
}
