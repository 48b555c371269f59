package sqlite

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// A run's planned values do not change until it ends, whether or not it has the grant yet. Access
// to its BMC may be corrected during the run.
func TestOpenRunKeepsMACsAddressesAndDisks(t *testing.T) {
	for name, change := range map[string]func(m *inventory.Machine){
		"MAC": func(m *inventory.Machine) { m.Interfaces[0].MAC = "52:54:00:00:00:aa" },
		"one more interface": func(m *inventory.Machine) {
			m.Interfaces = append([]inventory.Interface{{MAC: "52:54:00:00:00:ab"}}, m.Interfaces...)
		},
		"address":         func(m *inventory.Machine) { m.Interfaces[0].Address = netip.MustParseAddr("10.0.0.200") },
		"gateway":         func(m *inventory.Machine) { m.Interfaces[0].Gateway = netip.MustParseAddr("10.0.0.254") },
		"first interface": func(m *inventory.Machine) { m.Interfaces[0].DisableNetboot = true },
		"disk":            func(m *inventory.Machine) { m.Disks = []inventory.DeclaredDisk{{Device: "/dev/sdb"}} },
		"selector":        func(m *inventory.Machine) { m.DiskSelector = &inventory.DiskSelector{Serial: "OTHER"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ctx := t.Context()
			moved := machine("m1", 1)
			change(&moved)

			planned := inventory.Workflow{
				Run: "run-1", Machine: "m1", Type: inventory.TypeProvision, State: inventory.StatePreparing,
				Phase: inventory.PhasePlan,
			}
			require.NoError(t, w.Workflows.PutWorkflow(ctx, planned))
			require.ErrorIs(t, put(t, w.Store, true, moved), inventory.ErrConflict, "planned, and not armed yet")
			o := w.armed()
			err := put(t, w.Store, true, machine("other", 9), moved)
			require.ErrorIs(t, err, inventory.ErrConflict)
			require.ErrorContains(t, err, `machine "m1": run run-1 is open`)
			var ps inventory.Problems
			require.ErrorAs(t, err, &ps)
			require.Contains(t, ps[0].Remedy, "ingot workflow cancel m1")
			m, g, err := w.Machines.MachineByMAC(ctx, "52:54:00:00:00:01")
			require.NoError(t, err)
			require.Equal(t, "m1", m.Name)
			require.Equal(t, o, g.Owner)
			_, err = w.Machines.Machine(ctx, "other")
			require.ErrorIs(t, err, inventory.ErrNotFound, "all or none")

			same := machine("m1", 1)
			same.BMC = &inventory.BMC{Driver: inventory.DriverIPMI, Host: "10.0.9.1", User: "admin", Password: inventory.NewSecret("right")}
			same.Labels = map[string]string{"rack": "7"}
			require.NoError(t, put(t, w.Store, true, same), "access to its BMC may be corrected")

			require.NoError(t, w.Grants.EndGrant(ctx, o))
			require.ErrorIs(t, put(t, w.Store, true, moved), inventory.ErrConflict, "the record is open")
			planned.State = inventory.StateFailed
			require.NoError(t, w.Workflows.PutWorkflow(ctx, planned))
			require.NoError(t, put(t, w.Store, true, moved), "after the run")
		})
	}
}

// A protected disk may be added while a run asks which disk it may write, because that only narrows
// the choice.
func TestProtectedDiskMayBeAddedDuringRun(t *testing.T) {
	w := newWorld(t)
	m := machine("m1", 1)
	m.ProtectedDisks = []action.DiskID{{Serial: "S1"}}
	require.NoError(t, put(t, w.Store, true, m))
	w.armed()
	m.ProtectedDisks = []action.DiskID{{Serial: "S2"}, {Serial: "S1"}}
	require.NoError(t, put(t, w.Store, true, m))
	m.ProtectedDisks = []action.DiskID{{Serial: "S2"}, {Serial: "S3"}}
	require.ErrorContains(t, put(t, w.Store, true, m), "run-1 is open")
}

