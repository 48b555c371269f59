package inventory

import (
	"encoding/json"
	"time"
)

// Kinds of events.
const (
	// Any host on the wire could forge these: they are only displayed and wake runs.
	EventDHCP     = "dhcp"     // DISCOVER or REQUEST of PXE class, answered with a boot file
	EventLoader   = "loader"   // boot loader fetched
	EventScript   = "script"   // iPXE script fetched
	EventKernel   = "kernel"   // agent OS kernel fetched
	EventInitrd   = "initrd"   // agent OS initramfs fetched whole
	EventRebooted = "rebooted" // PXE of a machine whose boot is spent, answered with disk or, in mid-run, with a wait
	EventDisk     = "disk"     // PXE of a machine that is not armed, answered with disk
	EventOS       = "os"       // DHCP without PXE class
	EventMetadata = "metadata" // metadata fetched
	// These are authenticated by a token, a claim or a nonce.
	EventHello         = "hello" // claim redeemed
	EventClaimConflict = "claim-conflict"
	EventActionStarted = "action-started"
	EventActionDone    = "action-completed" // Detail is an action.Result without its log
	EventAgentIdle     = "agent-idle"
	EventAgentLost     = "agent-lost"
	// EventBootLost: an allowed boot will not be claimed. Either a system on the machine's disk phoned home with the
	// nonce of the run that wrote it, or the machine has been silent since the server was started.
	EventBootLost      = "boot-lost"
	EventPhoneHome     = "phone-home"
	EventDocument      = "document"       // a document of the run was fetched under its capability path
	EventPayload       = "payload"        // the last payload of an installer was delivered whole; the boot is spent
	EventInstalled     = "installed"      // an installer says that it has succeeded
	EventInstallFailed = "install-failed" // an installer says that it has failed; Message says why
	// EventFenced is never stored: reconcile informs a run that another run has
	// taken its machine.
	EventFenced = "fenced"
	// What the run did.
	EventPhase    = "phase" // a phase began; Detail is a PhaseChange
	EventGrant    = "grant" // taken
	EventArmed    = "armed" // a boot was allowed
	EventDisarmed = "disarmed"
	EventPower    = "power"
	EventBound    = "bound"
	EventAssigned = "assigned"
	EventStop     = "stop"
	EventDecision = "decision"
	EventRetired  = "retired"  // decommissioned: available or quarantined, and why
	EventOperator = "operator" // a write by an operator
)

// ArmedForInstaller is the message of EventArmed when the boot is an installer's.
const ArmedForInstaller = "for the installer"

// An Event is one thing that a machine or a workflow did. Events are ordered.
type Event struct {
	Seq     int64  `json:"seq" db:"seq"`
	Machine string `json:"machine" db:"machine"`
	Run     string `json:"run,omitempty" db:"run"` // "" = not of any run
	Epoch   int64  `json:"epoch,omitempty" db:"epoch"`
	Boot    int    `json:"boot,omitempty" db:"boot"`
	Kind    string `json:"kind" db:"kind"`
	// Key makes an event unique within (machine, run, epoch, boot, kind): ""
	// for wire events, which share one row; the report id for
	// reports.
	Key     string          `json:"key,omitempty" db:"key"`
	At      time.Time       `json:"at" db:"-"`
	Count   int64           `json:"count" db:"count"` // how often, for wire events
	Message string          `json:"message,omitempty" db:"message"`
	Detail  json.RawMessage `json:"detail,omitempty" db:"-"`
	By      string          `json:"by,omitempty" db:"by"` // who, for operator events
}

// Event returns an event of a boot of o's run; boot 0: of the run.
func (o Owner) Event(boot int, kind, key, message string) Event {
	return Event{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: kind, Key: key, Message: message}
}

// PhaseChange is the detail of EventPhase.
type PhaseChange struct {
	Phase   string    `json:"phase"`
	Began   time.Time `json:"began"`             // by the workflow's clock
	Before  string    `json:"before,omitempty"`  // the phase that ended
	Seconds float64   `json:"seconds,omitempty"` // how long that took
}

// Signals reports whether the pump passes events of this kind on to the run.
func Signals(kind string) bool {
	switch kind {
	case EventDHCP, EventLoader, EventScript, EventKernel, EventInitrd, EventRebooted, EventHello, EventClaimConflict,
		EventActionDone, EventAgentIdle, EventAgentLost, EventBootLost, EventPhoneHome, EventDocument, EventPayload,
		EventInstalled, EventInstallFailed:
		return true
	}
	return false
}
