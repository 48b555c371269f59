package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Tokens are the named tokens of operators and programs.
type Tokens struct{ *db }

const (
	maxTokens   = 1000               // named tokens that can exist, expired ones included
	keepExpired = 7 * 24 * time.Hour // an expired token is listed for this long, if there is room
)

type tokenRow struct {
	ID, Name, Role, Author string
	Created, Expires       int64
	Off                    bool
}

func (r tokenRow) value() (inventory.Token, error) {
	return inventory.Token{
		ID: r.ID, Name: r.Name, Role: inventory.Role(r.Role), Created: moment(r.Created), By: r.Author,
		Expires: moment(r.Expires), Off: r.Off,
	}, nil
}

const selectToken = "SELECT id, name, role, created, author, expires, off FROM token"

// Tokens returns all named tokens, sorted by name.
func (s Tokens) Tokens(ctx context.Context) ([]inventory.Token, error) {
	ts, err := list[tokenRow](ctx, s.ro, selectToken+" ORDER BY name")
	return ts, wrap(err, "listing tokens")
}

// TokenOf returns the token with this digest. If there is none that can be used now, the error is inventory.ErrNotFound.
func (s Tokens) TokenOf(ctx context.Context, digest inventory.TokenDigest) (inventory.Token, error) {
	t, err := read[tokenRow](ctx, s.ro, selectToken+" WHERE digest = ? AND off = 0 AND (expires = 0 OR expires > ?)",
		digest[:], nanos(s.now()))
	return t, wrap(err, "looking up a token")
}

// AddToken stores a new token. If its name is taken, it replaces that token, or if replace is false, the error is
// inventory.ErrConflict. It also deletes tokens that expired more than keepExpired ago; if there are maxTokens, all that
// have expired.
func (s Tokens) AddToken(ctx context.Context, t inventory.Token, digest inventory.TokenDigest, replace bool) error {
	return s.write(ctx, fmt.Sprintf("creating token %q", t.Name), func(tx *transaction) error {
		err := doAll(ctx, tx,
			stmt("DELETE FROM token WHERE expires > 0 AND expires < ?", nanos(s.now().Add(-keepExpired))),
			// Every "ingot temporal token" leaves one.
			stmt("DELETE FROM token WHERE expires > 0 AND expires <= ? AND (SELECT count(*) FROM token) >= ?",
				nanos(s.now()), maxTokens),
		)
		if err == nil && replace {
			_, err = revokeToken(ctx, tx, t.Name)
		}
		if err != nil {
			return err
		}
		n, err := scalar[int](ctx, tx, "SELECT count(*) FROM token")
		if err != nil {
			return err
		}
		if n >= maxTokens {
			return fmt.Errorf("there are %d tokens; revoke those that are not needed: %w", n, inventory.ErrConflict)
		}
		return doOne(ctx, tx, fmt.Errorf("a token with this name exists; revoke it, or replace it: %w", inventory.ErrConflict),
			`INSERT INTO token (name, id, digest, role, created, author, expires) VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (name) DO NOTHING`,
			t.Name, t.ID, digest[:], string(t.Role), nanos(t.Created), t.By, nanos(t.Expires))
	})
}

// RevokeToken deletes a token, with its sessions and login links.
func (s Tokens) RevokeToken(ctx context.Context, name string) error {
	return s.write(ctx, fmt.Sprintf("revoking token %q", name), func(tx *transaction) error {
		n, err := revokeToken(ctx, tx, name)
		if err == nil && n == 0 {
			return inventory.ErrNotFound
		}
		return err
	})
}

// revokeToken returns how many tokens it deleted: 0 or 1.
func revokeToken(ctx context.Context, tx *transaction, name string) (int64, error) {
	if err := do(ctx, tx, "DELETE FROM session WHERE token = (SELECT digest FROM token WHERE name = ?)", name); err != nil {
		return 0, err
	}
	return exec(ctx, tx, "DELETE FROM token WHERE name = ?", name)
}

// EnableToken lets a token be used again that was off since a restore from a backup.
func (s Tokens) EnableToken(ctx context.Context, name string) error {
	return s.write(ctx, fmt.Sprintf("enabling token %q", name), func(tx *transaction) error {
		return doOne(ctx, tx, inventory.ErrNotFound, "UPDATE token SET off = 0 WHERE name = ?", name)
	})
}
