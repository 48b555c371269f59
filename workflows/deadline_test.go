package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// short has an action that ends within minutes, and a global timeout if wanted.
func (w *world) short(global string) {
	w.t.Helper()
	require.NoError(w.t, w.Store.Templates.PutTemplate(w.t.Context(), inventory.Template{Name: "short", Source: `version: "0.1"
name: short
` + global + `
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - {name: a, image: noop, timeout: 600}
  - {name: b, image: reboot, timeout: 60}
`}, "test"))
}

// untouched requires that the machine was not switched after its first start.
func (w *world) untouched() {
	w.t.Helper()
	require.Equal(w.t, 1, w.cycles, "the machine was switched on again")
	require.Equal(w.t, 1, w.offs, "the power was taken away")
	require.Zero(w.t, w.warm, "the machine was reset")
	require.Zero(w.t, w.resets, "its BMC was reset")
	w.closed()
}

// beats is an agent that is alive, works forever and stops on request.
func (w *world) beats(a inventory.Assignment, stopped func()) {
	var beat func()
	beat = func() {
		if w.env.IsWorkflowCompleted() {
			return
		}
		w.hear(a.Boot)
		if stops, err := w.Store.Assignments.Stops(w.t.Context(), a.Owner); err == nil && len(stops) > 0 {
			stopped()
			return
		}
		w.after(10*time.Second, beat)
	}
	w.after(10*time.Second, beat)
}

// TestTemporalDownAcrossEachDeadline: the events that end the wait are in the database, but
// the timer fires first. The machine must not be switched.
func TestTemporalDownAcrossEachDeadline(t *testing.T) {
	success := func(a inventory.Assignment) *action.Result { return &action.Result{Key: a.Key, State: action.Success} }
	wire := func(kind string) func(w *world) {
		return func(w *world) {
			w.onWire = func(k string) {
				if k == kind && w.cycles == 1 {
					w.down, w.onWire = true, nil
				}
			}
		}
	}
	for name, c := range map[string]struct {
		set      func(w *world)
		template string
		fails    string
	}{
		"dhcp":   {set: wire(inventory.EventDHCP)},
		"loader": {set: wire(inventory.EventScript)},
		"agent":  {set: wire(inventory.EventHello)},
		"action timeout": {set: func(w *world) {
			w.agentFor = func(a inventory.Assignment) *action.Result {
				w.down = w.down || a.Key.Action == 0
				return success(a)
			}
		}},
		"stopping": {template: "short", fails: "did not end within its timeout", set: func(w *world) {
			w.short("")
			w.agentFor = func(a inventory.Assignment) *action.Result {
				w.beats(a, func() {
					w.down = true
					w.reports(a, action.Result{Key: a.Key, State: action.Stopped})
				})
				return nil
			}
		}},
		"reboot": {set: func(w *world) {
			w.agentFor = func(a inventory.Assignment) *action.Result {
				w.down = w.down || a.Payload.Leaving
				return success(a)
			}
		}},
		"ready": {set: func(w *world) {
			w.agentFor = func(a inventory.Assignment) *action.Result {
				if a.Payload.Leaving {
					w.after(30*time.Second, func() { w.down = true })
				}
				return success(a)
			}
		}},
		"global timeout": {template: "short", set: func(w *world) {
			w.short("global_timeout: 300")
			w.agentFor = func(a inventory.Assignment) *action.Result {
				w.down = w.down || a.Key.Action == 0
				return success(a)
			}
		}, fails: "global timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			c.set(w)
			err := w.run(contract.ProvisionInput{Machine: machine, Template: c.template})
			if c.fails == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.fails)
			}
			require.True(t, w.drained || len(w.waiters) > 0, "nothing waited in the database")
			if name == "global timeout" {
				require.Equal(t, action.Success, w.record().Actions[0].State)
			}
			require.Empty(t, w.asked)
			w.untouched()
		})
	}
}

