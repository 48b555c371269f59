// Package workflows holds the Temporal workflows: what happens to machines, in which order, and what follows when
// a step fails.
package workflows

import (
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// TaskQueue is the task queue of the workflows and of all activities that are not in WaitQueue.
const TaskQueue = "ingot"

// WaitQueue is the task queue of activities that wait for the record of another workflow, or fetch images. There may be one
// for each machine, so they must not take the slots of other activities.
const WaitQueue = "ingot-wait"

// A Registry is where workflows are registered: a worker or a history replayer.
type Registry interface {
	RegisterWorkflowWithOptions(w any, o workflow.RegisterOptions)
}

// Register registers all workflows under their names.
func Register(r Registry) {
	for name, w := range map[string]any{
		inventory.TypeProvision: strict(Provision), inventory.TypeReprovision: strict(Reprovision),
		inventory.TypeDecommission: strict(Decommission), inventory.TypeInspect: strict(Inspect), inventory.TypeBMCJob: strict(BMCJob),
		inventory.TypeRecover: strict(Recover), inventory.TypeMigrate: strictWithoutResult(Migrate), inventory.TypeGenesis: strict(Genesis),
		inventory.TypeTogether: strict(ProvisionTogether),
	} {
		r.RegisterWorkflowWithOptions(w, workflow.RegisterOptions{Name: name})
	}
}

// Names of signals, queries and updates.
const (
	// SignalEvent carries an Event: something observed on the network or reported by the agent.
	SignalEvent = "event"
	// SignalActionCompleted carries an ActionCompleted.
	SignalActionCompleted = "action-completed"
	// SignalPoweredOn reports that the operator has switched the machine on (no payload).
	SignalPoweredOn = "powered-on"
	// SignalDecide and UpdateDecide carry a Decision. UpdateDecide fails if the decision is refused.
	SignalDecide = "decide"
	UpdateDecide = "decide"
	// UpdatePause carries a PauseOrder.
	UpdatePause = "pause"
	QueryStatus = "status"
)

// Search attributes, all of type Keyword.
const (
	AttrMachine  = "IngotMachine"
	AttrTemplate = "IngotTemplate"
	AttrPhase    = "IngotPhase"
	AttrCluster  = "IngotCluster"
)

// MemoKeyedRequest is the memo key for the id of an API request with an Idempotency-Key: the request that started the run.
const MemoKeyedRequest = "ingot-keyed-request"

// MachineID returns the workflow id of a run that owns the machine.
func MachineID(machine string) string { return "machine/" + machine }

// BMCJobID returns the workflow id of a BMC job of the operator.
func BMCJobID(machine, job string) string { return "bmc/" + machine + "/" + job }

// JobOf returns the name of the BMC job that has the given workflow id, or "" if the id belongs to another workflow.
func JobOf(id string) string {
	if rest, ok := strings.CutPrefix(id, "bmc/"); ok {
		_, job, _ := strings.Cut(rest, "/")
		return job
	}
	return ""
}

// GenesisID returns the workflow id of a Genesis.
func GenesisID(name string) string { return "genesis/" + name }

// Recovered is the result of Recover. The workflow completes with it even if machines have failed.
type Recovered struct {
	State    string             `json:"state"` // SUCCESS if all machines are installed
	Message  string             `json:"message"`
	Machines []RecoveredMachine `json:"machines"`
}

// Outcomes of a machine in a Recover.
const (
	OutcomeInstalled = "installed"
	OutcomeFailed    = "failed"
	// OutcomeWaiting means that the run of the machine is still open and waits for the operator or for the power button.
	OutcomeWaiting = "waiting-for-operator"
	// OutcomeNotBegun means that the recovery ended before it started a run for the machine.
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
	// Resume skips the steps that earlier runs of this name have finished, if their results still work.
	Resume bool `json:"resume,omitempty"`
	// Again repeats every step. Without Again and Resume, Genesis is refused if an earlier run has already installed
	// a machine.
	Again bool   `json:"again,omitempty"`
	By    string `json:"by,omitempty"` // see contract.ProvisionInput
}

// Event is the payload of SignalEvent.
type Event struct {
	Seq   int64  `json:"seq"`
	Kind  string `json:"kind"` // inventory.Event…
	Epoch int64  `json:"epoch"`
	Boot  int    `json:"boot"`
	// Key identifies the attempt that an agent-idle or agent-lost event is about.
	Key *action.Key `json:"key,omitempty"`
	// Message is the text with which an installer reports its end.
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

// Status is the result of QueryStatus for the run of a machine.
type Status struct {
	Machine  string                   `json:"machine"`
	Run      string                   `json:"run"`
	Epoch    int64                    `json:"epoch"`
	Boot     int                      `json:"boot"`
	State    string                   `json:"state"`
	Phase    string                   `json:"phase"`
	Action   string                   `json:"action,omitempty"`
	Message  string                   `json:"message,omitempty"`
	Deadline time.Time                `json:"deadline,omitzero"` // end of the current wait
	Question *inventory.Question      `json:"question,omitempty"`
	Actions  []inventory.ActionRecord `json:"actions"`
}

// Outcome is the result of a run, and of Genesis.
type Outcome struct {
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}
