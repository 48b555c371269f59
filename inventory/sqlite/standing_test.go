package sqlite

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

func TestRetire(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	m := full()
	m.Name, m.BMC.Driver, m.BMC.SystemName = "m1", inventory.DriverIPMI, ""
	require.NoError(t, put(t, w.Store, true, m))
	disk := action.Disk{Path: "/dev/sda", Serial: "S1"}
	old := w.take("r1")
	require.NoError(
		t,
		w.Workflows.PutWorkflow(ctx, inventory.Workflow{Run: "r1", ID: "machine/m1", Machine: "m1", State: inventory.StateSuccess}),
	)
	require.NoError(t, w.Plans.PutPlan(ctx, inventory.Plan{Run: "r1", Digest: "d", Actions: []action.Action{{Name: "a"}}}))
	require.NoError(t, w.Disks.DiskWritten(ctx, old, disk))
	require.NoError(t, w.Grants.EndGrant(ctx, old))
	o := w.take("r2")
	require.NoError(
		t,
		w.Workflows.PutWorkflow(ctx, inventory.Workflow{Run: "r2", ID: "machine/m1", Machine: "m1", State: inventory.StateRunning}),
	)
	require.NoError(t, w.Plans.PutPlan(ctx, inventory.Plan{Run: "r2", Digest: "d", Actions: []action.Action{{Name: "b"}}}))

	require.ErrorIs(t, w.Machines.Retire(ctx, old, inventory.Standing{State: inventory.StandingAvailable}, false), inventory.ErrFenced)
	require.ErrorIs(t, w.Machines.Retire(ctx, o, inventory.Standing{State: "gone"}, false), inventory.ErrInvalid)
	user, _, err := w.Machines.UserData(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, "canary-user", user.Reveal(), "a refused call changes nothing")

	st := inventory.Standing{State: inventory.StandingQuarantined, Reason: "disk S1 did not forget", Since: w.clock.Now()}
	require.NoError(t, w.Machines.Retire(ctx, o, st, true))
	got, err := w.Machines.Machine(ctx, "m1")
	require.NoError(t, err)
	require.True(t, got.Quarantined())
	require.Equal(t, "r2", got.Standing.Run)
	require.Equal(t, st.Reason, got.Standing.Reason)
	require.Equal(t, "10.1.0.5", got.Interfaces[0].Address.String(), "it keeps its address")
	require.False(t, got.HasUserData || got.HasVendorData)
	user, vendor, err := w.Machines.UserData(ctx, "m1")
	require.NoError(t, err)
	require.True(t, user.IsZero() && vendor.IsZero())
	_, err = w.Plans.Plan(ctx, "r1")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Plans.Plan(ctx, "r2")
	require.NoError(t, err, "the run itself still needs its plan")
	written, err := w.Disks.DisksWritten(ctx, "m1")
	require.NoError(t, err)
	require.NotEmpty(t, written, "a disk that could not be verified stays recorded")
	password, err := w.BMCPasswords.BMCPassword(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, "canary-password", password.Reveal(), "the BMC belongs to the hardware")

	// Storing the machine again does not change its standing.
	again := got
	again.Standing = nil
	require.NoError(t, put(t, w.Store, true, again))
	got, err = w.Machines.Machine(ctx, "m1")
	require.NoError(t, err)
	require.True(t, got.Quarantined())

	st.State, st.Reason = inventory.StandingAvailable, ""
	require.NoError(t, w.Machines.Retire(ctx, o, st, false))
	got, err = w.Machines.Machine(ctx, "m1")
	require.NoError(t, err)
	require.False(t, got.Quarantined())
	written, err = w.Disks.DisksWritten(ctx, "m1")
	require.NoError(t, err)
	require.Empty(t, written)
	require.Equal(t, netip.Addr{}, got.Interfaces[0].Address)
	require.Empty(t, got.Interfaces[0].Netmask)
	require.Empty(t, inventory.Validate(got), "the result is a valid machine")
	_, _, err = w.Machines.MachineByAddress(ctx, netip.MustParseAddr("10.1.0.5"))
	require.ErrorIs(t, err, inventory.ErrNotFound)
	other := machine("m2", 2)
	other.Interfaces[0].Address = netip.MustParseAddr("10.1.0.5")
	other.Interfaces[0].Netmask = "255.255.255.0"
	require.NoError(t, put(t, w.Store, false, other), "the address is free for another machine")

	require.NoError(t, w.Disks.DiskWritten(ctx, o, disk))
	got, err = w.Machines.Machine(ctx, "m1")
	require.NoError(t, err)
	require.Nil(t, got.Standing, "a disk was written: it is in service")
}

func TestRelease(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.take("r1")
	require.NoError(t, w.Machines.Retire(ctx, o, inventory.Standing{State: inventory.StandingQuarantined}, false))
	require.NoError(t, w.Disks.DiskWritten(ctx, o, action.Disk{Serial: "S1"}))
	m, err := w.Machines.Machine(ctx, "m1")
	require.NoError(t, err)
	require.True(t, m.Quarantined(), "only an operator ends a quarantine")
	require.NoError(t, w.Machines.Release(ctx, "m1", "ann"))
	require.NoError(t, w.Machines.Release(ctx, "m1", "ann"))
	m, err = w.Machines.Machine(ctx, "m1")
	require.NoError(t, err)
	require.Nil(t, m.Standing)
	require.ErrorIs(t, w.Machines.Release(ctx, "unknown", "ann"), inventory.ErrNotFound)
}

// A machine is in service again from the first action that may install a system, though it does not replace the whole disk.
func TestContainerEndsAvailability(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, w.Machines.Retire(ctx, w.take("old"), inventory.Standing{State: inventory.StandingAvailable}, true))
	o := w.armed()
	_, err := w.redeem(o, 1, "n")
	require.NoError(t, err)
	for n, c := range []struct {
		x         action.Action
		available bool
	}{
		{action.Action{Image: action.WriteFile}, true},
		{action.Action{Container: &action.Container{}}, true},
		{action.Action{Container: &action.Container{Disk: true}}, false},
	} {
		a := assignment(o, n, 1)
		a.Writes, a.Payload.Action = true, c.x
		require.NoError(t, w.Assignments.Assign(ctx, a))
		m, err := w.Machines.Machine(ctx, "m1")
		require.NoError(t, err)
		require.Equal(t, c.available, m.Standing != nil, "action %d", n)
	}
}