// TestClockSetForwardInEachWait: the wall clock jumps past the deadline, and the machine
// takes its normal time.
func TestClockSetForwardInEachWait(t *testing.T) {
	success := func(a inventory.Assignment) *action.Result { return &action.Result{Key: a.Key, State: action.Success} }
	for name, c := range map[string]struct {
		set      func(w *world)
		template string
		fails    string
	}{
		"dhcp": {set: func(w *world) {
			w.bootDelay = 20 * time.Minute // ten of them pass only on the wall clock
			w.after(2*time.Minute, func() { w.jump(10 * time.Minute) })
		}},
		"loader": {set: func(w *world) {
			w.slowly(inventory.EventScript, time.Minute, 4*time.Minute, 8*time.Minute)
		}},
		"agent": {set: func(w *world) {
			w.slowly(inventory.EventHello, time.Minute, 7*time.Minute, 14*time.Minute)
		}},
		"action": {template: "short", set: func(w *world) {
			w.short("")
			w.agentFor = func(a inventory.Assignment) *action.Result {
				if a.Key.Action > 0 {
					return success(a)
				}
				w.after(time.Minute, func() { w.jump(9*time.Minute + 30*time.Second) })
				w.after(18*time.Minute, func() { w.reports(a, *success(a)) })
				return nil
			}
		}},
		"stopping": {template: "short", fails: "did not end within its timeout", set: func(w *world) {
			w.short("")
			w.agentFor = func(a inventory.Assignment) *action.Result {
				w.beats(a, func() {
					w.jump(55 * time.Second)
					w.after(100*time.Second, func() { w.reports(a, action.Result{Key: a.Key, State: action.Stopped}) })
				})
				return nil
			}
		}},
		"ready": {set: func(w *world) {
			w.noHome = true
			w.agentFor = func(a inventory.Assignment) *action.Result {
				if a.Payload.Leaving {
					w.after(5*time.Minute, func() { w.jump(15 * time.Minute) })
					w.after(33*time.Minute, func() { w.signal(inventory.EventPhoneHome, a.Epoch, a.Boot, nil) })
				}
				return success(a)
			}
		}},
		"global timeout": {template: "short", set: func(w *world) {
			w.short("global_timeout: 480")
			w.agentFor = func(a inventory.Assignment) *action.Result {
				if a.Key.Action > 0 {
					return success(a)
				}
				w.after(time.Minute, func() { w.jump(7 * time.Minute) })
				w.after(12*time.Minute, func() { w.reports(a, *success(a)) })
				return nil
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			c.set(w)
			err := w.run(contract.ProvisionInput{Machine: machine, Template: c.template})
			if c.fails == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.fails)
			}
			require.NotEmpty(t, w.hops)
			require.Empty(t, w.asked)
			w.untouched()
		})
	}
}

// slowly delays the machine's packets from kind on by this time, with a clock jump in
// between.
func (w *world) slowly(kind string, jumpAfter, jump, late time.Duration) {
	w.holdFrom, w.held = kind, late
	w.onWire = func(k string) {
		if k != kind {
			return
		}
		w.onWire = nil
		w.after(jumpAfter, func() { w.jump(jump) })
	}
}

// TestServerAwayWhileAMachineBoots: the server did not answer, so the machine's time starts
// again; repeated outages do not make it endless.
func TestServerAwayWhileAMachineBoots(t *testing.T) {
	w := newWorld(t, nil)
	w.bootDelay = 20 * time.Minute
	w.after(10*time.Minute, func() { w.started = w.elapsed() })
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	w.untouched()

	dead := newWorld(t, nil)
	dead.noPXEUntil = 1
	var restart func()
	restart = func() {
		dead.started = dead.elapsed() - 40*time.Second
		if dead.warm == 0 && !dead.env.IsWorkflowCompleted() {
			dead.after(time.Minute, restart)
		}
	}
	dead.after(time.Minute, restart)
	require.NoError(t, dead.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, dead.warm, "the ladder was climbed")
	dead.closed()
}

// TestClockSetForwardUnderADeadMachine: the run waits for the rest of the time, and not
// longer.
func TestClockSetForwardUnderADeadMachine(t *testing.T) {
	w := newWorld(t, nil)
	w.noPXEUntil = 1
	w.after(2*time.Minute, func() { w.jump(24 * time.Hour) })
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, w.warm, "it was started again")
	w.closed()
}

// TestClockBehindItsEventsAsks: after a clock jump forward that was reverted, the newest
// event is in the future, and only an operator knows which is correct.
func TestClockBehindItsEventsAsks(t *testing.T) {
	w := newWorld(t, nil)
	require.NoError(t, w.Store.Events.AppendEvents(t.Context(), []inventory.Event{{
		Machine: machine, Kind: inventory.EventOS, At: w.env.Now().Add(24 * time.Hour),
	}}))
	w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Continue} }
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Len(t, w.asked, 1)
	require.Contains(t, w.asked[0].Text, "behind the newest stored event")
	require.Equal(t, []string{contract.Retry, contract.Continue, contract.Abort}, w.asked[0].Choices)
	w.untouched()

	again := newWorld(t, nil)
	require.NoError(
		t,
		again.Store.Events.AppendEvents(
			t.Context(),
			[]inventory.Event{{Machine: machine, Kind: inventory.EventOS, At: again.env.Now().Add(24 * time.Hour)}},
		),
	)
	require.ErrorContains(t, again.run(contract.ProvisionInput{Machine: machine}), "aborted by the operator")
	require.Zero(t, again.cycles)
	again.closed()
}
