package inventory

import (
	"encoding/json"
	"time"
)

// Kinds of events.
const (
	// Any host on the network can forge these events. They are only displayed, and wake up runs that wait.
	EventDHCP     = "dhcp"     // DISCOVER or REQUEST of PXE class, answered with a boot file
	EventLoader   = "loader"   // boot loader fetched
	EventScript   = "script"   // iPXE script fetched
	EventKernel   = "kernel"   // agent OS kernel fetched
	EventInitrd   = "initrd"   // agent OS initramfs fetched whole
	EventRebooted = "rebooted" // PXE request after the allowed boot had started, answered with a boot from disk or, during a run, with a wait
	EventDisk     = "disk"     // PXE request of a machine without an allowed boot, answered with a boot from disk
	EventOS       = "os"       // DHCP request without PXE class
	EventMetadata = "metadata" // metadata fetched
	// These events are authenticated by a token, a claim or a nonce.
	EventHello         = "hello" // claim redeemed
	EventClaimConflict = "claim-conflict"
	EventActionStarted = "action-started"
	EventActionDone    = "action-completed" // Detail is an action.Result without its log
	EventAgentIdle     = "agent-idle"
	EventAgentLost     = "agent-lost"
	// EventBootLost: the allowed boot will not start any more, so its claim will never be redeemed. Either a system on the machine's disk
	// phoned home with the nonce of the run that wrote it, or the machine has not had contact since this server was started.
	EventBootLost      = "boot-lost"
	EventPhoneHome     = "phone-home"
	EventDocument      = "document"       // a document of the run was fetched under its capability path
	EventPayload       = "payload"        // the last payload of an installer was delivered whole; PXE requests no longer start the installer
	EventInstalled     = "installed"      // an installer reports success
	EventInstallFailed = "install-failed" // an installer reports that it failed; Message is the reason
	// EventFenced is never stored. The reconcile loop only signals it, to a run whose machine was taken by another run.
	EventFenced = "fenced"
	// These events record what the run or an operator did.
	EventPhase    = "phase" // a phase began; Detail is a PhaseChange
	EventGrant    = "grant" // the grant was taken
	EventArmed    = "armed" // a boot was allowed
	EventDisarmed = "disarmed"
	EventPower    = "power"
	EventBound    = "bound"
	EventAssigned = "assigned"
	EventStop     = "stop"
	EventDecision = "decision"
	EventRetired  = "retired"  // the machine was decommissioned; says whether it is available or quarantined, and why
	EventOperator = "operator" // a write by an operator
)

// ArmedForInstaller is the message of EventArmed if the boot that was allowed starts an installer.
const ArmedForInstaller = "for the installer"

// An Event records one thing that a machine or a workflow did. Events are ordered.
type Event struct {
	Seq     int64  `json:"seq" db:"seq"`
	Machine string `json:"machine" db:"machine"`
	Run     string `json:"run,omitempty" db:"run"` // "" = the event belongs to no run
	Epoch   int64  `json:"epoch,omitempty" db:"epoch"`
	Boot    int    `json:"boot,omitempty" db:"boot"`
	Kind    string `json:"kind" db:"kind"`
	// Key makes an event unique among the events with the same machine, run, epoch, boot and kind. For reports, it contains the id of the
	// report. For events that any host can forge, it is "", so that equal events are stored only once, with their Count.
	Key     string          `json:"key,omitempty" db:"key"`
	At      time.Time       `json:"at" db:"-"`
	Count   int64           `json:"count" db:"count"` // how often the event occurred, if equal events are stored once
	Message string          `json:"message,omitempty" db:"message"`
	Detail  json.RawMessage `json:"detail,omitempty" db:"-"`
	By      string          `json:"by,omitempty" db:"by"` // the operator, for EventOperator
}

// Event returns an event of the given boot of o's run. Boot 0 means that the event belongs to no boot.
func (o Owner) Event(boot int, kind, key, message string) Event {
	return Event{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: kind, Key: key, Message: message}
}

// PhaseChange is the detail of EventPhase.
type PhaseChange struct {
	Phase   string    `json:"phase"`
	Began   time.Time `json:"began"`             // by the workflow's clock
	Before  string    `json:"before,omitempty"`  // the phase that ended
	Seconds float64   `json:"seconds,omitempty"` // how long Before took
}

// Signals reports whether events of this kind are sent to their run as Temporal signals.
func Signals(kind string) bool {
	switch kind {
	case EventDHCP, EventLoader, EventScript, EventKernel, EventInitrd, EventRebooted, EventHello, EventClaimConflict,
		EventActionDone, EventAgentIdle, EventAgentLost, EventBootLost, EventPhoneHome, EventDocument, EventPayload,
		EventInstalled, EventInstallFailed:
		return true
	}
	return false
}
