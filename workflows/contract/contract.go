// Package contract holds the inputs of the workflows and the decisions that answer their questions: the types that
// clients of the API share with package workflows. It does not import Temporal.
package contract

import (
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/inventory"
)

// RecoverID returns the workflow id of a recovery. At most one recovery of the same name is open at a time.
func RecoverID(name string) string { return "recover/" + name }

// MigrateID returns the workflow id of a migration.
func MigrateID(name string) string { return "migrate/" + name }

// TogetherID returns the workflow id of an operation in which several machines carry out one template.
func TogetherID(name string) string { return "together/" + name }

// Retries limits how often a run may repeat failed actions. The limit is for all actions of the run together.
type Retries struct {
	Count int `json:"count,omitempty"` // retries in the whole run; default 0
	// From is where a retry starts: "failed-step" (default) or "start".
	From string `json:"from,omitempty"`
}

// Values of ProvisionInput.Policy: what follows when no retries are left.
const (
	Fail  = "fail"  // the run ends
	Pause = "pause" // the operator decides: Retry, Skip, Restart or Abort
)

// ProvisionInput starts Provision under the id machine/<machine>.
type ProvisionInput struct {
	Machine  string `json:"machine"`
	Template string `json:"template,omitempty"` // default: the machine's template, or "image" if it has none
	Image    string `json:"image,omitempty"`    // default: the machine's image
	// HardwareMap holds additional values for the template, as in Tinkerbell's Workflow.
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
	Retries     Retries           `json:"retries,omitzero"`
	// Policy sets what follows when an action has failed or timed out and no retries are left: Fail (default) or
	// Pause.
	Policy string `json:"policy,omitempty"`
	// Resume is the id of an earlier run of the machine. The new run carries out the plan of the earlier run again,
	// from the failed step.
	Resume string `json:"resume,omitempty"`
	// First refuses a machine on which Ingot may have installed a system.
	First bool `json:"first,omitempty"`
	// Parent is the workflow id of the operation that started this run. The operation uses it to find its runs.
	Parent string `json:"parent,omitempty"`
	// By is the name of the token with which the run, or its operation, was started; "" = it was started at Temporal. The API sets it.
	By string `json:"by,omitempty"`
}

// Together reports whether an operation ProvisionTogether has started the run. The run then carries out the tasks of its machine only,
// each when the tasks before it are done on the other machines.
func (in ProvisionInput) Together() bool { return strings.HasPrefix(in.Parent, TogetherID("")) }

// RetryTogether returns the command that retries the operation ProvisionTogether with this workflow id. Its runs are not retried alone.
func RetryTogether(id string) string {
	return "ingot together retry " + strings.TrimPrefix(id, TogetherID(""))
}

// TogetherInput starts ProvisionTogether under the id together/<name>: several machines carry out the tasks of one template, in the
// template's order.
type TogetherInput struct {
	Name     string `json:"name"`
	Template string `json:"template"`
	Image    string `json:"image,omitempty"` // default: the image of each machine
	// HardwareMap names the machines: the value of each key device_N is the name of a machine or the MAC address of one of its
	// interfaces. Other keys are additional values for the template, as in Tinkerbell's Workflow.
	HardwareMap map[string]string `json:"hardwareMap"`
	Retries     Retries           `json:"retries,omitzero"` // for each machine
	Policy      string            `json:"policy,omitempty"` // see ProvisionInput
	// Resume is the run of an earlier operation of this name. Machines that it has installed stay as they are; the others continue from
	// their failed step.
	Resume string `json:"resume,omitempty"`
	By     string `json:"by,omitempty"` // see ProvisionInput
}

// DecommissionInput starts Decommission under the id machine/<machine>.
type DecommissionInput struct {
	Machine string `json:"machine"`
	// Wipe is how the disks are wiped: quick (default; the whole disk) or metadata (only what identifies its
	// content).
	Wipe string `json:"wipe,omitempty"`
	// KeepAddress keeps the addresses of the machine's interfaces reserved.
	KeepAddress bool   `json:"keepAddress,omitempty"`
	Parent      string `json:"parent,omitempty"`
	By          string `json:"by,omitempty"` // see ProvisionInput
}

