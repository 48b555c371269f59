package inventory

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// Types of workflows, as their records and Temporal have them: those of a
// machine, and operations.
const (
	TypeProvision    = "Provision"
	TypeReprovision  = "Reprovision"
	TypeDecommission = "Decommission"
	TypeInspect      = "Inspect"
	TypeBMCJob       = "BMCJob"
	TypeRecover      = "Recover"
	TypeMigrate      = "Migrate"
	TypeGenesis      = "Genesis"
)

// Phases of a run.
const (
	PhasePlan      = "plan"
	PhaseArm       = "arm"
	PhasePower     = "power"
	PhaseDHCP      = "dhcp"
	PhaseLoader    = "loader"
	PhaseAgent     = "agent"
	PhaseBind      = "bind"
	PhaseAction    = "action"
	PhaseStopping  = "stopping"
	PhaseDisarm    = "disarm"
	PhaseReboot    = "reboot"
	PhaseInstall   = "install" // another installer is at work
	PhaseReady     = "ready"
	PhaseDone      = "done"
	PhaseFailed    = "failed"
	PhaseCancelled = "cancelled"
	PhaseWaiting   = "waiting-for-operator"
)

// States of a workflow, named as in Tinkerbell v0.25.
const (
	StatePreparing = "PREPARING"
	StatePending   = "PENDING"
	StateRunning   = "RUNNING"
	StatePost      = "POST"
	StateSuccess   = "SUCCESS"
	StateFailed    = "FAILED"
	StateTimeout   = "TIMEOUT"
	StateCancelled = "CANCELLED"
)

// States lists all states of a workflow.
func States() []string {
	return []string{
		StatePreparing, StatePending, StateRunning, StatePost, StateSuccess, StateFailed, StateTimeout, StateCancelled,
	}
}

// FilterWaiting selects, in filters, the runs and operations that wait for an operator, whatever their state.
const FilterWaiting = "waiting"

// LegacyState returns the state's name in Tinkerbell before v0.25.
func LegacyState(s string) string {
	switch s {
	case StatePreparing, StatePending:
		return "STATE_PENDING"
	case StatePost, StateSuccess:
		return "STATE_SUCCESS"
	case StateCancelled:
		return "STATE_FAILED"
	case "":
		return ""
	}
	return "STATE_" + s
}

// Final reports whether a run in this state has ended.
func Final(state string) bool {
	return state == StateSuccess || state == StateFailed || state == StateTimeout || state == StateCancelled
}

