package inventory

import "time"

// A HandOver is the wish to move this site to a peer. What became of it is not
// the inventory's to know: it may have moved meanwhile.
type HandOver struct {
	ID     string `json:"id"`
	Target string `json:"target"` // name of the peer
	// SiteEpoch is the one that the target will own.
	SiteEpoch int64 `json:"siteEpoch"`
	// Force is a person's word: although runs of machines are open.
	Force     bool      `json:"force,omitempty"`
	Requested time.Time `json:"requested"`
}

// States of a hand-over, as whoever waits for it sees them.
const (
	HandOverPending = "pending" // or under way
	HandOverMoved   = "moved"   // this server is where it has moved to
	HandOverFailed  = "failed"  // taken back
)
