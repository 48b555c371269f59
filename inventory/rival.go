package inventory

import (
	"fmt"
	"net/netip"
	"time"
)

// A Rival is another DHCP server on a network where this server gives the addresses. Any host on that network can forge the answers of one.
type Rival struct {
	Server netip.Addr `json:"server"`
	Where  string     `json:"where"`           // interface or relay
	Ingot  bool       `json:"ingot,omitempty"` // the rival is a server of Ingot, too
	// Machine is the machine that has chosen the offer of the rival; "" = the rival only answered a probe of this server.
	Machine string    `json:"machine,omitempty"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// String describes r in one sentence.
func (r Rival) String() string {
	what := "another DHCP server"
	if r.Ingot {
		what = "another Ingot server"
	}
	if r.Machine != "" {
		return fmt.Sprintf("%s at %s was chosen by machine %s (%s)", what, r.Server, r.Machine, r.Where)
	}
	return fmt.Sprintf("%s at %s answers clients (%s)", what, r.Server, r.Where)
}
