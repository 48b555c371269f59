package workflows

import (
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// kinds is a set of kinds of event, inventory.EventHello for example.
type kinds map[string]bool

func (k kinds) hasAny(of ...string) bool {
	return slices.ContainsFunc(of, func(kind string) bool { return k[kind] })
}

// signals holds what the run has learned from signals.
type signals struct {
	// received holds the events of the present boot. next holds the events of the boot after it, which may arrive early: the agent
	// may start the next boot without the run, and a repeated workflow task already has all later signals. previous holds the
	// events of the boot before it, whose installer was given up but may still report; previous is nil until a boot for an
	// installer begins.
	received, next, previous kinds

	helloBoot        int  // newest boot whose agent has sent its hello
	pxe              bool // the firmware has asked for network boot since this grant was taken
	poweredOn        bool // the operator has confirmed that the machine is on
	earlierAgent     bool // an agent of an earlier boot has reported during the present boot; see waitForStage
	conflict         bool // the claim of this boot was presented twice
	fenced           bool // the run does not own the machine any more
	held             bool // the server was restored from a backup in which this run was open
	installerMessage string

	results map[action.Key]ActionCompleted
	idle    map[action.Key]bool
	lost    map[action.Key]bool
}

func newSignals() signals {
	return signals{
		received: kinds{}, next: kinds{},
		results: map[action.Key]ActionCompleted{}, idle: map[action.Key]bool{}, lost: map[action.Key]bool{},
	}
}

// beginBoot makes the next boot the present one. If the new boot is for an installer, an earlier phone-home stays recorded, because
// a phone-home is valid in every boot and comes only once.
func (s *signals) beginBoot(installer bool) {
	phoned := installer && s.received[inventory.EventPhoneHome]
	if installer {
		s.previous = s.received
	}
	s.received, s.next, s.poweredOn, s.earlierAgent = s.next, kinds{}, false, false
	if phoned {
		s.received[inventory.EventPhoneHome] = true
	}
}

// returnToPreviousBoot makes the events of the previous boot the events of the present boot again.
func (s *signals) returnToPreviousBoot() {
	if s.previous != nil {
		s.received, s.previous = s.previous, nil
	}
}

// mergePreviousBoot makes the installer's events of the previous boot count for the present boot as well. Later events of this
// installer may carry the number of either boot, depending on how far the power operation got.
func (s *signals) mergePreviousBoot() {
	for _, kind := range installerKinds {
		if s.previous[kind] {
			s.received[kind] = true
		}
	}
	s.previous = s.received // both are now the same map, so later events of either boot count for both
}

// completed reports whether the report of an attempt has arrived.
func (s *signals) completed(k action.Key) bool {
	_, ok := s.results[k]
	return ok
}

// receiveSignals receives signals until the run ends; it drops events and reports of another epoch. It uses a selector with
// ReceiveAsync, because Receive skips a signal with an unreadable payload and would then block until the next signal of the same
// name, while signals of other names have to wait.
func (r *machineRun) receiveSignals(ctx workflow.Context) {
	s := workflow.NewSelector(ctx)
	add := func(name, description string, receive func(c workflow.ReceiveChannel)) {
		channel := workflow.GetSignalChannelWithOptions(ctx, name, workflow.SignalChannelOptions{Description: description})
		s.AddReceive(channel, func(c workflow.ReceiveChannel, _ bool) { receive(c) })
	}

	add(SignalEvent, "An event of the machine or its agent", func(c workflow.ReceiveChannel) {
		var e Event
		if c.ReceiveAsync(&e) && e.Epoch == r.grant.owner.Epoch {
			r.signals.take(e, r.boot, workflow.Now(ctx))
		}
	})

	add(SignalActionCompleted, "The agent's report on an action", func(c workflow.ReceiveChannel) {
		var d ActionCompleted
		if c.ReceiveAsync(&d) && !r.signals.completed(d.Key) && d.Key.Epoch == r.grant.owner.Epoch {
			r.signals.results[d.Key] = d
		}
	})

	add(SignalPoweredOn, "The operator has switched the machine on", func(c workflow.ReceiveChannel) {
		c.ReceiveAsync(nil)
		r.signals.poweredOn = true
	})

	for {
		s.Select(ctx)
	}
}

// take records the event e, which has arrived during the boot b. The caller has checked that e has the run's epoch.
func (s *signals) take(e Event, b boot, now time.Time) {
	speaks := e.Kind == inventory.EventHello || e.Kind == inventory.EventAgentIdle
	if speaks && e.Boot < b.number && now.Sub(b.began) > untilRestarted {
		s.earlierAgent = true
	}

	switch e.Kind {
	case inventory.EventHello:
		s.helloBoot = max(s.helloBoot, e.Boot)
	case inventory.EventClaimConflict:
		s.conflict = true
	case inventory.EventAgentIdle:
		var k action.Key // stays zero if the agent has no assignment
		if e.Key != nil {
			k = *e.Key
		}
		s.idle[k] = true
	case inventory.EventAgentLost:
		if e.Key != nil {
			s.lost[*e.Key] = true
		}
	case inventory.EventPhoneHome: // accepted from any boot: the nonce belongs to this run
		s.received[e.Kind] = true
		if s.previous != nil {
			s.previous[e.Kind] = true
		}
	case inventory.EventInstalled, inventory.EventInstallFailed:
		if s.takeOfBoot(e, b.number) {
			s.installerMessage = e.Message
		}
	case inventory.EventFenced:
		s.fenced = true
	case inventory.EventHeld:
		s.fenced, s.held = true, true
	default:
		// Every host on the network can forge these events. So they may end a wait, but never allow anything.
		s.pxe = s.pxe || slices.Contains(networkBootKinds, e.Kind)
		s.takeOfBoot(e, b.number)
	}
}

var networkBootKinds = []string{
	inventory.EventDHCP, inventory.EventLoader, inventory.EventScript, inventory.EventKernel, inventory.EventInitrd,
}

// takeOfBoot records an event of the present boot, of the next boot, or, if previous is set, of the previous boot. It returns false
// for an event of any other boot.
func (s *signals) takeOfBoot(e Event, present int) bool {
	switch e.Boot - present {
	case 0:
		s.received[e.Kind] = true
	case 1:
		s.next[e.Kind] = true
	case -1:
		if s.previous == nil {
			return false
		}
		s.previous[e.Kind] = true
	default:
		return false
	}
	return true
}

// explainLoss returns the error of a run that does not own its machine any more: errHeld or errFenced.
func (s *signals) explainLoss() error {
	if s.held {
		return errHeld
	}
	return errFenced
}
