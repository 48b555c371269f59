package inventory

import (
	"time"
)

// Explanation says how this server would answer a machine now; "ingot why" prints it.
type Explanation struct {
	MAC     string `json:"mac"`
	Machine string `json:"machine,omitempty"`
	Verdict string `json:"verdict"`
	// Address is the address that DHCP gives; "" = no answer.
	Address string    `json:"address,omitempty"`
	Run     string    `json:"run,omitempty"`
	Epoch   int64     `json:"epoch,omitempty"`
	Boot    int       `json:"boot,omitempty"`
	Spent   bool      `json:"spent,omitempty"`
	Until   time.Time `json:"until,omitzero"`
	// Answers are the answers that each kind of client would get now.
	Answers []ClientAnswer `json:"answers,omitempty"`
	Reasons []string       `json:"reasons"`
	// Exchanges are the client's last requests to this server since its start, oldest first.
	Exchanges []Exchange `json:"heard,omitempty"`
	Lease     *DHCPLease `json:"lease,omitempty"`
}

// ClientAnswer is the answer for one kind of client.
type ClientAnswer struct {
	Client   string `json:"client"`
	BootFile string `json:"bootFile"` // "" = none
	Reason   string `json:"reason"`
}

// Exchange is a request of a client and its answer, as Explanation shows them.
type Exchange struct {
	At      time.Time `json:"at"`
	Where   string    `json:"where"` // interface, relay or protocol
	Request string    `json:"request"`
	Answer  string    `json:"answer"`
}