// An operator's window is only for the hardware for which it was opened.
func TestOperatorWindowDoesNotMoveToAnotherMAC(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	_, err := w.Grants.ArmByHand(ctx, "m1", "ann", w.in(time.Hour))
	require.NoError(t, err)
	same := machine("m1", 1)
	same.Labels = map[string]string{"rack": "7"}
	require.NoError(t, put(t, w.Store, true, same))
	g, err := w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.True(t, g.NetbootOpen(w.clock.Now()))
	moved := machine("m1", 1)
	moved.Interfaces[0].MAC = "52:54:00:00:00:aa"
	require.NoError(t, put(t, w.Store, true, moved))
	g, err = w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.False(t, g.NetbootOpen(w.clock.Now()))
	require.True(t, slices.ContainsFunc(w.events(inventory.EventOperator), func(e inventory.Event) bool {
		return e.By == "ann" && strings.HasPrefix(e.Message, "netboot closed")
	}))
}

// A deleted machine cannot be armed, so a machine cannot be deleted between the plan of a run and
// its grant.
func TestPlannedRunKeepsItsMachine(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.Workflows.PutWorkflow(t.Context(), inventory.Workflow{Run: "run-1", Machine: "m1", State: inventory.StatePreparing}))
	err := w.Machines.DeleteMachine(t.Context(), "m1", "ann")
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "run-1")
}

// A value that another machine has is a conflict. A value that one request contains twice is
// invalid input.
func TestClashWithStoredMachineIsConflict(t *testing.T) {
	w := newWorld(t)
	err := put(t, w.Store, false, machine("other", 1))
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.NotErrorIs(t, err, inventory.ErrInvalid)
	var ps inventory.Problems
	require.ErrorAs(t, err, &ps)
	require.Equal(t, "interfaces[0].mac", ps[0].Field)
	err = put(t, w.Store, false, machine("a", 5), machine("a", 6))
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.NotErrorIs(t, err, inventory.ErrConflict)
}

// A new machine cannot have the address that stored machines use as their gateway, unless it is
// stored together with one of them. A stored machine may be that router.
func TestNewMachineCannotHaveGatewayAddress(t *testing.T) {
	w := newWorld(t)
	router, node := machine("router", 254), machine("node", 5)
	node.Interfaces[0].Gateway = router.Interfaces[0].Address
	require.NoError(t, put(t, w.Store, false, node, router), "an inventory is imported")
	require.NoError(t, put(t, w.Store, true, node, router), "again")
	require.NoError(t, put(t, w.Store, true, router))

	retired := router
	retired.Interfaces = slices.Clone(router.Interfaces)
	retired.Interfaces[0].Address, retired.Interfaces[0].Netmask = netip.Addr{}, ""
	require.NoError(t, put(t, w.Store, true, retired), "as a decommissioning leaves it")
	require.NoError(t, put(t, w.Store, true, router))

	twin := machine("twin", 6)
	twin.Interfaces[0].Gateway = netip.MustParseAddr("10.0.0.253")
	require.NoError(t, put(t, w.Store, false, twin))
	err := put(t, w.Store, false, machine("late", 253))
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, `machine "late": address 10.0.0.253 is the gateway of machine "twin"`)
	require.NoError(t, put(t, w.Store, true, machine("late", 253), twin), "together with one of those that use it")
}

// A flood through one relay does not remove the rows of another.
func TestSeenKeepsTheNewestOfEachRelay(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	at := w.clock.Now()
	require.NoError(t, w.Seen.PutSeen(ctx, []inventory.Seen{{MAC: "02:00:00:00:00:01", First: at, Last: at, Count: 1, Giaddr: "10.0.7.1"}}))
	var flood []inventory.Seen
	for n := range 2 * maxSeen {
		at = at.Add(time.Second)
		flood = append(flood, inventory.Seen{MAC: netip.AddrFrom4([4]byte{2, 0, byte(n >> 8), byte(n)}).String(), First: at, Last: at, Count: 1})
	}
	require.NoError(t, w.Seen.PutSeen(ctx, flood))
	got, err := w.Seen.SeenUnknown(ctx)
	require.NoError(t, err)
	require.Len(t, got, maxSeen)
	require.Equal(t, flood[len(flood)-1].MAC, got[0].MAC)
	require.Equal(t, "10.0.7.1", got[len(got)-1].Giaddr)
}
