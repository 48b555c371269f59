package inventory

import (
	"strings"
	"time"
)

// A HandOver is a request to move this site to a peer. The inventory does not store the outcome, because the inventory itself
// moves with the site.
type HandOver struct {
	ID     string `json:"id"`
	Target string `json:"target"` // name of the peer
	// SiteEpoch is the site epoch that the target will own.
	SiteEpoch int64 `json:"siteEpoch"`
	// Force: an operator requested the move although runs of machines are open.
	Force     bool      `json:"force,omitempty"`
	Requested time.Time `json:"requested"`
}

// States of a hand-over, as its workflow sees them.
const (
	HandOverPending = "pending" // requested or in progress
	HandOverMoved   = "moved"   // the site has moved to this server
	HandOverFailed  = "failed"  // the move was taken back
)

// Rebase returns text with the base URL from replaced by the base URL to; from is an earlier base URL of the site's images. It
// replaces only whole URLs: from must be followed by a slash, by a character that cannot be part of a URL, or by nothing. If
// from or to is "", it returns text unchanged.
func Rebase(text, from, to string) string {
	if from == "" || to == "" || from == to || !strings.Contains(text, from) {
		return text
	}

	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, from)
		b.WriteString(before)
		if !found {
			return b.String()
		}

		whole := rest == "" || rest[0] == '/' || !strings.ContainsRune(urlRunes, rune(rest[0]))
		if whole {
			b.WriteString(to)
		} else {
			b.WriteString(from)
		}

		text = rest
	}
}

// urlRunes are the characters, except the slash, that can continue a URL (RFC 3986).
const urlRunes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:?#@!$&*+=%"
