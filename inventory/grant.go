package inventory

import (
	"strings"
	"time"
)

// Owner identifies the holder of a grant: a run at its epoch. Every side effect carries an Owner, and its SQL statement compares
// it with the grant (fencing).
type Owner struct {
	Machine string `json:"machine"`
	Run     string `json:"run"` // Temporal's RunID, or "operator:<name>"
	Epoch   int64  `json:"epoch"`
}

// MaxBoots is how many boots a run may take before an operator is asked.
const MaxBoots = 3

// Grant says which run owns a machine. Each machine has one.
//
// After the run has ended, the grant stays, with Run empty and both windows closed: its Epoch must only grow.
type Grant struct {
	Owner
	SiteEpoch int64  `json:"siteEpoch"`
	Workflow  string `json:"workflow,omitempty"` // workflow id, machine/<name>
	Boot      int    `json:"boot"`               // the boot that the window allows, from 1; 0 = none yet
	BootsLeft int    `json:"bootsLeft"`
	// Spent: the boot's claim was redeemed, or an installer's last payload was delivered. PXE requests are then answered with
	// a boot from disk.
	Spent bool `json:"spent"`
	// Installer: the machine boots another installer, not the agent.
	Installer bool `json:"installer,omitempty"`
	// Acting: the run's agent has been given actions, but not yet the action that leaves the agent. The disk may contain an
	// incomplete installation.
	Acting       bool      `json:"acting,omitempty"`
	NetbootUntil time.Time `json:"netbootUntil,omitzero"`
	SecretsUntil time.Time `json:"secretsUntil,omitzero"`
	Taken        time.Time `json:"taken,omitzero"`
}

// NetbootOpen reports whether the grant's netboot window is open at now and its
// boot is not spent.
func (g Grant) NetbootOpen(now time.Time) bool {
	return g.Run != "" && !g.Spent && g.Boot > 0 && now.Before(g.NetbootUntil)
}

// SecretsOpen reports whether the grant's secrets window is open at now.
func (g Grant) SecretsOpen(now time.Time) bool { return g.Run != "" && now.Before(g.SecretsUntil) }

// OperatorPrefix begins the Run of a grant that an operator holds; the operator's name follows.
const OperatorPrefix = "operator:"

// ByOperator reports whether an operator holds the grant, after arming the machine by hand for rescue.
func (g Grant) ByOperator() bool { return strings.HasPrefix(g.Run, OperatorPrefix) }

// Netboot is a grant as the API, the CLI and imports show it.
type Netboot struct {
	AllowPXE      bool      `json:"allowPXE"`            // PXE requests are answered with the agent
	AllowWorkflow bool      `json:"allowWorkflow"`       // a run holds the machine
	Run           string    `json:"run,omitempty"`       // the run or operator that holds the grant
	Epoch         int64     `json:"epoch,omitempty"`     // of the grant
	Boot          int       `json:"boot,omitempty"`      // number of the boot in the run
	BootsLeft     int       `json:"bootsLeft,omitempty"` // boots that the run may still take
	Until         time.Time `json:"until,omitzero"`      // when the netboot window closes
}

// View returns g as Netboot at now.
func (g Grant) View(now time.Time) Netboot {
	n := Netboot{AllowPXE: g.NetbootOpen(now), AllowWorkflow: g.Run != "" && !g.ByOperator()}
	if g.Run != "" {
		n.Run, n.Epoch, n.Boot, n.BootsLeft, n.Until = g.Run, g.Epoch, g.Boot, g.BootsLeft, g.NetbootUntil
	}
	return n
}