// RecoverInput starts Recover under the id recover/<name>: many machines are installed
// again, each by its own template.
type RecoverInput struct {
	Name string `json:"name"`
	// Machines are the names of the machines. If there are none, Recover installs the machines that Selector selects.
	Machines []string          `json:"machines,omitempty"`
	Selector selector.Selector `json:"selector,omitempty"`
	// Order lists groups of machines that are installed one group after another. Machines in
	// no group form the last group.
	Order [][]string `json:"order,omitempty"`
	// Concurrency is how many machines are installed at the same time, 2 by default.
	Concurrency int `json:"concurrency,omitempty"`
	// AbortAfter is a limit: once this many machines have failed or wait for the operator, no more machines are started. Machines
	// already started continue. 0 means no limit.
	AbortAfter int `json:"abortAfter,omitempty"`
	// Template and Image replace those of each machine.
	Template string `json:"template,omitempty"`
	Image    string `json:"image,omitempty"`
	// First means that the machines are installed for the first time, each by a run of Provision with First.
	First bool `json:"first,omitempty"`
	// Canary is how many machines come before all others, which are started only when the first ones are all installed. 0 means
	// none. It cannot be combined with Order.
	Canary int    `json:"canary,omitempty"`
	By     string `json:"by,omitempty"` // see ProvisionInput
	// Continued is the state that the previous execution handed over when it continued as new, because its history was full. Only
	// the workflow sets it.
	Continued *RecoverState `json:"continued,omitempty"`
}

// RecoverState is the state that one execution of Recover hands to the next.
type RecoverState struct {
	Run     string    `json:"run"` // run id of the first execution, which is also the id of the record
	Started time.Time `json:"started"`
	Seq     int64     `json:"seq"` // sequence number of the last write of the record
	// Groups holds the size of each group. Machines lists the first group, then the second, and so on.
	Groups   []int            `json:"groups"`
	Machines []RecoverMachine `json:"machines"`
	Paused   string           `json:"paused,omitempty"` // who has paused the recovery
}

// RecoverMachine is the step of one machine in the record of a recovery, without the fields that are the same for
// all machines.
type RecoverMachine struct {
	Machine string        `json:"machine"`
	State   string        `json:"state"` // inventory.StepPending, …
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
	// Genesis is the name of the lab file whose router has the DHCP relay to switch. If empty, no relay is switched.
	Genesis string `json:"genesis,omitempty"`
	By      string `json:"by,omitempty"` // see ProvisionInput
}

// InspectInput starts Inspect under the id machine/<machine>.
type InspectInput struct {
	Machine string `json:"machine"`
	By      string `json:"by,omitempty"` // see ProvisionInput
}

// BMCJobInput starts BMCJob under the id bmc/<machine>/<job>.
type BMCJobInput struct {
	Machine string              `json:"machine"`
	Job     string              `json:"job"`
	Tasks   []inventory.BMCTask `json:"tasks"`
	// Force takes the machine from an open run. That run does nothing more and waits until the operator aborts it.
	Force bool   `json:"force,omitempty"`
	By    string `json:"by,omitempty"` // see ProvisionInput
}

// PauseOrder pauses an operation, or lets it go on. While it is paused, it starts nothing new; what it has started goes on.
type PauseOrder struct {
	Paused bool   `json:"paused"`
	By     string `json:"by,omitempty"`
}

// Choices of a Decision.
const (
	Retry    = "retry"    // repeat the action or phase
	Skip     = "skip"     // continue without the action, step or machine that the question is about
	Restart  = "restart"  // start from the first phase
	Abort    = "abort"    // end the run as failed
	Continue = "continue" // the operator has done what the question asked for
	Undo     = "undo"     // undo the step of an operation, then ask again
)

// Decision answers an inventory.Question.
type Decision struct {
	Question string `json:"question"` // ID of the question; a decision never answers a later question
	Choice   string `json:"choice"`
	By       string `json:"by,omitempty"`
	// DiskSelector selects the disk to write. It may be set only with the choice Retry, in a decision about a
	// question that lists disks.
	DiskSelector *inventory.DiskSelector `json:"diskSelector,omitempty"`
}
