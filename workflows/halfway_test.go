package workflows_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// seeded is a template with an action between the seed and the reboot.
const seeded = `version: "0.1"
name: seeded
tasks:
  - name: install
    worker: "{{ .device_1 }}"
    actions:
      - {name: write-image, image: image2disk, timeout: 60, environment: {IMG_URL: "{{ .image.url }}", IMG_SHA256: "{{ .image.sha256 }}"}}
      - {name: write-configdrive, image: configdrive, timeout: 60}
      - {name: settle, image: noop, timeout: 600}
      - {name: reboot, image: reboot, timeout: 60}
`

func (w *world) seeded() {
	require.NoError(w.t, w.Store.Templates.PutTemplate(w.t.Context(), inventory.Template{Name: "seeded", Source: seeded}, "test"))
}

// instance returns the instance id that an assignment of configdrive writes.
func (w *world) instance(a inventory.Assignment) string {
	var meta struct {
		ID string `json:"instance-id"`
	}
	require.NoError(w.t, json.Unmarshal([]byte(a.Payload.Action.Environment["META_DATA"]), &meta))
	return meta.ID
}

// An agent dies after the seed was written. A system that boots from the disk then uses up
// cloud-init's once-per-instance, so the next agent must install another instance id.
func TestSeedNamesTheBootThatEndsTheRun(t *testing.T) {
	w := newWorld(t, nil)
	w.seeded()
	written := map[int]string{} // instance id by boot
	var order []int
	w.agentFor = func(a inventory.Assignment) *action.Result {
		order = append(order, a.Key.Action)
		if a.Payload.Action.Image == action.ConfigDrive {
			written[a.Boot] = w.instance(a)
		}
		if a.Key.Action == 2 && a.Key.Attempt == 1 {
			w.after(10*time.Minute, func() { w.signal(inventory.EventAgentLost, a.Epoch, a.Boot, &a.Key) })
			return nil
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Template: "seeded"}))
	require.Equal(t, []int{0, 1, 2, 2, 1, 3}, order, "the seed is written again before the machine leaves its agent")
	require.Len(t, written, 2)
	require.NotEqual(t, written[1], written[2])
	for _, a := range w.record().Actions {
		require.Equal(t, action.Success, a.State, a.Name)
	}
	w.closed()
}

// A run that was not interrupted writes its seed once.
func TestSeedIsWrittenOnce(t *testing.T) {
	w := newWorld(t, nil)
	w.seeded()
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Template: "seeded"}))
	require.Len(t, w.assigned, 4)
}

