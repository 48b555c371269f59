package inventory

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/selector"
)

// Types of workflows, with the names that records and Temporal use. From TypeRecover on, they are operations; a workflow of another type
// belongs to one machine.
const (
	TypeProvision    = "Provision"
	TypeReprovision  = "Reprovision"
	TypeDecommission = "Decommission"
	TypeInspect      = "Inspect"
	TypeBMCJob       = "BMCJob"
	TypeRecover      = "Recover"
	TypeMigrate      = "Migrate"
	TypeGenesis      = "Genesis"
	TypeTogether     = "ProvisionTogether"
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
	PhaseInstall   = "install" // an installer other than the agent runs
	PhaseReady     = "ready"
	PhaseDone      = "done"
	PhaseFailed    = "failed"
	PhaseCancelled = "cancelled"
	PhaseWaiting   = "waiting-for-operator"
)

// States of a workflow, with the names that Tinkerbell v0.25 uses.
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

// FilterWaiting is used in a filter in place of a state. It selects the runs and operations that wait for an operator.
const FilterWaiting = "waiting"

// LegacyState returns the name that Tinkerbell before v0.25 used for state s. For "", it returns "".
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

// Final reports whether state is one in which a run has ended.
func Final(state string) bool {
	return state == StateSuccess || state == StateFailed || state == StateTimeout || state == StateCancelled
}

// A Workflow is the record of one run: it says what has happened in the run. How far the run has been executed is stored in Temporal.
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
	// Question is set while Phase is waiting-for-operator: it is what the operator is asked.
	Question *Question      `json:"question,omitempty"`
	Actions  []ActionRecord `json:"actions"`
	Disk     *action.Disk   `json:"disk,omitempty"`   // the disk bound to the run
	Digest   string         `json:"digest,omitempty"` // digest of the plan
	// Evidence is what showed, in a successful run, that the installed system is up: phone-home | webhook | talos | operator | weak. It is ""
	// for a run that is open, has failed or installs nothing.
	Evidence string `json:"evidence,omitempty"`
	// NoSystem: no action of the plan writes a system, so the run installs nothing even if it succeeds.
	NoSystem bool `json:"noSystem,omitempty"`
	// Installer: after the actions, the machine boots an installer other than the agent.
	Installer bool            `json:"installer,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	// By is the name of the token with which the run was started; "" = it was started at Temporal.
	By      string    `json:"by,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Updated time.Time `json:"updated"`
	// Trace is the trace of the run; nil if it has none.
	Trace *Trace `json:"trace,omitempty"`
	// SupersededBy is the id of a later run that installed or wiped the machine; "" = none. It is set when the record of that run is deleted.
	// A run with SupersededBy cannot be retried; see Successor in inventory/sqlite.
	SupersededBy string `json:"supersededBy,omitempty"`
	// Retrying lists the activities that have failed and are being retried. The API sets it. It is not stored, because the activity that fails
	// may be the one that stores records.
	Retrying []string `json:"retrying,omitempty"`
	// Seq numbers the records that the run writes, because times do not show their order: clocks are set back, and an activity of a lost
	// workflow task may write late.
	Seq int64 `json:"seq,omitempty"`
}

// StartedBy returns the name of the token with which a run or an operation with this input was started, or "".
func StartedBy(input json.RawMessage) string {
	var in struct {
		By string `json:"by"`
	}
	_ = json.Unmarshal(input, &in) // what is no object names no token
	return in.By
}

// IsOrder reports whether the run is one that installs or wipes its machine. If a machine has no open run, the state of the latest such run
// is shown as the machine's state.
func (w Workflow) IsOrder() bool {
	return w.Type == TypeProvision || w.Type == TypeReprovision || w.Type == TypeDecommission
}

// EvidenceWeak means that a run has installed a system and did not wait for a sign that the system is up.
const EvidenceWeak = "weak"

