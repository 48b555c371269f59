package inventory

import (
	"strings"
	"time"
)

// A HandOver is the request to move this site to a peer. The inventory does not
// know its outcome, because it may have moved with the site.
type HandOver struct {
	ID     string `json:"id"`
	Target string `json:"target"` // name of the peer
	// SiteEpoch is the one that the target will own.
	SiteEpoch int64 `json:"siteEpoch"`
	// Force: an operator wants it although runs of machines are open.
	Force     bool      `json:"force,omitempty"`
	Requested time.Time `json:"requested"`
}

// States of a hand-over, as its workflow sees them.
const (
	HandOverPending = "pending" // or under way
	HandOverMoved   = "moved"   // this server is where it has moved to
	HandOverFailed  = "failed"  // taken back
)

// Rebase replaces from, an earlier base URL of the site's images, by to in text. It
// replaces whole addresses only: from must be followed by a slash or by a character
// that cannot be part of a URL. If from or to is "", text stays unchanged.
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

// urlRunes are the characters that continue a URL, without the slash (RFC 3986).
const urlRunes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:?#@!$&*+=%"
