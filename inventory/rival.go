package inventory

import (
	"fmt"
	"net/netip"
	"time"
)

// A Rival is another DHCP server on a network where this server gives the addresses. Any host there can
// forge one.
type Rival struct {
	Server netip.Addr `json:"server"`
	Where  string     `json:"where"`           // interface or relay
	Ingot  bool       `json:"ingot,omitempty"` // it is a server of Ingot, too
	// Machine is the machine that has chosen it; "" = it answered a probe.
	Machine string    `json:"machine,omitempty"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// String returns what was seen.
func (r Rival) String() string {
	what := "another DHCP server"
	if r.Ingot {
		what = "another server of Ingot"
	}
	if r.Machine != "" {
		return fmt.Sprintf("%s, %s, is chosen by machine %s (%s)", what, r.Server, r.Machine, r.Where)
	}
	return fmt.Sprintf("%s, %s, answers clients (%s)", what, r.Server, r.Where)
}
