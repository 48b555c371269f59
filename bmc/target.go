package bmc

import (
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// target is what the operations on one BMC share. An operation may access the fields below address only while it holds
// token.
type target struct {
	token   chan struct{}
	address string

	sessions float64   // how many sessions the rate limit permits now
	counted  time.Time // when sessions was last updated
	loaded   bool      // the field refusals was read from the store
	refusals inventory.BMCRefusals
	who      string // keyed digest of the credentials in use
	left     leftovers
	clear    time.Time // when AMT last answered only on the port without TLS
}

// bmcSession is a session on a Redfish service.
type bmcSession struct{ path, token string }

// leftovers are the sessions of earlier operations that may still be open on a BMC.
type leftovers struct {
	sessions []bmcSession // sessions that could not be deleted
	// searched reports whether searchLeftovers has already searched the BMC for sessions that an earlier process left
	// open, or whose log-ins were not answered.
	searched bool
	// sessionsOnly reports whether the BMC has refused HTTP Basic authentication.
	sessionsOnly bool
}

// maxLeft limits how many sessions of a BMC are stored, because each operation tries to delete all of them.
const maxLeft = 8

// add stores a session. If there are too many sessions, it drops the oldest, because the BMC ends the oldest session
// first.
func (l *leftovers) add(s bmcSession) {
	l.sessions = append(l.sessions, s)
	l.sessions = l.sessions[max(0, len(l.sessions)-maxLeft):]
}
