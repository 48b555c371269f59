package sqlite

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

const agentColumns = "a.machine, a.run, a.epoch, a.boot, a.nonce, a.facts, a.hello, a.last_seen, a.used, a.conflict, a.wrote, a.revoked"

type agentRow struct {
	Machine  string `db:"machine"`
	Run      string `db:"run"`
	Epoch    int64  `db:"epoch"`
	Boot     int    `db:"boot"`
	Nonce    string `db:"nonce"`
	Facts    string `db:"facts"`
	Hello    int64  `db:"hello"`
	LastSeen int64  `db:"last_seen"`
	Used     bool   `db:"used"`
	Conflict bool   `db:"conflict"`
	Wrote    bool   `db:"wrote"`
	Revoked  bool   `db:"revoked"`
}

func (r agentRow) value() (inventory.Agent, error) {
	a := inventory.Agent{
		Owner: inventory.Owner{Machine: r.Machine, Run: r.Run, Epoch: r.Epoch}, Boot: r.Boot, Nonce: r.Nonce,
		Hello: moment(r.Hello), LastSeen: moment(r.LastSeen), Used: r.Used, Conflict: r.Conflict, Wrote: r.Wrote,
		Revoked: r.Revoked,
	}
	return a, json.Unmarshal([]byte(r.Facts), &a.Facts)
}

const agentOf = "machine = ?1 AND run = ?2 AND epoch = ?3 AND boot = ?4"

