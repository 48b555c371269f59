package bmc

import (
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// target is the state of one BMC that operations share. Only the operation that holds token may access the fields
// below address.
type target struct {
	token   chan struct{}
	address string

	sessions float64   // number of sessions that the rate limit permits now
	counted  time.Time // when sessions was last updated
	loaded   bool      // refusals were read from the store
	refusals inventory.BMCRefusals
	who      string // keyed digest of the credentials in use
	left     leftovers
	clear    time.Time // when AMT last answered only without TLS
}

// bmcSession is a session on a Redfish service.
type bmcSession struct{ path, token string }

// leftovers are sessions of earlier operations on a BMC that may still be open.
type leftovers struct {
	sessions []bmcSession // sessions that could not be deleted
	// searched reports whether searchLeftovers has asked the BMC for sessions of an earlier process, or of log-ins that
	// were not answered.
	searched bool
	// sessionsOnly reports that the BMC refused HTTP Basic authentication.
	sessionsOnly bool
}

// maxLeft limits how many sessions of a BMC are stored, because each operation tries to delete all of them.
const maxLeft = 8

// add stores a session. If there are too many, it drops the oldest, because the BMC ends that one first by its
// time-out.
func (l *leftovers) add(s bmcSession) {
	l.sessions = append(l.sessions, s)
	l.sessions = l.sessions[max(0, len(l.sessions)-maxLeft):]
}