// A Workflow is the record of one run. Temporal holds the execution state; the
// record keeps what happened.
type Workflow struct {
	Run      string `json:"run"` // Temporal's RunID
	ID       string `json:"id"`  // workflow id
	Type     string `json:"type"`
	Machine  string `json:"machine"`
	Template string `json:"template,omitempty"`
	Image    string `json:"image,omitempty"`
	Epoch    int64  `json:"epoch,omitempty"`
	State    string `json:"state"`
	Phase    string `json:"phase"`
	// Message says what the run waits for, or why it ended; Next the command that
	// helps.
	Message string `json:"message,omitempty"`
	Next    string `json:"next,omitempty"`
	// Question is what an operator is asked while Phase is waiting-for-operator.
	Question *Question      `json:"question,omitempty"`
	Actions  []ActionRecord `json:"actions"`
	Disk     *action.Disk   `json:"disk,omitempty"`   // as bound
	Digest   string         `json:"digest,omitempty"` // of the plan
	// Evidence is how a run that has succeeded knows that the installed system is up: phone-home | webhook | talos | operator |
	// weak; "" for a run that is open, has failed or installs nothing.
	Evidence string `json:"evidence,omitempty"`
	// NoSystem: no action of the plan writes a system. A success of the run installs nothing.
	NoSystem bool `json:"noSystem,omitempty"`
	// Installer: the machine boots another installer after the actions.
	Installer bool            `json:"installer,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	Started   time.Time       `json:"started"`
	Ended     time.Time       `json:"ended,omitzero"`
	Updated   time.Time       `json:"updated"`
	// Trace is the trace of the run; nil: it has none.
	Trace *Trace `json:"trace,omitempty"`
	// SupersededBy is a run that installed or wiped the machine after this one, and whose record was
	// deleted since. Such a run is not retried; see Store.Successor.
	SupersededBy string `json:"supersededBy,omitempty"`
	// Retrying lists the activities that failed and are being retried. The API fills
	// it in; it is never stored, because the store itself may fail.
	Retrying []string `json:"retrying,omitempty"`
	// Seq numbers the run's records. Times cannot order them: clocks are set back,
	// and the activity of a lost workflow task may write late.
	Seq int64 `json:"seq,omitempty"`
}

// IsOrder reports whether the run is for installing or wiping its machine. The state of a machine comes from such runs.
func (w Workflow) IsOrder() bool {
	return w.Type == TypeProvision || w.Type == TypeReprovision || w.Type == TypeDecommission
}

// EvidenceWeak is the evidence of a run that has installed a system and waited for no sign of it.
const EvidenceWeak = "weak"

// Proven reports whether a run has succeeded and knows that the installed system is up. Where nothing is installed, nothing is
// to be proven.
func (w Workflow) Proven() bool {
	installs := w.Type == TypeProvision || w.Type == TypeReprovision
	return w.State == StateSuccess && (!installs || w.Evidence != "" && w.Evidence != EvidenceWeak)
}

// AwaitsOperator reports whether the run waits for an operator's decision, or for an
// operator to press the machine's power button.
func (w Workflow) AwaitsOperator() bool {
	return w.Phase == PhaseWaiting || w.Phase == PhasePower && w.Next != ""
}

// Resumes reports whether the run has ended and its Next command would resume it.
func (w Workflow) Resumes() bool {
	return Final(w.State) && strings.Contains(w.Next, "--from failed-step")
}

// An ActionRecord is the state of an action of a run.
type ActionRecord struct {
	Name      string            `json:"name"`
	Task      string            `json:"task,omitempty"`
	Image     string            `json:"image,omitempty"`
	State     action.State      `json:"state"`
	Attempt   int               `json:"attempt,omitempty"`
	StartedAt time.Time         `json:"startedAt,omitzero"`
	Seconds   float64           `json:"seconds"`
	Message   string            `json:"message,omitempty"`
	Timeout   action.Seconds    `json:"timeout"`
	Output    map[string]string `json:"output,omitempty"`
	Log       string            `json:"log,omitempty"` // tail; only where asked for
	Done      int64             `json:"done,omitempty"`
	Total     int64             `json:"total,omitempty"`
}

// A Question is what an operator is asked. A decision names its ID.
type Question struct {
	ID      string        `json:"id"` // epoch.action.attempt or epoch.phase.n
	Text    string        `json:"text"`
	Choices []string      `json:"choices"`         // retry, skip, restart, abort, continue
	Disks   []action.Disk `json:"disks,omitempty"` // for bind
	Since   time.Time     `json:"since"`
}

// A Plan is what a run will do: rendered actions, secret references
// unresolved. The store keeps the actions sealed.
type Plan struct {
	Run           string          `json:"run"`
	Digest        string          `json:"digest"`
	Actions       []action.Action `json:"actions"`
	GlobalTimeout action.Seconds  `json:"globalTimeout"`
	// DiskAlias is the path by which machine and template name the disk.
	DiskAlias string `json:"diskAlias,omitempty"`
	// ImagesURL was the base URL of images when the plan was made: the site may have
	// moved to another address since.
	ImagesURL string `json:"imagesURL,omitempty"`
	// Installer is what the machine boots after the actions, nil for none, and
	// Documents what it reads.
	Installer *Installer `json:"installer,omitempty"`
	Documents []Document `json:"documents,omitempty"`
}

// An Assignment is an attempt at an action as the agent's poll reads it.
type Assignment struct {
	Owner
	Boot    int
	Key     action.Key
	Payload action.Assignment // sealed in the store
	// Writes: this action or one before it in the plan writes to the machine's disks.
	// From here on they are this boot's; see Installation.
	Writes bool
	State  action.State
	StopAt time.Time // zero, or when the agent was told to stop
	// NextUntil: with its success the next boot begins, an installer's, and is
	// allowed until then; zero: not so. Its agent restarts the machine as soon as
	// the report is acknowledged, so the server must allow it in advance.
	NextUntil time.Time
	Delivered time.Time
}

// An Agent is the agent of a boot: who redeemed the claim.
type Agent struct {
	Owner
	Boot     int
	Nonce    string
	Facts    action.Facts
	Hello    time.Time
	LastSeen time.Time
	Used     bool // the token was used at least once
	Conflict bool
	Wrote    bool
	Revoked  bool
}

// A Redemption exchanges the claim of a boot for an agent.
type Redemption struct {
	Owner
	Boot  int
	Hello action.Hello
	// TokenFor makes the agent's token from its nonce. The store keeps its hash.
	TokenFor func(nonce string) string
	// SecretsUntil is when the run's secrets are not served any more.
	SecretsUntil time.Time
}

// A BMCJob is an ordered list of BMC tasks.
type BMCJob struct {
	Name    string    `json:"name"` // unique per machine
	Machine string    `json:"machine"`
	Run     string    `json:"run"`              // its own run, or the run that did it inline
	Inline  bool      `json:"inline,omitempty"` // part of a Provision
	State   string    `json:"state"`
	Tasks   []BMCTask `json:"tasks"`
	Message string    `json:"message,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
}

