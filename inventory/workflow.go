package inventory

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// Types of workflows, as named in records and in Temporal. The last three are operations, the others belong to a machine.
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

// FilterWaiting takes the place of a state in a filter: it selects the runs and operations that wait for an operator.
const FilterWaiting = "waiting"

// LegacyState returns the name that state s had in Tinkerbell before v0.25; "" for "".
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

// A Workflow is the record of one run: what happened in it. Temporal holds the state of its execution.
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
	// Message says what the run waits for, or why it ended. Next is the command with which an operator can continue.
	Message string `json:"message,omitempty"`
	Next    string `json:"next,omitempty"`
	// Question is what an operator is asked while Phase is waiting-for-operator.
	Question *Question      `json:"question,omitempty"`
	Actions  []ActionRecord `json:"actions"`
	Disk     *action.Disk   `json:"disk,omitempty"`   // the disk bound to the run
	Digest   string         `json:"digest,omitempty"` // digest of the plan
	// Evidence is what showed a successful run that the installed system is up: phone-home | webhook | talos | operator |
	// weak; "" for a run that is open, has failed or installs nothing.
	Evidence string `json:"evidence,omitempty"`
	// NoSystem: no action of the plan writes a system, so a successful run has installed nothing.
	NoSystem bool `json:"noSystem,omitempty"`
	// Installer: the machine boots another installer after the actions.
	Installer bool            `json:"installer,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	Started   time.Time       `json:"started"`
	Ended     time.Time       `json:"ended,omitzero"`
	Updated   time.Time       `json:"updated"`
	// Trace is the trace of the run; nil if it has none.
	Trace *Trace `json:"trace,omitempty"`
	// SupersededBy is a later run that installed or wiped the machine, and whose record was deleted. A superseded run is not
	// retried; see Successor in inventory/sqlite.
	SupersededBy string `json:"supersededBy,omitempty"`
	// Retrying lists the activities that failed and are being retried. The API sets it. It is never stored, because the
	// failing activity may be the one that writes to the store.
	Retrying []string `json:"retrying,omitempty"`
	// Seq numbers the records that the run writes. Their times do not give the order, because clocks are set back and the
	// activity of a lost workflow task may write late.
	Seq int64 `json:"seq,omitempty"`
}

// IsOrder reports whether the run is for installing or wiping its machine. A machine without an open run shows the state of the
// latest such run.
func (w Workflow) IsOrder() bool {
	return w.Type == TypeProvision || w.Type == TypeReprovision || w.Type == TypeDecommission
}

// EvidenceWeak is the evidence of a run that has installed a system without waiting for a sign that the system is up.
const EvidenceWeak = "weak"

// Proven reports whether a run has succeeded and has evidence, other than EvidenceWeak, that the installed system is up. A run
// that installs nothing needs no evidence.
func (w Workflow) Proven() bool {
	installs := w.Type == TypeProvision || w.Type == TypeReprovision
	return w.State == StateSuccess && (!installs || w.Evidence != "" && w.Evidence != EvidenceWeak)
}

// AwaitsOperator reports whether the run waits for an operator's decision, or for an
// operator to press the machine's power button.
func (w Workflow) AwaitsOperator() bool {
	return w.Phase == PhaseWaiting || w.Phase == PhasePower && w.Next != ""
}

// Resumes reports whether the run has ended and its Next command starts a run that continues at the failed step.
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
	Log       string            `json:"log,omitempty"` // end of the log; only if requested
	Done      int64             `json:"done,omitempty"`
	Total     int64             `json:"total,omitempty"`
}

// A Question is what an operator is asked. The operator's decision contains the ID of the question.
type Question struct {
	ID      string        `json:"id"` // epoch.action.attempt or epoch.phase.n
	Text    string        `json:"text"`
	Choices []string      `json:"choices"`         // retry, skip, restart, abort, continue
	Disks   []action.Disk `json:"disks,omitempty"` // disks to choose from, if the question is about bind
	Since   time.Time     `json:"since"`
}

// A Plan is what a run will do: rendered actions, whose references to secrets are not resolved. The store seals it.
type Plan struct {
	Run           string          `json:"run"`
	Digest        string          `json:"digest"`
	Actions       []action.Action `json:"actions"`
	GlobalTimeout action.Seconds  `json:"globalTimeout"`
	// DiskAlias is the path that machine and template use for the run's disk.
	DiskAlias string `json:"diskAlias,omitempty"`
	// ImagesURL was the base URL of images when the plan was made: the site may have
	// moved to another address since.
	ImagesURL string `json:"imagesURL,omitempty"`
	// Installer is what the machine boots after the actions; nil = nothing. Documents are what the installer or the installed
	// system reads.
	Installer *Installer `json:"installer,omitempty"`
	Documents []Document `json:"documents,omitempty"`
}

// An Assignment is an attempt at an action that the agent fetches.
type Assignment struct {
	Owner
	Boot    int
	Key     action.Key
	Payload action.Assignment // sealed in the store
	// Writes: this action or an earlier one of the plan writes to the machine's disks. What is on the disks then belongs to
	// this boot; see Installation.
	Writes bool
	State  action.State
	StopAt time.Time // when the agent was ordered to stop; zero = it was not
	// NextUntil is until when the installer's boot is allowed that follows the success of this attempt; zero = none follows.
	// The agent restarts the machine as soon as its report is acknowledged, so storing the report must also allow the boot.
	NextUntil time.Time
	Delivered time.Time
}

// An Agent is the agent that redeemed the claim of a boot.
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

// A Redemption is an agent's request to redeem the claim of its boot.
type Redemption struct {
	Owner
	Boot  int
	Hello action.Hello
	// TokenFor makes the agent's token from its nonce. The store keeps the hash of the token.
	TokenFor func(nonce string) string
	// SecretsUntil is when the secrets window of the run closes.
	SecretsUntil time.Time
}

// A BMCJob is an ordered list of BMC tasks.
type BMCJob struct {
	Name    string    `json:"name"` // unique per machine
	Machine string    `json:"machine"`
	Run     string    `json:"run"`              // the job's own run, or the run that contains the job
	Inline  bool      `json:"inline,omitempty"` // part of a Provision
	State   string    `json:"state"`
	Tasks   []BMCTask `json:"tasks"`
	Message string    `json:"message,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
}

