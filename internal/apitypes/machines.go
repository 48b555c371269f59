// Package apitypes declares what the server and the clients of the API encode and decode. It needs no server.
package apitypes

import (
	"time"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// A MachineView is a machine with its netboot window, shown run and agent.
type MachineView struct {
	inventory.Machine
	Netboot  inventory.Netboot   `json:"netboot"`
	Workflow *inventory.Workflow `json:"workflow"` // an open run, or the latest that installed or wiped it, or null
	// Installed is what the last run that wrote to the disk installed; nil if the inventory
	// knows of none.
	Installed *inventory.Installed `json:"installed,omitempty"`
	LastSeen  time.Time            `json:"lastSeen,omitzero"`
	// Firmware is vendor, version and date of the machine's firmware, as its newest agent has found it. Only in
	// the view of a single machine.
	Firmware string `json:"firmware,omitempty"`
}

// BMCCheck says whether a BMC accepted the login, and what it reported. Message says why it
// did not.
type BMCCheck struct {
	OK bool `json:"ok"`
	*inventory.BMCReport
	Message string `json:"message,omitempty"`
}

// Started is a run that was started.
type Started struct {
	Workflow string `json:"workflow"`
	Run      string `json:"run"`
	Job      string `json:"job,omitempty"`
	// Existing: a job of this name and with these tasks was started before, and no other one was.
	Existing bool `json:"existing,omitempty"`
}

// Installation is the body of the routes that install a machine: fields that override those
// of the machine for this run.
type Installation struct {
	Template    string            `json:"template,omitempty"`
	Image       string            `json:"image,omitempty"`
	Retries     contract.Retries  `json:"retries,omitzero"`
	Policy      string            `json:"policy,omitempty"`
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
}
