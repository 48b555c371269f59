package inventory

import (
	"strings"
	"time"
)

// Owner identifies the holder of a grant: a run at its epoch. Every side effect of a run carries an Owner, and its SQL statement changes
// nothing unless the grant still has this Owner (fencing).
type Owner struct {
	Machine string `json:"machine"`
	Run     string `json:"run"` // Temporal's RunID, or "operator:<name>"
	Epoch   int64  `json:"epoch"`
}

// Claimant is a run that asks for the grant of a machine.
type Claimant struct {
	Machine  string `json:"machine"`
	Run      string `json:"run"`
	Workflow string `json:"workflow"` // workflow id of the run
}

// MaxBoots is how many boots a run may take before an operator is asked.
const MaxBoots = 3

// Grant says which run owns a machine, until when the machine may boot from the network (the netboot window), and until when the run's
// secrets are served (the secrets window). Each machine has one grant.
//
// After the run has ended, the grant stays, because its Epoch must never decrease. Run is then empty, and both windows are closed.
type Grant struct {
	Owner
	SiteEpoch int64  `json:"siteEpoch"`
	Workflow  string `json:"workflow,omitempty"` // workflow id, machine/<name>
	Boot      int    `json:"boot"`               // number of the boot that the netboot window allows, from 1; 0 = none yet
	BootsLeft int    `json:"bootsLeft"`
	// Spent: the allowed boot has started, because its claim was redeemed or an installer's last payload was delivered. PXE requests are then
	// answered with a boot from disk.
	Spent bool `json:"spent"`
	// Installer: the boot starts another installer instead of the agent.
	Installer bool `json:"installer,omitempty"`
	// Acting: the run's agent has got actions, but not yet the action that ends the agent's work. The disk may contain an incomplete
	// installation.
	Acting bool `json:"acting,omitempty"`
	// AddressClosed: the run has started a container, which could ask the metadata server from the machine's address. So the server gives no
	// user data by this address; see Machine.UserDataByAddress. It ends with the action that ends the
	// agent's work, and pauses during an action that is to read this user data.
	AddressClosed bool `json:"addressClosed,omitempty"`

	NetbootUntil time.Time `json:"netbootUntil,omitzero"`
	SecretsUntil time.Time `json:"secretsUntil,omitzero"`
	Taken        time.Time `json:"taken,omitzero"`
}

// NetbootOpen reports whether the machine may boot from the network now: the grant's netboot window is open, and its boot is not spent.
func (g Grant) NetbootOpen(now time.Time) bool {
	return g.Run != "" && !g.Spent && g.Boot > 0 && now.Before(g.NetbootUntil)
}

// SecretsOpen reports whether the run's secrets are served now: the grant's secrets window is open.
func (g Grant) SecretsOpen(now time.Time) bool { return g.Run != "" && now.Before(g.SecretsUntil) }

// OperatorPrefix begins the Run of a grant that an operator holds; the operator's name follows.
const OperatorPrefix = "operator:"

// ByOperator reports whether an operator holds the grant because the operator has armed the machine by hand, for rescue.
func (g Grant) ByOperator() bool { return strings.HasPrefix(g.Run, OperatorPrefix) }

// Netboot shows a grant in the API, the CLI and imports.
type Netboot struct {
	AllowPXE      bool      `json:"allowPXE"`            // PXE requests are answered with the agent
	AllowWorkflow bool      `json:"allowWorkflow"`       // a run holds the machine
	Run           string    `json:"run,omitempty"`       // the run or operator that holds the grant
	Epoch         int64     `json:"epoch,omitempty"`     // of the grant
	Boot          int       `json:"boot,omitempty"`      // number of the boot in the run
	BootsLeft     int       `json:"bootsLeft,omitempty"` // boots that the run may still take
	Until         time.Time `json:"until,omitzero"`      // when the netboot window closes
}

// View returns the Netboot that shows g at the time now.
func (g Grant) View(now time.Time) Netboot {
	n := Netboot{AllowPXE: g.NetbootOpen(now), AllowWorkflow: g.Run != "" && !g.ByOperator()}
	if g.Run != "" {
		n.Run, n.Epoch, n.Boot, n.BootsLeft, n.Until = g.Run, g.Epoch, g.Boot, g.BootsLeft, g.NetbootUntil
	}
	return n
}
