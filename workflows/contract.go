// Package workflows holds the durable processes: what happens to machines, in which order,
// and what follows when a step fails.
package workflows

import (
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// TaskQueue is the queue that provisioning workers serve.
const TaskQueue = "ingot"

// WaitQueue is the queue of activities that only wait for another workflow's record. There
// may be as many as machines, so they must not use the slots of other activities.
const WaitQueue = "ingot-wait"

// Names of the workflow types, as they stand in records.
const (
	ProvisionType    = inventory.TypeProvision
	ReprovisionType  = inventory.TypeReprovision
	DecommissionType = inventory.TypeDecommission
	InspectType      = inventory.TypeInspect
	BMCJobType       = inventory.TypeBMCJob
	RecoverType      = inventory.TypeRecover
	MigrateType      = inventory.TypeMigrate
	GenesisType      = inventory.TypeGenesis
)

// A Registry registers workflows: a worker or a history replayer.
type Registry interface {
	RegisterWorkflowWithOptions(w any, o workflow.RegisterOptions)
}

// Register registers all workflows under their names.
func Register(r Registry) {
	for name, w := range map[string]any{
		ProvisionType: strict(Provision), ReprovisionType: strict(Reprovision),
		DecommissionType: strict(Decommission), InspectType: strict(Inspect), BMCJobType: strict(BMCJob),
		RecoverType: strict(Recover), MigrateType: strictWithoutResult(Migrate), GenesisType: strict(Genesis),
	} {
		r.RegisterWorkflowWithOptions(w, workflow.RegisterOptions{Name: name})
	}
}

// Names of signals, queries and updates.
const (
	// SignalEvent carries an Event: something observed on the network or reported by the
	// agent.
	SignalEvent = "event"
	// SignalActionCompleted carries an ActionCompleted.
	SignalActionCompleted = "action-completed"
	// SignalPoweredOn says that the operator has switched the machine on (no payload).
	SignalPoweredOn = "powered-on"
	// SignalDecide carries a Decision; UpdateDecide is the same, validated.
	SignalDecide = "decide"
	UpdateDecide = "decide"
	QueryStatus  = "status"
)

// Search attributes, all of type Keyword.
const (
	AttrMachine  = "IngotMachine"
	AttrTemplate = "IngotTemplate"
	AttrPhase    = "IngotPhase"
	AttrCluster  = "IngotCluster"
)

// MemoKeyedRequest is the memo with the id of the request with an Idempotency-Key that started a run.
const MemoKeyedRequest = "ingot-keyed-request"

// MachineID is the id of every workflow that owns a machine.
func MachineID(machine string) string { return "machine/" + machine }

// BMCJobID is the id of the operator's BMC job.
func BMCJobID(machine, job string) string { return "bmc/" + machine + "/" + job }

// JobOf returns the job of a BMC job's id, or "" for another id.
func JobOf(id string) string {
	if rest, ok := strings.CutPrefix(id, "bmc/"); ok {
		_, job, _ := strings.Cut(rest, "/")
		return job
	}
	return ""
}

// RecoverID is the id of a recovery; a name has at most one recovery at a time.
func RecoverID(name string) string { return "recover/" + name }

// MigrateID is the id of a migration.
func MigrateID(name string) string { return "migrate/" + name }

// GenesisID is the id of a bootstrap.
func GenesisID(name string) string { return "genesis/" + name }

// Retries is how often one run repeats its actions after a failure.
type Retries struct {
	Count int `json:"count,omitempty"` // default 0
	// From is where a retry starts: "failed-step" (default) or "start".
	From string `json:"from,omitempty"`
}

// Policies of a Provision.
const (
	Fail  = "fail"  // the run ends
	Pause = "pause" // the operator decides: Retry, Skip, Restart or Abort
)

// ProvisionInput starts Provision under the id machine/<machine>.
type ProvisionInput struct {
	Machine  string `json:"machine"`
	Template string `json:"template,omitempty"` // default: the machine's, then "image"
	Image    string `json:"image,omitempty"`    // default: the machine's
	// HardwareMap adds to the template's data, as in Tinkerbell's Workflow.
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
	Retries     Retries           `json:"retries,omitzero"`
	// Policy says what follows when an action failed or timed out and has no retries left:
	// Fail (default) or Pause.
	Policy string `json:"policy,omitempty"`
	// Resume names an earlier run of this machine. This run carries out that run's plan
	// again from the failed step.
	Resume string `json:"resume,omitempty"`
	// Parent is the workflow id of the operation that started this run. The operation finds
	// its runs by it.
	Parent string `json:"parent,omitempty"`
}

// DecommissionInput starts Decommission under the id machine/<machine>.
type DecommissionInput struct {
	Machine string `json:"machine"`
	// Wipe is how its disks are wiped: quick (the whole disk, which is the
	// default) or metadata.
	Wipe string `json:"wipe,omitempty"`
	// KeepAddress keeps the addresses of the interfaces.
	KeepAddress bool   `json:"keepAddress,omitempty"`
	Parent      string `json:"parent,omitempty"`
}

// RecoverInput starts Recover under the id recover/<name>: many machines are installed
// again, each by its own template.
type RecoverInput struct {
	Name string `json:"name"`
	// Machines are names; without them, Selector selects the machines that carry all its
	// labels.
	Machines []string          `json:"machines,omitempty"`
	Selector map[string]string `json:"selector,omitempty"`
	// Order lists groups of machines that are installed one group after another. Machines in
	// no group form the last group.
	Order [][]string `json:"order,omitempty"`
	// Concurrency is how many machines are installed at the same time, 2 by default.
	Concurrency int `json:"concurrency,omitempty"`
	// AbortAfter stops starting machines when this many have failed or wait for the
	// operator. Machines already started continue. 0 means no limit.
	AbortAfter int `json:"abortAfter,omitempty"`
	// Template is used instead of each machine's own.
	Template string `json:"template,omitempty"`
	// Continued is the state of the previous execution, which continued as new because its
	// history was full. Only the workflow sets it.
	Continued *RecoverState `json:"continued,omitempty"`
}

// RecoverState is the state that one execution of Recover hands to the next.
type RecoverState struct {
	Run     string    `json:"run"` // of the first execution, which names the record
	Started time.Time `json:"started"`
	Seq     int64     `json:"seq"` // of the newest record
	// Groups are the sizes of the groups of Machines, one after another.
	Groups   []int            `json:"groups"`
	Machines []RecoverMachine `json:"machines"`
}

// RecoverMachine is a row of the record without the fields that are equal in all rows.
type RecoverMachine struct {
	Machine string        `json:"machine"`
	State   string        `json:"state"` // of a step
	Run     string        `json:"run,omitempty"`
	Message string        `json:"message,omitempty"`
	Since   time.Time     `json:"since,omitzero"`
	Ended   time.Time     `json:"ended,omitzero"`
	Asked   time.Time     `json:"asked,omitzero"`
	Waited  time.Duration `json:"waited,omitempty"`
}

// Recovered is the result of a Recover. The workflow completes with it even if machines
// failed.
type Recovered struct {
	State    string             `json:"state"` // SUCCESS: all are installed
	Message  string             `json:"message"`
	Machines []RecoveredMachine `json:"machines"`
}

// Outcomes of a machine in a Recover.
const (
	OutcomeInstalled = "installed"
	OutcomeFailed    = "failed"
	// OutcomeWaiting: the run of the machine is still open and waits for the operator or for
	// the power button.
	OutcomeWaiting = "waiting-for-operator"
	// OutcomeNotBegun: the recovery was aborted before its turn.
	OutcomeNotBegun = "not-begun"
)

// RecoveredMachine is the outcome of one machine of a Recover.
type RecoveredMachine struct {
	Machine string `json:"machine"`
	Run     string `json:"run,omitempty"`
	Outcome string `json:"outcome"`
	Message string `json:"message,omitempty"`
}

// MigrateInput starts Migrate under the id migrate/<name>.
type MigrateInput struct {
	Name string `json:"name"`
	// Target is the name of the peer to move to, from this server's configuration or
	// inventory.
	Target string `json:"target"`
	// Genesis names the lab file whose router has the relay to switch. If empty, no relay is
	// switched.
	Genesis string `json:"genesis,omitempty"`
}

// GenesisInput starts Genesis under the id genesis/<name>. The lab file is stored in the
// inventory under that name.
type GenesisInput struct {
	Name string `json:"name"`
	// Resume skips steps that earlier runs of this name finished and that still work.
	Resume bool `json:"resume,omitempty"`
	// Again repeats every step. Without Again and Resume, a Genesis with machines that are
	// already installed is refused.
	Again bool `json:"again,omitempty"`
}

// InspectInput starts Inspect under the id machine/<machine>.
type InspectInput struct {
	Machine string `json:"machine"`
}

// BMCJobInput starts BMCJob under the id bmc/<machine>/<job>.
type BMCJobInput struct {
	Machine string              `json:"machine"`
	Job     string              `json:"job"`
	Tasks   []inventory.BMCTask `json:"tasks"`
	// Force takes the machine away from a live run, which then asks the operator.
	Force bool `json:"force,omitempty"`
}

// Event is the payload of SignalEvent.
type Event struct {
	Seq   int64  `json:"seq"`
	Kind  string `json:"kind"` // inventory.Event…
	Epoch int64  `json:"epoch"`
	Boot  int    `json:"boot"`
	// Key is the attempt that an agent-idle or agent-lost event is about.
	Key *action.Key `json:"key,omitempty"`
	// Message is what an installer reports at its end.
	Message string `json:"message,omitempty"`
}

// ActionCompleted is the payload of SignalActionCompleted. Log and output are in the
// database only.
type ActionCompleted struct {
	Key      action.Key   `json:"key"`
	State    action.State `json:"state"`
	ExitCode int          `json:"exitCode,omitempty"`
	Message  string       `json:"message,omitempty"` // at most 2 KiB
}

// Choices of a Decision.
const (
	Retry    = "retry"    // repeat the action or phase
	Skip     = "skip"     // go on as if the action had succeeded
	Restart  = "restart"  // start from the first phase
	Abort    = "abort"    // end the run as failed
	Continue = "continue" // the operator did what the question asked for
	Undo     = "undo"     // undo the step of an operation, then ask again
)

// Decision answers a Question.
type Decision struct {
	Question string `json:"question"` // Question.ID; a decision never answers a later question
	Choice   string `json:"choice"`
	By       string `json:"by,omitempty"`
	// DiskSelector answers the question about which disk to bind.
	DiskSelector *inventory.DiskSelector `json:"diskSelector,omitempty"`
}

// Status answers QueryStatus.
type Status struct {
	Machine  string                   `json:"machine"`
	Run      string                   `json:"run"`
	Epoch    int64                    `json:"epoch"`
	Boot     int                      `json:"boot"`
	State    string                   `json:"state"`
	Phase    string                   `json:"phase"`
	Action   string                   `json:"action,omitempty"`
	Message  string                   `json:"message,omitempty"`
	Deadline time.Time                `json:"deadline,omitzero"` // of the current wait
	Question *inventory.Question      `json:"question,omitempty"`
	Actions  []inventory.ActionRecord `json:"actions"`
}

// Outcome is the result of a run.
type Outcome struct {
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}
