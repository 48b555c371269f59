// Package workflows holds the durable processes: what happens to machines, in which order,
// and what follows when a step fails.
package workflows

import (
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TaskQueue is the queue that provisioning workers serve.
const TaskQueue = "ingot"

// WaitQueue is the queue of activities that only wait for another workflow's record. There
// may be as many as machines, so they must not use the slots of other activities.
const WaitQueue = "ingot-wait"

// A Registry registers workflows: a worker or a history replayer.
type Registry interface {
	RegisterWorkflowWithOptions(w any, o workflow.RegisterOptions)
}

// Register registers all workflows under their names.
func Register(r Registry) {
	for name, w := range map[string]any{
		inventory.TypeProvision: strict(Provision), inventory.TypeReprovision: strict(Reprovision),
		inventory.TypeDecommission: strict(Decommission), inventory.TypeInspect: strict(Inspect), inventory.TypeBMCJob: strict(BMCJob),
		inventory.TypeRecover: strict(Recover), inventory.TypeMigrate: strictWithoutResult(Migrate), inventory.TypeGenesis: strict(Genesis),
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

// GenesisID is the id of a bootstrap.
func GenesisID(name string) string { return "genesis/" + name }

// What clients of the API share with the workflows is declared in package contract.
type (
	Retries           = contract.Retries
	ProvisionInput    = contract.ProvisionInput
	DecommissionInput = contract.DecommissionInput
	RecoverInput      = contract.RecoverInput
	RecoverState      = contract.RecoverState
	RecoverMachine    = contract.RecoverMachine
	MigrateInput      = contract.MigrateInput
	InspectInput      = contract.InspectInput
	BMCJobInput       = contract.BMCJobInput
	Decision          = contract.Decision
)

// Policies of a Provision and choices of a Decision, as contract has them.
const (
	Fail  = contract.Fail
	Pause = contract.Pause

	Retry    = contract.Retry
	Skip     = contract.Skip
	Restart  = contract.Restart
	Abort    = contract.Abort
	Continue = contract.Continue
	Undo     = contract.Undo
)

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
