package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// runAs runs a workflow of the machine under its proper id.
func (w *world) runAs(workflow, in any) error {
	w.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: workflows.MachineID(machine), TaskQueue: workflows.TaskQueue})
	w.env.ExecuteWorkflow(workflow, in)
	require.True(w.t, w.env.IsWorkflowCompleted())
	return w.env.GetWorkflowError()
}

func (w *world) machine() inventory.Machine {
	w.t.Helper()
	m, err := w.Store.Machines.Machine(w.t.Context(), machine)
	require.NoError(w.t, err)
	return m
}

// lively is a machine with something to purge.
func lively(m *inventory.Machine) { m.UserData = inventory.NewSecret("#cloud-config") }

func TestReprovisionWipesInTheSameBoot(t *testing.T) {
	w := newWorld(t, nil)
	var images []string
	w.agentFor = func(a inventory.Assignment) *action.Result {
		images = append(images, a.Payload.Action.Image)
		require.NotNil(t, a.Payload.Disk, "the bound disk is wiped, and no other")
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.runAs(workflows.Reprovision, contract.ProvisionInput{Machine: machine}))
	require.Equal(t, "wipe", images[0])
	require.Equal(t, 1, w.cycles)
	rec := w.record()
	require.Equal(t, inventory.TypeReprovision, rec.Type)
	require.Equal(t, "phone-home", rec.Evidence)
	require.Equal(t, "D1", rec.Disk.Serial)
	w.closed()
}

// A disk that another system wrote is not wiped without the operator's decision.
// TestFirstInstallationIsRefusedOverASystem: the machine may have been installed since the operation was started.
func TestFirstInstallationIsRefusedOverASystem(t *testing.T) {
	w := newWorld(t, lively)
	require.NoError(t, w.runAs(workflows.Provision, contract.ProvisionInput{Machine: machine, First: true}))
	_, err := w.do.Plan(t.Context(), activities.PlanRequest{Run: "r2", Machine: machine, First: true})
	require.ErrorContains(t, err, "the machine may hold the system of run "+w.record().Run)
	_, err = w.do.Plan(t.Context(), activities.PlanRequest{Run: "r3", Machine: machine})
	require.NoError(t, err)
}

func TestReprovisionAsksAboutForeignDisks(t *testing.T) {
	w := newWorld(t, nil)
	w.disks = []action.Disk{{Path: "/dev/vda", Serial: "D1", Size: 1 << 30, Signatures: []string{"gpt"}}}
	require.Error(t, w.runAs(workflows.Reprovision, contract.ProvisionInput{Machine: machine}))
	require.Len(t, w.asked, 1)
	require.Empty(t, w.assigned)
}

func TestDecommission(t *testing.T) {
	w := newWorld(t, lively)
	var did []action.Action
	w.agentFor = func(a inventory.Assignment) *action.Result {
		did = append(did, a.Payload.Action)
		require.Nil(t, a.Payload.Disk, "no disk is bound: all are wiped")
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.runAs(workflows.Decommission, contract.DecommissionInput{Machine: machine}))
	require.Len(t, did, 2)
	require.Equal(t, action.Environment{"ALL_DISKS": "true", "WIPE_MODE": "quick"}, did[0].Environment)
	require.Equal(t, action.Environment{"DELETE_STALE": "true"}, did[1].Environment)
	require.Empty(t, w.asked)
	require.False(t, w.on, "the power is off")
	m := w.machine()
	require.Equal(t, inventory.StandingAvailable, m.Standing.State)
	require.Empty(t, m.Standing.Reason)
	require.False(t, m.HasUserData)
	require.False(t, m.Interfaces[0].Address.IsValid())
	require.Equal(t, inventory.StateSuccess, w.record().State)
	w.closed()

	// It gets an address before it is installed again.
	_, err := w.do.Plan(t.Context(), activities.PlanRequest{Run: "r2", Machine: machine})
	require.ErrorContains(t, err, "address was released")
}

