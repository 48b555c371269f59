// Package apitypes declares the JSON bodies that both the server and the clients of the API use. It does not import the
// server.
package apitypes

import (
	"strconv"
	"time"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// A MachineView is a machine with its current state: the netboot window, the run, the installed system and the agent.
type MachineView struct {
	inventory.Machine
	Netboot  inventory.Netboot   `json:"netboot"`
	Workflow *inventory.Workflow `json:"workflow"` // the machine's open run, otherwise the latest run that installed or wiped it, or null
	// Installed is the installed system, according to the last run that wrote to the disk; nil if the inventory has no
	// such run.
	Installed *inventory.Installed `json:"installed,omitempty"`
	LastSeen  time.Time            `json:"lastSeen,omitzero"`
	// Firmware holds vendor, version and date of the machine's firmware, as its newest agent has reported them.
	// Firmware is set only if a single machine is requested.
	Firmware string `json:"firmware,omitempty"`
	// Warnings are probable mistakes, and secrets that a change has deleted. Only the answer to a change has them.
	Warnings []string `json:"warnings,omitempty"`
}

// ETag returns the version of the machine as the header ETag of HTTP.
func (m MachineView) ETag() string { return strconv.Quote(strconv.FormatInt(m.Version, 10)) }

// BMCCheck is the result of a login to a BMC. If OK is true, BMCReport is what the BMC has reported; otherwise Message
// is the reason.
type BMCCheck struct {
	OK bool `json:"ok"`
	*inventory.BMCReport
	Message string `json:"message,omitempty"`
}

// Started identifies a run that a request has started. If the run is a BMC job, Job is the name of the job.
type Started struct {
	Workflow string `json:"workflow"`
	Run      string `json:"run"`
	Job      string `json:"job,omitempty"`
	// Existing means that this request has started nothing, because an earlier request has started this job, with the
	// same name and tasks.
	Existing bool `json:"existing,omitempty"`
	// Machines are the machines that a dry run has found.
	Machines []string `json:"machines,omitempty"`
}

// Installation is the body of the routes that install a machine. Its fields apply to this run only; its template and
// its image override those of the machine.
type Installation struct {
	Template    string            `json:"template,omitempty"`
	Image       string            `json:"image,omitempty"`
	Retries     contract.Retries  `json:"retries,omitzero"`
	Policy      string            `json:"policy,omitempty"`
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
}