// A BMCTask is one thing a BMC does: exactly one of Power, BootDevice, Media and RotatePassword,
// in the words of bmc.tinkerbell.org where it has them.
type BMCTask struct {
	Power      string      `json:"powerAction,omitempty"` // on off soft cycle reset status
	BootDevice *BootDevice `json:"bootDevice,omitempty"`
	// Media inserts an image into the virtual CD drive, or ejects what is in it.
	Media *VirtualMedia `json:"virtualMedia,omitempty"`
	// RotatePassword gives the BMC's user a new password, which the server makes and keeps.
	RotatePassword bool `json:"rotatePassword,omitempty"`

	State   string  `json:"state,omitempty"`
	Message string  `json:"message,omitempty"` // what was read back, warnings
	Seconds float64 `json:"seconds,omitempty"`
}

// VirtualMedia is an image for a machine's virtual CD drive.
type VirtualMedia struct {
	MediaURL string `json:"mediaURL"` // "" ejects
}

// Media is the image that a run has inserted into a machine's virtual CD drive.
type Media struct {
	Machine, Run, URL string
	BMC               string // the BMC's KeyAddress; "" = recorded by an earlier version
}

// BootDevice is what a machine boots next.
type BootDevice struct {
	Device     string `json:"device"` // pxe http disk cdrom bios none
	Persistent bool   `json:"persistent,omitempty"`
	EFI        bool   `json:"efiBoot,omitempty"`
}

// WorkflowFilter narrows a list of workflow records; zero fields do not count.
type WorkflowFilter struct {
	Machine string
	State   string // or FilterWaiting: Workflow.AwaitsOperator
	Open    bool   // only those that are not final
	// Labels are carried by the machine, all of them.
	Labels map[string]string
	RunPage
	Limit int // 0 = 100
}

// RunPage is where a list of runs or operations begins; it is sorted by the time of
// their start.
type RunPage struct {
	Oldest bool // the oldest first, not the newest
	// AfterStarted and AfterRun name the run after which the list goes on; the run
	// may have been deleted since.
	AfterStarted time.Time
	AfterRun     string
}

// MachineFilter narrows a list of machines; zero fields do not count.
type MachineFilter struct {
	Labels     map[string]string // all of them
	State      string            // of the shown run, as in WorkflowFilter
	After      string            // only machines whose name comes after this one
	Descending bool              // by name, the last first
	Limit      int               // 0 = all
}

// EventFilter narrows a list of events; zero fields do not count.
type EventFilter struct {
	Machine string
	Run     string
	After   int64 // only events with a greater Seq, or a smaller one when Descending; 0 = all
	// Descending: the newest first.
	Descending bool
	Limit      int // 0 = 1000
}

// AgentSeen is a sign of life, gathered in memory and flushed in batches.
type AgentSeen struct {
	Owner
	Boot     int
	LastSeen time.Time
	Wrote    bool
}
