package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// An installation outlives a deletion of the machine and a restore, which both end its grant. A
// decommissioning that wiped all disks ends it.
func TestInstallationOutlivesTheGrant(t *testing.T) {
	w := newWorld(t)
	o := w.armed()
	_, err := w.redeem(o, 1, "n")
	require.NoError(t, err)
	a := assignment(o, 0, 1)
	a.Writes = true
	require.NoError(t, w.Assignments.Assign(t.Context(), a))
	of := func() *inventory.Installation {
		t.Helper()
		m, err := w.Machines.Machine(t.Context(), "m1")
		require.NoError(t, err)
		return m.Installation
	}
	want := &inventory.Installation{Owner: o, Boot: 1}
	require.Equal(t, want, of())
	g, err := w.Grants.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.True(t, g.Acting)

	// The last action, followed by the next boot, which is an installer's.
	_, err = w.Grants.AllowBoot(t.Context(), o, 2, w.in(time.Hour))
	require.NoError(t, err)
	_, err = w.redeem(o, 2, "n2")
	require.NoError(t, err)
	last := assignment(o, 1, 1)
	last.Boot, last.Writes, last.Payload.Leaving = 2, true, true
	require.NoError(t, w.Assignments.Assign(t.Context(), last))
	want.Boot = 2
	require.Equal(t, want, of())
	g, err = w.Grants.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.False(t, g.Acting)

	require.NoError(t, w.Grants.EndGrant(t.Context(), o))
	require.NoError(t, w.Machines.DeleteMachine(t.Context(), "m1", "test"))
	require.NoError(t, w.Machines.PutMachines(t.Context(), []inventory.Machine{machine("m1", 1)}, false, "test"))
	require.Equal(t, want, of())
	_, err = w.Restores.Restored(t.Context(), inventory.Restore{Backup: "b1", Taken: w.clock.Now()})
	require.NoError(t, err)
	require.Equal(t, want, of())

	o = w.take("run-2")
	require.NoError(t, w.Machines.Retire(t.Context(), o, inventory.Standing{State: inventory.StandingAvailable}, true))
	require.Nil(t, of())
}

// S4: from its first container on, a run gives no user data by address, except to an action that is to read it. The action that
// ends the agent's work ends this.
func TestS4ContainersCloseTheAddress(t *testing.T) {
	w := newWorld(t)
	o := w.armed()
	_, err := w.redeem(o, 1, "n")
	require.NoError(t, err)
	closed := func() bool {
		g, err := w.Grants.Grant(t.Context(), "m1")
		require.NoError(t, err)
		return g.AddressClosed
	}
	hegel := map[string]string{action.HegelVariable: "http://192.0.2.1:7172"}
	for n, c := range []struct {
		x    action.Action
		want bool
	}{
		{action.Action{}, false},
		{action.Action{Container: &action.Container{}}, true},
		{action.Action{}, true},
		{action.Action{Environment: hegel}, false},
		{action.Action{}, true},
		{action.Action{Container: &action.Container{}, Environment: hegel}, false},
		{action.Action{Container: &action.Container{}}, true},
	} {
		a := assignment(o, n, 1)
		a.Payload.Action = c.x
		require.NoError(t, w.Assignments.Assign(t.Context(), a))
		require.Equal(t, c.want, closed(), "action %d", n)
	}
	require.NoError(t, w.Grants.OpenSecrets(t.Context(), o, w.in(time.Hour)))
	require.True(t, closed())
	require.NoError(t, w.Grants.CloseNetboot(t.Context(), o))
	require.True(t, closed(), "while an operator is asked, the container may run")
	last := assignment(o, 9, 1)
	last.Payload.Leaving = true
	require.NoError(t, w.Assignments.Assign(t.Context(), last))
	require.False(t, closed())
}

// The boot of an installer follows the agent's actions: from then on, only the installer writes to
// the disk.
func TestInstallerBootEndsActing(t *testing.T) {
	w := newWorld(t)
	o := w.armed()
	_, err := w.redeem(o, 1, "n")
	require.NoError(t, err)
	require.NoError(t, w.Assignments.Assign(t.Context(), assignment(o, 0, 1)))
	g, err := w.Grants.AllowInstaller(t.Context(), o, 2, w.in(time.Hour))
	require.NoError(t, err)
	require.False(t, g.Acting)
}