// Redeem exchanges the claim of o's boot, which the caller has verified, for
// an agent that is known by the hash of tokenFor(h.Nonce).
//
// The boot must be the one that the open netboot window allows; then it is
// spent, secrets open until secretsUntil, agents of earlier boots die, and the
// event "hello" carries the facts. The same nonce gets the same agent again
// until its token was used, even if the window has closed since; afterwards it
// is inventory.ErrConflict. Another nonce for a redeemed boot revokes all
// tokens of the run, closes its secrets window, appends the event
// "claim-conflict" and is inventory.ErrConflict. Everything else, an owner
// that lost the grant included, is inventory.ErrNotFound: who does not hold a
// claim learns nothing.
//
// A boot that an operator armed by hand is never spent and opens no secrets: the
// newest nonce has it.
func (s *Store) Redeem(ctx context.Context, o inventory.Owner, boot int, h action.Hello,
	tokenFor func(nonce string) string, secretsUntil time.Time,
) (inventory.Agent, error) {
	var agent inventory.Agent
	var refused error
	what := fmt.Sprintf("redeeming the claim of boot %d of machine %q", boot, o.Machine)
	facts, err := toJSON(h.Facts)
	if err != nil {
		return agent, fmt.Errorf("%s: %w", what, err)
	}
	if h.Nonce == "" || len(h.Nonce) > 256 || len(facts) > maxDetail {
		return agent, fmt.Errorf("%s: nonce or facts are missing or too long: %w", what, inventory.ErrInvalid)
	}

	err = s.write(ctx, what, func(tx *sqlx.Tx) error {
		g, err := grantOf(ctx, tx, o.Machine)
		if err != nil {
			return err
		}
		if o.Run == "" || g.Owner != o || g.Boot != boot || g.Installer { // an installer's boot has no claim
			return inventory.ErrNotFound
		}

		var have agentRow
		err = get(ctx, tx, &have, "SELECT "+agentColumns+" FROM agent a WHERE "+agentOf, o.Machine, o.Run, o.Epoch, boot)
		switch {
		case err != nil && !errors.Is(err, inventory.ErrNotFound):
			return err
		case err == nil && have.Nonce == h.Nonce:
			if have.Used || have.Revoked {
				return fmt.Errorf("it was redeemed and its token used or revoked: %w", inventory.ErrConflict)
			}
			agent, err = have.value()
			return err

		case err == nil && !g.Person():
			refused = fmt.Errorf("%s: another agent has redeemed it: %w", what, inventory.ErrConflict)
			return s.conflict(ctx, tx, o, boot, "", "a second agent, with MAC "+h.MAC+", came with the claim of this boot", nil)
		}

		now := s.now()

		// An operator's window stays open and gives no secrets.
		n, err := exec(ctx, tx, `UPDATE grant_ SET spent = ?5, secrets_until = iif(?5, ?6, secrets_until)
			WHERE `+owns+` AND boot = ?4 AND spent = 0 AND netboot_until > ?7`,
			o.Machine, o.Run, o.Epoch, boot, !g.Person(), nanos(secretsUntil), nanos(now))
		if err != nil {
			return err
		}
		if n == 0 {
			return inventory.ErrNotFound
		}
		if _, err := exec(ctx, tx, "UPDATE agent SET revoked = 1 WHERE machine = ?", o.Machine); err != nil {
			return err
		}

		token := sha256.Sum256([]byte(tokenFor(h.Nonce)))
		agent, err = read[agentRow](ctx, tx, `INSERT OR REPLACE INTO agent AS a (machine, run, epoch, boot, token, nonce, facts, hello, last_seen)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)
			RETURNING machine, run, epoch, boot, nonce, facts, hello, last_seen, used, conflict, wrote, revoked`,
			o.Machine, o.Run, o.Epoch, boot, token[:], h.Nonce, facts, nanos(now))
		if err != nil {
			return err
		}
		return s.event(ctx, tx, inventory.Event{
			Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: inventory.EventHello, At: now,
			Detail: json.RawMessage(facts),
		})
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return inventory.Agent{}, err
	}
	return agent, nil
}

// ClaimConflict records that hardware which cannot be o's machine came with
// the claim of its boot, and revokes the tokens of the agent that may have
// redeemed it: neither can be told from an impostor. However often it is
// called, there is one event per boot. An owner that lost the grant, or another
// boot than the present one, is inventory.ErrNotFound.
func (s *Store) ClaimConflict(ctx context.Context, o inventory.Owner, boot int, message string,
	facts json.RawMessage,
) error {
	return s.write(ctx, fmt.Sprintf("recording a conflict about boot %d of machine %q", boot, o.Machine),
		func(tx *sqlx.Tx) error {
			g, err := grantOf(ctx, tx, o.Machine)
			if err != nil {
				return err
			}
			if o.Run == "" || g.Owner != o || g.Boot != boot {
				return inventory.ErrNotFound
			}
			return s.conflict(ctx, tx, o, boot, "hardware", message, facts)
		})
}

// conflict revokes every token of the machine and closes the run's secrets
// window. key tells kinds of conflict apart.
func (s *Store) conflict(ctx context.Context, tx *sqlx.Tx, o inventory.Owner, boot int, key, message string,
	facts json.RawMessage,
) error {
	// A claim that was read off the wire can be sent any number of times: from the
	// second time on, nothing is written.
	var known bool
	err := get(ctx, tx, &known, `SELECT EXISTS (SELECT 1 FROM event WHERE machine = ?1 AND run = ?2 AND epoch = ?3
		AND boot = ?4 AND kind = ?5 AND key = ?6)
		AND NOT EXISTS (SELECT 1 FROM agent WHERE machine = ?1 AND revoked = 0)`,
		o.Machine, o.Run, o.Epoch, boot, inventory.EventClaimConflict, key)
	if err != nil || known {
		return err
	}
	if _, err := exec(ctx, tx, "UPDATE agent SET conflict = 1 WHERE "+agentOf, o.Machine, o.Run, o.Epoch,
		boot); err != nil {
		return err
	}
	if _, err := exec(ctx, tx, "UPDATE agent SET revoked = 1 WHERE machine = ?", o.Machine); err != nil {
		return err
	}
	if _, err := exec(ctx, tx, "UPDATE grant_ SET secrets_until = 0 WHERE "+owns, o.Machine, o.Run, o.Epoch); err != nil {
		return err
	}
	return s.event(ctx, tx, inventory.Event{
		Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: inventory.EventClaimConflict, Key: key,
		Message: clip(message, maxWireText), Detail: facts,
	})
}

// AgentByToken returns the agent whose token has this SHA-256. Only the grant
// says that its run is over: one that is free, or that was taken since, is
// inventory.ErrFenced. A token that was revoked while its run holds the grant
// is inventory.ErrConflict. An unknown token is inventory.ErrNotFound, and so
// is one of a grant that this site has not given yet, or lost: its data may be
// older than the agent.
func (s *Store) AgentByToken(ctx context.Context, tokenSHA256 []byte) (inventory.Agent, error) {
	var r struct {
		agentRow
		Run   string `db:"holder"` // '' = free
		Taken int64  `db:"latest"` // epoch of the grant; 0 = none
	}
	err := get(ctx, s.ro, &r, "SELECT "+agentColumns+`, coalesce(g.run, '') AS holder, coalesce(g.epoch, 0) AS latest
		FROM agent a LEFT JOIN grant_ g ON g.machine = a.machine WHERE a.token = ?`, tokenSHA256)
	if err == nil {
		switch of := fmt.Sprintf("of boot %d of machine %q", r.Boot, r.Machine); {
		case r.Taken < r.Epoch:
			err = fmt.Errorf("%s, whose grant is unknown here: %w", of, inventory.ErrNotFound)
		case r.Taken > r.Epoch || r.Run != r.agentRow.Run:
			err = fmt.Errorf("%s: %w", of, inventory.ErrFenced)
		case r.Revoked:
			err = fmt.Errorf("%s, which was revoked: %w", of, inventory.ErrConflict)
		}
	}
	if err != nil {
		return inventory.Agent{}, fmt.Errorf("finding an agent by its token: %w", err)
	}
	return r.value()
}

// AgentUsed records that the token of o's boot was used, after which its claim
// is worth nothing any more. A revoked one is inventory.ErrConflict.
func (s *Store) AgentUsed(ctx context.Context, o inventory.Owner, boot int) error {
	return s.write(ctx, fmt.Sprintf("recording the first use of a token of machine %q", o.Machine),
		func(tx *sqlx.Tx) error {
			n, err := exec(ctx, tx, "UPDATE agent SET used = 1 WHERE "+agentOf+" AND revoked = 0 AND "+held, o.Machine, o.Run,
				o.Epoch, boot)
			if err != nil || n > 0 {
				return err
			}
			var a agentRow
			err = get(ctx, tx, &a, "SELECT "+agentColumns+" FROM agent a WHERE "+agentOf, o.Machine, o.Run, o.Epoch, boot)
			if err == nil {
				err = inventory.ErrConflict // it is there, so it was revoked
			}
			return fencedOr(ctx, tx, o, err)
		})
}

// Agent returns the agent of o's newest redeemed boot.
func (s *Store) Agent(ctx context.Context, o inventory.Owner) (inventory.Agent, error) {
	return s.agentBy(ctx, o.Machine, "machine = ? AND run = ? AND epoch = ? ORDER BY boot DESC", o.Machine, o.Run, o.Epoch)
}

// MachineAgent returns the agent that said hello last on a machine, whether it
// still lives or not: its facts are the newest.
func (s *Store) MachineAgent(ctx context.Context, machine string) (inventory.Agent, error) {
	return s.agentBy(ctx, machine, "machine = ? ORDER BY epoch DESC, boot DESC", machine)
}

func (s *Store) agentBy(ctx context.Context, machine, where string, args ...any) (inventory.Agent, error) {
	a, err := read[agentRow](ctx, s.ro, "SELECT "+agentColumns+" FROM agent a WHERE "+where+" LIMIT 1", args...)
	return a, wrap(err, "reading the agent of machine %q", machine)
}

// TouchAgents stores signs of life, in one transaction. Those of agents that
// the store does not know are dropped.
func (s *Store) TouchAgents(ctx context.Context, seen []inventory.AgentSeen) error {
	if len(seen) == 0 {
		return nil
	}
	return s.write(ctx, "storing signs of life", func(tx *sqlx.Tx) error {
		for _, a := range seen {
			_, err := exec(ctx, tx, "UPDATE agent SET last_seen = max(last_seen, ?5), wrote = wrote OR ?6 WHERE "+agentOf,
				a.Machine, a.Run, a.Epoch, a.Boot, nanos(a.LastSeen), a.Wrote)
			if err != nil {
				return err
			}
		}
		return nil
	})
}