// Proven reports whether a run has succeeded and, if it installs a system, has evidence that the system is up. EvidenceWeak does not count
// as evidence.
func (w Workflow) Proven() bool {
	installs := w.Type == TypeProvision || w.Type == TypeReprovision
	return w.State == StateSuccess && (!installs || w.Evidence != "" && w.Evidence != EvidenceWeak)
}

// AwaitsOperator reports whether the run waits for an operator: for a decision, or for a press of the machine's power button.
func (w Workflow) AwaitsOperator() bool {
	return w.Phase == PhaseWaiting || w.Phase == PhasePower && w.Next != ""
}

// Resumes reports whether the run has ended and its command Next would start a new run that continues at the failed step.
func (w Workflow) Resumes() bool {
	return Final(w.State) && strings.Contains(w.Next, "--from failed-step")
}

// An ActionRecord says how far an action of a run is, or how it has ended.
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
	Log       string            `json:"log,omitempty"` // end of the action's log; set only if the request asks for it
	Done      int64             `json:"done,omitempty"`
	Total     int64             `json:"total,omitempty"`
}

// A Question is what a run asks an operator. The operator's decision contains the ID of the question.
type Question struct {
	ID      string        `json:"id"` // epoch.action.attempt or epoch.phase.n
	Text    string        `json:"text"`
	Choices []string      `json:"choices"`         // retry, skip, restart, abort, continue
	Disks   []action.Disk `json:"disks,omitempty"` // disks from which the operator chooses, if the question is about bind
	Since   time.Time     `json:"since"`
}

// A Plan says what a run will do. Its actions are rendered, but their references to secrets are not yet replaced by the secrets. The store
// encrypts the plan.
type Plan struct {
	Run           string          `json:"run"`
	Digest        string          `json:"digest"`
	Actions       []action.Action `json:"actions"`
	GlobalTimeout action.Seconds  `json:"globalTimeout"`
	// DiskAlias is the path by which the machine and the template name the run's disk.
	DiskAlias string `json:"diskAlias,omitempty"`
	// ImagesURL is the base URL that images had when the plan was made. The site may have moved to another address since.
	ImagesURL string `json:"imagesURL,omitempty"`
	// Installer is the installer that the machine boots after the actions; nil = none. Documents are what the installer or the installed
	// system reads.
	Installer *Installer `json:"installer,omitempty"`
	Documents []Document `json:"documents,omitempty"`
	// Turns are the tasks that wait for tasks of other machines, if several machines carry out the template together.
	Turns []Turn `json:"turns,omitempty"`
}

// A Turn says that a task waits until another machine has done its task.
type Turn struct {
	Task    string `json:"task"`    // the task that waits
	Machine string `json:"machine"` // the other machine
	After   string `json:"after"`   // its task
}

// An Assignment is one attempt at an action, which the agent fetches and carries out.
type Assignment struct {
	Owner
	Boot    int
	Key     action.Key
	Payload action.Assignment // sealed in the store
	// Writes: this action, or an earlier action of the plan, writes to the machine's disks. From then on, the system on the disks comes from
	// this boot; see Installation.
	Writes bool
	State  action.State
	StopAt time.Time // when the agent was ordered to stop; zero = it has no such order
	// NextUntil is set if the machine boots the installer after this attempt has succeeded: it is the time until which that boot is allowed.
	// The agent restarts the machine as soon as its report is acknowledged, so storing the report must also allow the boot.
	NextUntil time.Time
	Delivered time.Time
}

// An Agent is the agent that runs in one boot of a machine. It has redeemed the claim of this boot, and so got a token.
type Agent struct {
	Owner
	Boot     int
	Nonce    string
	Facts    action.Facts
	Hello    time.Time
	LastSeen time.Time
	Used     bool // the agent has used its token at least once
	Conflict bool
	Wrote    bool
	Revoked  bool
}

