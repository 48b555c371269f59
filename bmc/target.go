package bmc

import (
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// target is the state of one BMC. Only the operation that holds token may read or
// write the other fields.
type target struct {
	token   chan struct{}
	address string

	sessions float64   // that may be opened now
	counted  time.Time // when sessions was last updated
	loaded   bool      // refusals are those of the store
	refusals inventory.BMCRefusals
	who      string // keyed digest of the credentials that are used
	left     leftovers
	clear    time.Time // when AMT has last answered only without TLS
}

// bmcSession is a session with a Redfish service.
type bmcSession struct{ path, token string }

// leftovers are the sessions of earlier operations on a BMC that may still be open.
type leftovers struct {
	sessions []bmcSession // those that could not be deleted
	// searched: the BMC was asked for sessions that an earlier process of this server left open, or
	// whose log-in was not answered.
	searched bool
	// sessionsOnly: the BMC refused HTTP Basic authentication.
	sessionsOnly bool
}

// maxLeft is how many sessions of a BMC are remembered, because each operation tries to delete them all.
const maxLeft = 8

// add remembers a session. Of too many, the oldest is forgotten: it is the first to end by its time-out.
func (l *leftovers) add(s bmcSession) {
	l.sessions = append(l.sessions, s)
	l.sessions = l.sessions[max(0, len(l.sessions)-maxLeft):]
}