// A BMCTask is one request to a BMC: exactly one of Power, BootDevice, Media and RotatePassword is set. Names and values are
// those of bmc.tinkerbell.org, if it defines them.
type BMCTask struct {
	Power      string      `json:"powerAction,omitempty"` // on off soft cycle reset status
	BootDevice *BootDevice `json:"bootDevice,omitempty"`
	// Media inserts an image into the virtual CD drive, or ejects what is in it.
	Media *VirtualMedia `json:"virtualMedia,omitempty"`
	// RotatePassword gives the BMC's user a new password, which the server generates and stores.
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

// WorkflowFilter selects records of workflows. Zero fields select all.
type WorkflowFilter struct {
	Machine string
	State   string // a state, or FilterWaiting for runs with Workflow.AwaitsOperator
	Open    bool   // only runs that have not ended
	// Labels are labels that the run's machine must all have.
	Labels map[string]string
	RunPage
	Limit int // 0 = 100
}

// RunPage is where a page of a list of runs or operations begins. The list is sorted by start time.
type RunPage struct {
	Oldest bool // the oldest run comes first, not the newest
	// AfterStarted and AfterRun are start time and id of the last run before the page. That run may have been deleted since.
	AfterStarted time.Time
	AfterRun     string
}

// MachineFilter selects machines. Zero fields select all.
type MachineFilter struct {
	Labels     map[string]string // the machine must have all of them
	State      string            // of MachineState.Workflow; also FilterWaiting
	After      string            // only machines that come after this name in the list
	Descending bool              // sorted by name from Z to A
	Limit      int               // 0 = all
}

// EventFilter selects events. Zero fields select all.
type EventFilter struct {
	Machine string
	Run     string
	After   int64 // only events with a greater Seq, or a smaller one when Descending; 0 = all
	// Descending: the newest event comes first.
	Descending bool
	Limit      int // 0 = 1000
}

// AgentSeen is a contact of an agent. Contacts are collected in memory and stored in batches.
type AgentSeen struct {
	Owner
	Boot     int
	LastSeen time.Time
	Wrote    bool
}
