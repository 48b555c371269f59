package inventory

import (
	"strings"
	"time"
)

// A HandOver is a request to move this site to a peer. The outcome is not stored in the inventory, because the inventory moves with the
// site.
type HandOver struct {
	ID     string `json:"id"`
	Target string `json:"target"` // name of the peer
	// SiteEpoch is the site epoch that the target will own.
	SiteEpoch int64 `json:"siteEpoch"`
	// Force: an operator requested the move although runs of machines are open.
	Force     bool      `json:"force,omitempty"`
	Requested time.Time `json:"requested"`
}

// States of a hand-over, as its workflow sees them. The workflow moves with the site.
const (
	HandOverPending = "pending" // requested or in progress
	HandOverMoved   = "moved"   // the site has moved to this server
	HandOverFailed  = "failed"  // the move was taken back
)

// Rebase returns text in which the base URL to replaces the base URL from, an earlier base URL of the site's images. Only whole URLs are
// replaced: after from must come a slash, a character that cannot be part of a URL, or the end of text. If from or to is "", Rebase returns
// text unchanged.
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