func TestDecommissionQuarantinesUnwipedDisk(t *testing.T) {
	w := newWorld(t, lively)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Payload.Action.Image == action.Wipe {
			return &action.Result{Key: a.Key, State: action.Failed, Message: "zeroing /dev/vda: sector 7 refuses to be written"}
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	err := w.runAs(workflows.Decommission, contract.DecommissionInput{Machine: machine})
	require.ErrorContains(t, err, "quarantined")
	rec := w.record()
	require.Equal(t, inventory.StateFailed, rec.State)
	require.Contains(t, rec.Message, "sector 7")
	require.Contains(t, rec.Next, "ingot machine release "+machine)
	require.False(t, w.on, "the rest is done all the same")
	m := w.machine()
	require.True(t, m.Quarantined())
	require.Contains(t, m.Standing.Reason, "sector 7")
	require.False(t, m.HasUserData)
	require.True(t, m.Interfaces[0].Address.IsValid(), "it has to boot again to be wiped")
	w.closed()

	plan := activities.PlanRequest{Run: "r2", Machine: machine}
	_, err = w.do.Plan(t.Context(), plan)
	require.ErrorContains(t, err, "the machine is quarantined")
	require.NoError(t, w.Store.Machines.Release(t.Context(), machine, "ann"))
	_, err = w.do.Plan(t.Context(), plan)
	require.NoError(t, err)
}

// A machine whose BMC is permanently dead can be decommissioned too.
func TestDecommissionWithADeadBMC(t *testing.T) {
	w := newWorld(t, lively)
	w.bmcDown = inventory.ErrUnreachable
	w.answer = func(q inventory.Question) *contract.Decision {
		require.Contains(t, q.Choices, contract.Skip)
		return &contract.Decision{Choice: contract.Skip}
	}
	require.ErrorContains(t, w.runAs(workflows.Decommission, contract.DecommissionInput{Machine: machine}), "the operator skipped the machine")
	require.Len(t, w.asked, 1)
	m := w.machine()
	require.True(t, m.Quarantined())
	require.False(t, m.HasUserData)
	w.closed()
}

// Questions of a run that installs cannot be skipped that way.
func TestProvisionCannotSkipItsMachine(t *testing.T) {
	w := newWorld(t, nil)
	w.bmcDown = inventory.ErrUnreachable
	require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, []string{contract.Retry, contract.Abort}, w.asked[0].Choices)
}

func TestDecommissionWithoutABMC(t *testing.T) {
	w := newWorld(t, func(m *inventory.Machine) { m.BMC, m.ProtectedDisks = nil, []action.DiskID{{Serial: "KEEP"}} })
	var spared []action.DiskID
	w.agentFor = func(a inventory.Assignment) *action.Result {
		spared = a.Payload.Protected
		return &action.Result{Key: a.Key, State: action.Success}
	}
	w.powersOn()
	require.NoError(t, w.runAs(workflows.Decommission, contract.DecommissionInput{Machine: machine, Wipe: "metadata"}))
	require.Equal(t, []action.DiskID{{Serial: "KEEP"}}, spared)
	st := w.machine().Standing
	require.Equal(t, inventory.StandingAvailable, st.State)
	require.Contains(t, st.Reason, "without a BMC, the power state cannot be checked")
	require.Contains(t, st.Reason, "not wiped, because it is protected: serial:KEEP")
	w.closed()
}

// powersOn is the operator in the room, once the run waits for one.
func (w *world) powersOn() { w.after(5*time.Minute, w.boots) }

// Whichever call fails permanently, the machine's windows are closed, and it becomes
// available only if every step succeeded.
func TestDecommissionBrokenAnywhere(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t, lively)
		w.failAt = n
		err := w.runAs(workflows.Decommission, contract.DecommissionInput{Machine: machine})
		if !w.failing {
			require.NoError(t, err)
			require.Greater(t, n, 8)
			return
		}
		if m := w.machine(); m.Standing != nil && m.Standing.State == inventory.StandingAvailable {
			require.False(t, w.on || m.HasUserData, "call %d: not all was done", n)
			require.Len(t, w.assigned, 2, "call %d", n)
		}
		g, e := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, e)
		require.False(t, g.NetbootOpen(w.env.Now()), "call %d", n)
	}
}
