package sqlite

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Sessions are the sessions of browsers, and the links that can still open one.
type Sessions struct{ *db }

// maxSessions is the maximum number of sessions or links of one kind and token. If there are more, those that expire first are
// deleted. The sessions of other tokens stay: otherwise any token could end the sessions of administrators.
const maxSessions = 100

// PutSession stores a new session or link.
func (s Sessions) PutSession(ctx context.Context, x inventory.Session) error {
	return s.write(ctx, "opening a session", func(tx *transaction) error {
		return doAll(ctx, tx,
			stmt("DELETE FROM session WHERE expires <= ?", nanos(s.now())),
			stmt(`DELETE FROM session WHERE digest IN
				(SELECT digest FROM session WHERE token = ? AND kind = ? ORDER BY expires DESC LIMIT -1 OFFSET ?)`,
				x.Token[:], x.Kind, maxSessions-1),
			stmt("INSERT INTO session (digest, kind, token, expires) VALUES (?, ?, ?, ?)",
				x.Digest[:], x.Kind, x.Token[:], nanos(x.Expires)),
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

// TokenOfSession returns the token with which an open session of this kind was opened. If the session is not open, the error
// is inventory.ErrNotFound.
func (s Sessions) TokenOfSession(ctx context.Context, kind string, digest inventory.TokenDigest) (inventory.TokenDigest, error) {
	d, err := read[sessionRow](ctx, s.ro, "SELECT token FROM session WHERE digest = ? AND kind = ? AND expires > ?",
		digest[:], kind, nanos(s.now()))
	return d, wrap(err, "looking up a session")
}

// RedeemLink deletes a link of this kind and returns the token with which it was made. If the link does not exist or has
// expired, the error is inventory.ErrNotFound.
func (s Sessions) RedeemLink(
	ctx context.Context, kind string, digest inventory.TokenDigest,
) (token inventory.TokenDigest, err error) {
	err = s.write(ctx, "redeeming a link", func(tx *transaction) error {
		token, err = read[sessionRow](ctx, tx, "DELETE FROM session WHERE digest = ? AND kind = ? AND expires > ? RETURNING token",
			digest[:], kind, nanos(s.now()))
		return err
	})
	return token, err
}

// EndSession deletes a session. It is no error if there is none.
func (s Sessions) EndSession(ctx context.Context, digest inventory.TokenDigest) error {
	return s.writeOne(ctx, "ending a session", "DELETE FROM session WHERE digest = ?", digest[:])
}