// A Redemption is an agent's request for a token. The agent redeems the claim that it got with its boot.
type Redemption struct {
	Owner
	Boot  int
	Hello action.Hello
	// TokenFor makes the agent's token from the agent's nonce. The store keeps only a hash of the token.
	TokenFor func(nonce string) string
	// SecretsUntil is until when the agent may get the secrets of the run.
	SecretsUntil time.Time
}

// A BMCJob is a list of tasks for a BMC, which are carried out in this order.
type BMCJob struct {
	Name    string    `json:"name"` // unique per machine
	Machine string    `json:"machine"`
	Run     string    `json:"run"`              // the run of this job; for a job within another run, that run
	Inline  bool      `json:"inline,omitempty"` // part of a Provision
	State   string    `json:"state"`
	Tasks   []BMCTask `json:"tasks"`
	Message string    `json:"message,omitempty"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
}

// A BMCTask is one request to a BMC: exactly one of Power, BootDevice, Media and RotatePassword is set. Where bmc.tinkerbell.org defines a
// name or a value, it is used here.
type BMCTask struct {
	Power      string      `json:"powerAction,omitempty"` // on off soft cycle reset status
	BootDevice *BootDevice `json:"bootDevice,omitempty"`
	// Media inserts an image into the virtual CD drive, or ejects the image that is in it.
	Media *VirtualMedia `json:"virtualMedia,omitempty"`
	// RotatePassword gives the BMC's user a new password, which the server generates and stores.
	RotatePassword bool `json:"rotatePassword,omitempty"`

	State   string  `json:"state,omitempty"`
	Message string  `json:"message,omitempty"` // what was read back after the request, and warnings
	Seconds float64 `json:"seconds,omitempty"`
}

// VirtualMedia says which image to insert into a machine's virtual CD drive.
type VirtualMedia struct {
	MediaURL string `json:"mediaURL"` // "" ejects
}

// Media is the image that a run has inserted into a machine's virtual CD drive.
type Media struct {
	Machine, Run, URL string
	BMC               string // KeyAddress of the BMC; "" = an earlier version of Ingot stored this record
}

// BootDevice says from which device a machine boots next.
type BootDevice struct {
	Device     string `json:"device"` // pxe http disk cdrom bios none
	Persistent bool   `json:"persistent,omitempty"`
	EFI        bool   `json:"efiBoot,omitempty"`
}

// WorkflowFilter selects records of runs. Zero values select all records.
type WorkflowFilter struct {
	Machine string
	State   string // a state, or FilterWaiting for runs that wait for an operator (AwaitsOperator)
	Open    bool   // only runs that have not ended
	// Selector selects runs by the labels of their machine. Unless it is empty, it selects no run of a deleted machine.
	Selector selector.Selector
	RunPage
	Limit int // 0 = 100
}

// RunPage says where a page begins in a list of runs or operations, which is sorted by start time.
type RunPage struct {
	Oldest bool // sort the oldest run first, instead of the newest
	// AfterStarted and AfterRun are the start time and the id of the last run on the page before. This run may have been deleted since.
	AfterStarted time.Time
	AfterRun     string
}

// MachineFilter selects machines. Zero values select all machines.
type MachineFilter struct {
	Selector   selector.Selector // only machines whose labels it selects
	State      string            // state of the machine's shown run (MachineState.Workflow), or FilterWaiting
	After      string            // only machines that come after this name in the sorted list
	Descending bool              // sort by name from Z to A
	Limit      int               // 0 = all
}

// EventFilter selects events. Zero values select all events.
type EventFilter struct {
	Machine string
	Run     string
	After   int64 // only events with a greater Seq (if Descending: with a smaller Seq); 0 = all events
	// Descending sorts the newest event first.
	Descending bool
	Limit      int // 0 = 1000
}

// AgentSeen says that an agent has contacted the server. Such contacts are collected in memory and stored several at a time.
type AgentSeen struct {
	Owner
	Boot     int
	LastSeen time.Time
	Wrote    bool
}