// "From start" repeats everything, including the seed.
func TestSeedAfterARestartFromTheStart(t *testing.T) {
	w := newWorld(t, nil)
	w.seeded()
	var order []int
	w.agentFor = func(a inventory.Assignment) *action.Result {
		order = append(order, a.Key.Action)
		if a.Key.Action == 2 && a.Key.Attempt == 1 {
			return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(
		t,
		w.run(contract.ProvisionInput{Machine: machine, Template: "seeded", Retries: contract.Retries{Count: 1, From: "start"}}),
	)
	require.Equal(t, []int{0, 1, 2, 0, 1, 2, 3}, order)
}

// The grant says how long the disk is half written: from the first action to the last one,
// which ends the agent, across every boot between.
func TestGrantSaysThatTheRunIsInItsActions(t *testing.T) {
	w := newWorld(t, nil)
	w.seeded()
	acting := map[string]bool{}
	look := func(when string) {
		g, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		acting[when] = g.Acting
	}
	w.onWire = func(kind string) {
		if kind == inventory.EventDHCP {
			g, err := w.Store.Grants.Grant(t.Context(), machine)
			require.NoError(t, err)
			look(map[int]string{1: "boot 1", 2: "boot 2"}[g.Boot])
		}
	}
	w.agentFor = func(a inventory.Assignment) *action.Result {
		look(a.Key.String())
		if a.Key.Action == 2 && a.Key.Attempt == 1 {
			w.after(10*time.Minute, func() { w.signal(inventory.EventAgentLost, a.Epoch, a.Boot, &a.Key) })
			return nil
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Template: "seeded"}))
	look("over")
	require.Equal(t, map[string]bool{
		"boot 1": false, "1.0.1": true, "1.1.1": true, "1.2.1": true, "boot 2": true, "1.2.2": true, "1.1.2": true, "1.3.1": false, "over": false,
	}, acting)
}

// The installed system keeps the instance id of the boot that installed it:
// jobs and runs that write nothing do not change it.
func TestInstallationStaysThatOfItsRun(t *testing.T) {
	w := newWorld(t, nil)
	require.Nil(t, w.machine().Installation)
	w.onWire = func(string) { require.Nil(t, w.machine().Installation, "nothing was written yet") }
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	w.onWire = nil
	of := w.machine().Installation
	require.NotNil(t, of)
	require.Equal(t, w.record().Run, of.Run)
	require.Equal(t, 1, of.Boot)

	g, err := w.Store.Grants.TakeGrant(t.Context(), machine, "job", "bmc/um760/job", false)
	require.NoError(t, err)
	require.NoError(t, w.Store.Grants.EndGrant(t.Context(), g.Owner))
	require.Equal(t, of, w.machine().Installation)
	require.NoError(t, w.Store.Machines.PutMachines(t.Context(), []inventory.Machine{w.machine()}, true, "test"))
	require.Equal(t, of, w.machine().Installation)
}

// homecoming boots the old system instead of the agent: the loader was lost in transit, and
// the system on the disk phones home.
func (w *world) homecoming(boots ...int) {
	w.noPXEUntil = 0
	lost := map[int]bool{}
	for _, b := range boots {
		lost[b] = true
	}
	w.stray = func(g inventory.Grant) bool {
		if lost[g.Boot] {
			w.signal(inventory.EventBootLost, g.Epoch, g.Boot, nil)
		}
		return lost[g.Boot]
	}
}

// The system of an earlier run reports on an armed boot: that boot was lost, and is started
// again at once, from the first rung of the ladder.
func TestLostBootIsRepeatedAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	w.homecoming(1)
	began := w.env.Now()
	var agent time.Duration
	w.onWire = func(kind string) {
		if kind == inventory.EventHello {
			agent = w.env.Now().Sub(began)
		}
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 2, w.cycles)
	require.Zero(t, w.warm, "the machine is not at fault: off and on, so that what is received then is later")
	require.Less(t, agent, untilSilent, "the run waited for the loader of a boot that was lost")
	w.closed()
}

// untilSilent is less than the first wait of a boot.
const untilSilent = 5 * time.Minute

// A replayed old nonce uses up at most the run's counted boots: then an operator is asked.
func TestReplayedNoncesCostCountedBoots(t *testing.T) {
	w := newWorld(t, nil)
	w.homecoming(1, 2, 3)
	w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Abort} }
	require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, inventory.MaxBoots, w.cycles)
	require.Len(t, w.asked, 1)
	require.Contains(t, w.asked[0].Text, "used up its boots")
	w.closed()
}

// The agent has claimed its boot while an old nonce is replayed: it is left alone.
func TestReplayedNonceDoesNotEndAgent(t *testing.T) {
	w := newWorld(t, nil)
	w.noAgent = func(int) bool {
		w.noAgent = func(int) bool { return false }
		g := w.claims() // its hello is still in transit
		w.signal(inventory.EventBootLost, g.Epoch, g.Boot, nil)
		return true
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, w.cycles)
	w.closed()
}

// Without a BMC the system may have run before the boot was allowed, and a
// operator presses the button in any case.
func TestLostBootWithoutBMCIsAwaited(t *testing.T) {
	w := newWorld(t, func(m *inventory.Machine) { m.BMC = nil })
	w.after(time.Minute, func() { w.signal(inventory.EventBootLost, 1, 1, nil) })
	w.after(time.Hour, func() {
		require.Equal(t, inventory.PhasePower, w.record().Phase)
		require.Contains(t, w.record().Message, "boot 1")
		w.env.SignalWorkflow(workflows.SignalPoweredOn, nil)
		w.boots()
	})
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	w.closed()
}
