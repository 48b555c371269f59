package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

func machineName(n int) string { return fmt.Sprintf("node-%d", n) }

// fillInventory stores machines as on a site in use: most are installed, some are being installed,
// wait or have failed.
func fillInventory(t *testing.T, database string, machines int) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), database, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	now := time.Now()
	ms := make([]inventory.Machine, machines)
	for n := range ms {
		hi, lo := byte(n>>8), byte(n)
		ms[n] = inventory.Machine{
			Name:   machineName(n),
			Labels: map[string]string{"rack": fmt.Sprintf("r%02d", n/40), "room": "a"},
			Interfaces: []inventory.Interface{
				{
					MAC:      fmt.Sprintf("02:00:00:00:%02x:%02x", hi, lo),
					Address:  netip.AddrFrom4([4]byte{10, 20, hi, lo}),
					Netmask:  "255.255.0.0",
					Hostname: machineName(n),
					UEFI:     true,
				},
			},
			BMC:   &inventory.BMC{Driver: inventory.DriverIPMI, Host: fmt.Sprintf("10.30.%d.%d", hi, lo), User: "admin"},
			Image: "debian-12",
		}
	}
	require.NoError(t, store.Machines.PutMachines(t.Context(), ms, false, "bench"))
	for n, m := range ms {
		require.NoError(t, store.Workflows.PutWorkflow(t.Context(), sampleRun(n, m.Name, now)))
	}
}

// fillViews adds what other views than the table show: the phases of the runs of fillInventory, operations and images.
func fillViews(t *testing.T, database string, machines int) {
	t.Helper()
	ctx, now := t.Context(), time.Now()
	store, err := sqlite.Open(ctx, database, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	var events []inventory.Event
	for n := range machines {
		run, before := sampleRun(n, machineName(n), now), ""
		for i, phase := range []string{"plan", "arm", "power", "dhcp", "loader", "agent", "bind", "action", "disarm", "reboot", "ready"} {
			detail, err := json.Marshal(inventory.PhaseChange{Phase: phase, Before: before, Seconds: float64((n + i) % 97)})
			require.NoError(t, err)
			events = append(events, inventory.Event{
				Machine: run.Machine, Run: run.Run, Kind: inventory.EventPhase, Key: fmt.Sprint("of ", i), Detail: detail, At: now,
			})
			before = phase
		}
	}
	require.NoError(t, store.Events.AppendEvents(ctx, events))
	for n := range 100 {
		o := inventory.Operation{
			Run: fmt.Sprint("run-", n), ID: fmt.Sprint("recover/rack-", n), Type: inventory.TypeRecover, Name: fmt.Sprint("rack-", n),
			State: inventory.StateSuccess, Started: now, Updated: now, Ended: now,
		}
		for m := range 50 {
			name := machineName(m)
			step := inventory.OperationStep{Name: name, Machine: name, Does: "install it", State: inventory.StepDone, Since: now, Ended: now}
			o.Steps = append(o.Steps, step)
		}
		require.NoError(t, store.Operations.PutOperation(ctx, o))
		name := fmt.Sprint("image-", n)
		i := inventory.Image{Name: name, File: name, SHA256: strings.Repeat("0", 64), Format: "raw", Size: 1 << 30, Created: now}
		require.NoError(t, store.Images.PutImage(ctx, i, "bench"))
	}
}

// sampleRun returns the record of a run; the first fifty are installed, so that they can be armed
// by hand.
func sampleRun(n int, machine string, now time.Time) inventory.Workflow {
	w := inventory.Workflow{
		Run:      fmt.Sprintf("00000000-0000-4000-8000-%012d", n),
		ID:       "machine/" + machine,
		Type:     "Provision",
		Machine:  machine,
		Template: "image",
		Image:    "debian-12",
		Epoch:    1,
		State:    inventory.StateSuccess,
		Phase:    inventory.PhaseDone,
		Evidence: "phone-home",
		Disk:     &action.Disk{Path: "/dev/nvme0n1", Serial: fmt.Sprintf("S%08d", n), Model: "Example 960", Size: 960e9},
		Started: now.Add(
			-time.Duration(n+10) * time.Minute,
		),
		Updated: now.Add(-time.Duration(n) * time.Minute),
		Ended:   now.Add(-time.Duration(n) * time.Minute),
	}
	for _, name := range []string{"stream-image", "grow-partition", "write-seed", "reboot"} {
		w.Actions = append(w.Actions,
			inventory.ActionRecord{Name: name, Image: name, State: action.Success, Attempt: 1, StartedAt: w.Started, Seconds: 12, Timeout: 600})
	}
	if n < 50 {
		return w
	}
	switch n % 25 {
	case 7:
		w.State, w.Phase, w.Ended = inventory.StateRunning, "action", time.Time{}
		w.Actions[1].State, w.Actions[2].State, w.Actions[3].State = action.Running, action.Pending, action.Pending
		w.Actions[1].Done, w.Actions[1].Total = 4e8, 9e8
	case 11:
		w.State, w.Phase, w.Message = inventory.StateFailed, "failed", "action 2 of 4, grow-partition: the disk has no partition table"
		w.Actions[1].State = action.Failed
	case 19:
		w.State, w.Phase, w.Ended, w.Message = inventory.StateRunning, inventory.PhaseWaiting, time.Time{}, "no answer from the BMC"
		for i := range w.Actions {
			w.Actions[i] = inventory.ActionRecord{Name: w.Actions[i].Name, Image: w.Actions[i].Name, State: action.Pending, Timeout: 600}
		}
		w.Disk = nil
		w.Question = &inventory.Question{
			ID:      "1.power.1",
			Text:    "The BMC does not answer. Switch the machine on by hand, or try again.",
			Choices: []string{"retry", "abort"},
			Since:   now.Add(-time.Minute),
		}
	}
	return w
}
