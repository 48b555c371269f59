// Package contract holds what starts a workflow and what answers one: the part of the contract of package workflows that
// clients of the API share. It does not need Temporal.
package contract

import (
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// RecoverID is the id of a recovery; a name has at most one recovery at a time.
func RecoverID(name string) string { return "recover/" + name }

// MigrateID is the id of a migration.
func MigrateID(name string) string { return "migrate/" + name }

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
