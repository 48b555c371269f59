package inventory

import "time"

// A Peer is another server to which this site may move, or has moved.
type Peer struct {
	Name        string    `json:"name"`
	URL         string    `json:"url"`                   // https://host:port of the peer API
	Fingerprint string    `json:"fingerprint,omitempty"` // sha256:<hex> of the peer's key
	Since       time.Time `json:"since,omitzero"`
}

// RoleActive is the role of the server that answers the machines of the site. The site has one active server at a time.
const RoleActive = "active"

// SiteStatus is the role of this server among its peers.
type SiteStatus struct {
	Name  string `json:"name,omitempty"`
	Role  string `json:"role"` // active | standby | handing-over | retired
	Epoch int64  `json:"epoch,omitempty"`
	// Silent is why this server answers no machine although it knows of no other active server; "" if this server is not silent. While it is
	// silent, an operator may decide by TakeOver or GiveUp.
	Silent    string    `json:"silent,omitempty"`
	Since     time.Time `json:"since,omitzero"` // since when it is silent
	Successor *Peer     `json:"successor,omitempty"`
	Peers     []Peer    `json:"peers"`
	// HandOver is the last hand-over from this server to another one.
	HandOver *HandOverStatus `json:"handOver,omitempty"`
	// Prepared is the id of the hand-over whose site was received here and is not active yet. Activated is the id of the hand-over that moved
	// the site to this server.
	Prepared  string `json:"prepared,omitempty"`
	Activated string `json:"activated,omitempty"`
	// Intake is why new runs are refused; "" if they are accepted.
	Intake string `json:"intake,omitempty"`
	Why    string `json:"why,omitempty"`
}

// HandOverStatus is the state of a hand-over on its source.
type HandOverStatus struct {
	ID    string    `json:"id"`
	Peer  string    `json:"peer"`
	State string    `json:"state"` // under-way | moved | failed
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// Decisions of the operator about a server that cannot find out whether it is the active one.
const (
	TakeOver = "take-over" // the other host is off: this server becomes the active one
	GiveUp   = "give-up"   // the other server is the active one: this server retires
)
