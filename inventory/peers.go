package inventory

import "time"

// A Peer is another server that may become this site, or has become it.
type Peer struct {
	Name        string    `json:"name"`
	URL         string    `json:"url"`                   // https://host:port of its peer API
	Fingerprint string    `json:"fingerprint,omitempty"` // sha256:<hex> of its key
	Since       time.Time `json:"since,omitzero"`
}

// RoleActive is the role of the server that is the site.
const RoleActive = "active"

// SiteStatus is what this server is among its peers.
type SiteStatus struct {
	Name  string `json:"name,omitempty"`
	Role  string `json:"role"` // active | standby | handing-over | retired
	Epoch int64  `json:"epoch,omitempty"`
	// Silent is why this server answers no machine although it knows of no other
	// active server; the operator may then decide.
	Silent    string    `json:"silent,omitempty"`
	Since     time.Time `json:"since,omitzero"` // of Silent
	Successor *Peer     `json:"successor,omitempty"`
	Peers     []Peer    `json:"peers"`
	// HandOver is the last hand-over whose source was this server.
	HandOver *HandOverStatus `json:"handOver,omitempty"`
	// Prepared is the hand-over that is ready here, Activated the one by which the
	// site came here.
	Prepared  string `json:"prepared,omitempty"`
	Activated string `json:"activated,omitempty"`
	// Intake is why new runs are refused.
	Intake string `json:"intake,omitempty"`
	Why    string `json:"why,omitempty"`
}

// HandOverStatus is a hand-over as its source knows it.
type HandOverStatus struct {
	ID    string    `json:"id"`
	Peer  string    `json:"peer"`
	State string    `json:"state"` // under-way | moved | failed
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// Decisions of the operator about a server that cannot know whether it is the site.
const (
	TakeOver = "take-over" // the other host is off: this server is the site
	GiveUp   = "give-up"   // the other server is the site: this one retires
)
