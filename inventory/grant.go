package inventory

import (
	"strings"
	"time"
)

// Owner names who holds a grant: a run at its epoch. Every side effect carries
// one, and its SQL statement compares it with the grant (fencing).
type Owner struct {
	Machine string `json:"machine"`
	Run     string `json:"run"` // Temporal's RunID, or "operator:<name>"
	Epoch   int64  `json:"epoch"`
}

// MaxBoots is how many boots a run may take before an operator is asked.
const MaxBoots = 3

// Grant is the one row per machine that says who owns it.
//
// The row stays after the run ended, with Run empty and both windows closed:
// its Epoch only ever grows.
type Grant struct {
	Owner
	SiteEpoch int64  `json:"siteEpoch"`
	Workflow  string `json:"workflow,omitempty"` // workflow id, machine/<name>
	Boot      int    `json:"boot"`               // the boot that the window allows, from 1; 0 = none yet
	BootsLeft int    `json:"bootsLeft"`
	// Spent: the boot's claim was redeemed, or an installer's last payload was
	// delivered; PXE is answered with disk.
	Spent bool `json:"spent"`
	// Installer: the boot is another installer's, not the agent's.
	Installer bool `json:"installer,omitempty"`
	// Acting: the run's agent has been given actions, but not yet the last one, which
	// leaves the agent. The disk may hold half of an installation.
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

// OperatorPrefix is what the run of an operator's grant begins with; the operator's name follows.
const OperatorPrefix = "operator:"

// ByOperator reports whether an operator armed the machine by hand, for rescue.
func (g Grant) ByOperator() bool { return strings.HasPrefix(g.Run, OperatorPrefix) }

// Netboot is a grant as the API, the CLI and imports show it.
type Netboot struct {
	AllowPXE      bool      `json:"allowPXE"`            // the machine is sent to the agent
	AllowWorkflow bool      `json:"allowWorkflow"`       // a run holds the machine
	Run           string    `json:"run,omitempty"`       // that run
	Epoch         int64     `json:"epoch,omitempty"`     // of the grant
	Boot          int       `json:"boot,omitempty"`      // number of the boot in the run
	BootsLeft     int       `json:"bootsLeft,omitempty"` // that the run may still take
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
