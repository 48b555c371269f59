package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Installed returns the result of the last run that wrote.
func TestInstalled(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	installed := func() inventory.Installed {
		t.Helper()
		all, err := w.Views.Installed(ctx, "")
		require.NoError(t, err)
		one, err := w.Views.Installed(ctx, "m1")
		require.NoError(t, err)
		require.Equal(t, all["m1"], one["m1"])
		return one["m1"]
	}
	record := func(run, kind, image, state string) {
		t.Helper()
		w.clock.Add(time.Minute)
		require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
			Run: run, Machine: "m1", Type: kind, Template: "image", Image: image, State: state, Started: w.clock.Now(), Ended: w.clock.Now(),
		}))
	}
	require.Zero(t, installed())

	// Another installer wrote the disk: no disk is recorded.
	record("run-0", inventory.TypeProvision, "talos", inventory.StateSuccess)
	record("run-00", inventory.TypeInspect, "", inventory.StateSuccess)
	x := installed()
	require.Equal(t, "run-0 talos", x.Run+" "+x.Image)
	require.True(t, x.System())

	// A run that writes no system installs nothing, whatever its state is.
	w.clock.Add(time.Minute)
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "run-01", Machine: "m1", Type: inventory.TypeProvision, Template: "try", State: inventory.StateSuccess, NoSystem: true,
		Started: w.clock.Now(), Ended: w.clock.Now(),
	}))
	require.Equal(t, "run-0", installed().Run)

	o := w.take("run-1")
	require.NoError(t, w.Disks.DiskWritten(ctx, o, action.Disk{Serial: "S1"}))
	record("run-1", inventory.TypeProvision, "debian-12", inventory.StateRunning)
	x = installed()
	require.Equal(t, inventory.StateRunning, x.State)
	require.False(t, x.System(), "it is being written")
	record("run-1", inventory.TypeProvision, "debian-12", inventory.StateSuccess)
	record("run-2", inventory.TypeProvision, "debian-13", inventory.StateFailed) // wrote nothing
	x = installed()
	require.Equal(t, "run-1 debian-12", x.Run+" "+x.Image)
	require.True(t, x.System())

	require.NoError(t, w.Machines.Retire(ctx, o, inventory.Standing{State: inventory.StandingAvailable, Since: w.clock.Now()}, true))
	require.Zero(t, installed(), "its disks were wiped")
	require.NoError(t, w.Machines.Release(ctx, "m1", "ann"))
	record("run-3", inventory.TypeDecommission, "", inventory.StateSuccess)
	x = installed()
	require.False(t, x.System())
}
