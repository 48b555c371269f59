package sqlite

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Sessions are the sessions of browsers, and the login links that can still open one.
type Sessions struct{ *db }

// The maximum numbers of sessions and of login links. If there are more, those that expire first are deleted.
const (
	maxSessions = 1000
	maxLinks    = 100
)

// PutSession stores a new session or login link.
func (s Sessions) PutSession(ctx context.Context, x inventory.Session) error {
	most := maxSessions
	if x.Link {
		most = maxLinks
	}
	return s.write(ctx, "opening a session", func(tx *transaction) error {
		return doAll(ctx, tx,
			stmt("DELETE FROM session WHERE expires <= ?", nanos(s.now())),
			stmt(`DELETE FROM session WHERE digest IN
				(SELECT digest FROM session WHERE link = ? ORDER BY expires DESC LIMIT -1 OFFSET ?)`, x.Link, most-1),
			stmt("INSERT INTO session (digest, link, token, expires) VALUES (?, ?, ?, ?)",
				x.Digest[:], x.Link, x.Token[:], nanos(x.Expires)),
		)
	})
}

type sessionRow struct{ Token []byte }

func (r sessionRow) value() (d inventory.TokenDigest, err error) {
	if copy(d[:], r.Token) != len(d) {
		err = fmt.Errorf("the digest of a token has %d bytes", len(r.Token))
	}
	return d, err
}

// TokenOfSession returns the token with which an open session was opened. If the session is not open, the error is
// inventory.ErrNotFound.
func (s Sessions) TokenOfSession(ctx context.Context, digest inventory.TokenDigest) (inventory.TokenDigest, error) {
	d, err := read[sessionRow](ctx, s.ro, "SELECT token FROM session WHERE digest = ? AND link = 0 AND expires > ?",
		digest[:], nanos(s.now()))
	return d, wrap(err, "looking up a session")
}

// RedeemLink deletes a login link and returns the token with which it was made. If the link does not exist or has expired,
// the error is inventory.ErrNotFound.
func (s Sessions) RedeemLink(ctx context.Context, digest inventory.TokenDigest) (token inventory.TokenDigest, err error) {
	err = s.write(ctx, "redeeming a login link", func(tx *transaction) error {
		token, err = read[sessionRow](ctx, tx, "DELETE FROM session WHERE digest = ? AND link = 1 AND expires > ? RETURNING token",
			digest[:], nanos(s.now()))
		return err
	})
	return token, err
}

// EndSession deletes a session. It is no error if there is none.
func (s Sessions) EndSession(ctx context.Context, digest inventory.TokenDigest) error {
	return s.writeOne(ctx, "ending a session", "DELETE FROM session WHERE digest = ?", digest[:])
}
