package sqlite

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Agents stores the agents that have redeemed the claim of a boot, with the hashes of their tokens.
type Agents struct{ *db }

const agentColumns = "a.machine, a.run, a.epoch, a.boot, a.nonce, a.facts, a.hello, a.last_seen, a.used, a.conflict, a.wrote, a.revoked"

type agentRow struct {
	inventory.Agent
	Facts           string
	Hello, LastSeen int64
}

func (r agentRow) value() (inventory.Agent, error) {
	r.Agent.Hello, r.Agent.LastSeen = moment(r.Hello), moment(r.LastSeen)
	return r.Agent, json.Unmarshal([]byte(r.Facts), &r.Agent.Facts)
}

const agentOf = "machine = ?1 AND run = ?2 AND epoch = ?3 AND boot = ?4"

// Redeem redeems the claim of a boot and returns the agent. The caller has already verified the claim. The stored agent is identified by
// the hash of its token.
//
// The boot must be the one that the open netboot window allows. Redeem marks the boot as spent, opens the secrets window until
// r.SecretsUntil, revokes the agents of earlier boots, and appends the event "hello" with the facts.
//
// If the boot was redeemed before with the same nonce, Redeem returns the same agent again, even if the window has closed since then; but
// if the agent's token was used or revoked, the error is inventory.ErrConflict. If the boot was redeemed before with another nonce, the
// error is inventory.ErrConflict, and Redeem revokes all agents of the machine, closes the secrets window and appends the event
// "claim-conflict". If the nonce or the facts are not valid, the error is inventory.ErrInvalid. In all other cases, such as an owner that
// has lost the grant, the error is inventory.ErrNotFound, so that a client without a valid claim learns nothing.
//
// A boot that an operator allowed by hand is never spent and opens no secrets window. Its agent is always the last one that sent a new
// nonce.
func (s Agents) Redeem(ctx context.Context, r inventory.Redemption) (inventory.Agent, error) {
	what := fmt.Sprintf("redeeming the claim of boot %d of machine %q", r.Boot, r.Machine)
	facts, err := toJSON(r.Hello.Facts)
	if err != nil {
		return inventory.Agent{}, fmt.Errorf("%s: %w", what, err)
	}
	if r.Hello.Nonce == "" || len(r.Hello.Nonce) > 256 || len(facts) > maxDetail {
		return inventory.Agent{}, fmt.Errorf("%s: the nonce is missing or too long, or the facts are too large: %w", what,
			inventory.ErrInvalid)
	}

	var agent inventory.Agent
	var refused error // returned after the transaction that records the conflict
	err = s.write(ctx, what, func(tx *transaction) error {
		g, err := grantOf(ctx, tx, r.Machine)
		if err != nil {
			return err
		}
		if r.Run == "" || g.Owner != r.Owner || g.Boot != r.Boot || g.Installer { // an installer's boot has no claim
			return inventory.ErrNotFound
		}

		have, err := read[agentRow](ctx, tx, "SELECT "+agentColumns+" FROM agent a WHERE "+agentOf,
			r.Machine, r.Run, r.Epoch, r.Boot)
		switch {
		case err != nil && !errors.Is(err, inventory.ErrNotFound):
			return err
		case err == nil && have.Nonce == r.Hello.Nonce:
			if have.Used || have.Revoked {
				return fmt.Errorf("this agent redeemed the claim before, and its token was used or revoked: %w", inventory.ErrConflict)
			}
			agent = have
			return nil
		case err == nil && !g.ByOperator():
			refused = fmt.Errorf("%s: another agent has redeemed the claim: %w", what, inventory.ErrConflict)
			return s.conflict(ctx, tx, r.Event(r.Boot, inventory.EventClaimConflict, "",
				"a second agent, with MAC "+r.Hello.MAC+", sent the claim of this boot"))
		}

		agent, err = s.newAgent(ctx, tx, r, facts, !g.ByOperator())
		return err
	})
	if err = cmp.Or(err, refused); err != nil {
		return inventory.Agent{}, err
	}
	return agent, nil
}

// newAgent makes the client that sent r the agent of its boot. If counted is false, as for an operator's grant, the boot is not marked as
// spent, and no secrets window is opened.
func (s Agents) newAgent(ctx context.Context, tx *transaction, r inventory.Redemption, facts string,
	counted bool,
) (agent inventory.Agent, err error) {
	now := s.now()
	err = doOne(ctx, tx, inventory.ErrNotFound, `UPDATE grant_ SET spent = ?5, secrets_until = iif(?5, ?6, secrets_until)
		WHERE `+owns+` AND boot = ?4 AND spent = 0 AND netboot_until > ?7`,
		r.Machine, r.Run, r.Epoch, r.Boot, counted, nanos(r.SecretsUntil), nanos(now))
	if err != nil {
		return agent, err
	}
	if err := do(ctx, tx, "UPDATE agent SET revoked = 1 WHERE machine = ?", r.Machine); err != nil {
		return agent, err
	}

	token := sha256.Sum256([]byte(r.TokenFor(r.Hello.Nonce)))
	agent, err = read[agentRow](ctx, tx, `INSERT OR REPLACE INTO agent AS a
		(machine, run, epoch, boot, token, nonce, facts, hello, last_seen) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)
		RETURNING machine, run, epoch, boot, nonce, facts, hello, last_seen, used, conflict, wrote, revoked`,
		r.Machine, r.Run, r.Epoch, r.Boot, token[:], r.Hello.Nonce, facts, nanos(now))
	if err != nil {
		return agent, err
	}
	e := r.Event(r.Boot, inventory.EventHello, "", "")
	e.At, e.Detail = now, json.RawMessage(facts)
	return agent, addEvent(ctx, tx, e)
}

// ClaimConflict records that the claim of o's boot came from a client whose hardware cannot be o's machine. It revokes the agent that may
// have redeemed this claim, because either the agent or the client may be an impostor. It appends only one event per boot, however often it
// is called. If o has lost the grant, or boot is not the current boot, the error is inventory.ErrNotFound.
func (s Agents) ClaimConflict(ctx context.Context, o inventory.Owner, boot int, message string,
	facts json.RawMessage,
) error {
	return s.write(ctx, fmt.Sprintf("recording a conflict about boot %d of machine %q", boot, o.Machine),
		func(tx *transaction) error {
			g, err := grantOf(ctx, tx, o.Machine)
			if err != nil {
				return err
			}
			if o.Run == "" || g.Owner != o || g.Boot != boot {
				return inventory.ErrNotFound
			}
			e := o.Event(boot, inventory.EventClaimConflict, "hardware", message)
			e.Detail = facts
			return s.conflict(ctx, tx, e)
		})
}

// conflict revokes every agent of e's machine, closes the secrets window of e's run, and appends e. The key of e distinguishes kinds of
// conflict. If e is already stored and all agents are revoked, conflict does nothing.
func (s Agents) conflict(ctx context.Context, tx *transaction, e inventory.Event) error {
	// A claim that was captured on the network can be sent any number of times, but only the first time may cause a write.
	known, err := scalar[bool](ctx, tx, `SELECT EXISTS (SELECT 1 FROM event WHERE machine = ?1 AND run = ?2 AND epoch = ?3
		AND boot = ?4 AND kind = ?5 AND key = ?6)
		AND NOT EXISTS (SELECT 1 FROM agent WHERE machine = ?1 AND revoked = 0)`,
		e.Machine, e.Run, e.Epoch, e.Boot, e.Kind, e.Key)
	if err != nil || known {
		return err
	}

	err = doAll(ctx, tx,
		stmt("UPDATE agent SET conflict = 1 WHERE "+agentOf, e.Machine, e.Run, e.Epoch, e.Boot),
		stmt("UPDATE agent SET revoked = 1 WHERE machine = ?", e.Machine),
		stmt("UPDATE grant_ SET secrets_until = 0 WHERE "+owns, e.Machine, e.Run, e.Epoch),
	)
	if err != nil {
		return err
	}
	e.Message = clip(e.Message, maxWireText)
	return addEvent(ctx, tx, e)
}

// AgentByToken returns the agent whose token has this SHA-256. The error is inventory.ErrFenced if the agent's run has ended, which is so
// if the machine's grant is free or belongs to a later run; inventory.ErrConflict if the token was revoked while the run holds the grant;
// and inventory.ErrNotFound if the token is unknown, or if its epoch is higher than the epoch of the grant, because after a restore this
// database may be older than the agent.
func (s Agents) AgentByToken(ctx context.Context, tokenSHA256 []byte) (inventory.Agent, error) {
	var r struct {
		agentRow
		Holder string // '' = free
		Latest int64  // epoch of the grant; 0 = none
	}
	err := get(ctx, s.ro, &r, "SELECT "+agentColumns+`, coalesce(g.run, '') AS holder, coalesce(g.epoch, 0) AS latest
		FROM agent a LEFT JOIN grant_ g ON g.machine = a.machine WHERE a.token = ?`, tokenSHA256)
	if err == nil {
		switch of := fmt.Sprintf("boot %d of machine %q", r.Boot, r.Machine); {
		case r.Latest < r.Epoch:
			err = fmt.Errorf("the grant of %s is not stored: %w", of, inventory.ErrNotFound)
		case r.Latest > r.Epoch || r.Holder != r.Run:
			err = fmt.Errorf("the run of %s no longer owns the machine: %w", of, inventory.ErrFenced)
		case r.Revoked:
			err = fmt.Errorf("the token of %s was revoked: %w", of, inventory.ErrConflict)
		}
	}
	if err != nil {
		return inventory.Agent{}, fmt.Errorf("finding an agent by its token: %w", err)
	}
	return r.value()
}

// AgentUsed records that the token of o's boot was used. From then on, the claim of the boot cannot be redeemed again. If the token was
// revoked, the error is inventory.ErrConflict.
func (s Agents) AgentUsed(ctx context.Context, o inventory.Owner, boot int) error {
	return s.write(ctx, fmt.Sprintf("recording the first use of a token of machine %q", o.Machine),
		func(tx *transaction) error {
			n, err := exec(ctx, tx, "UPDATE agent SET used = 1 WHERE "+agentOf+" AND revoked = 0 AND "+held, o.Machine, o.Run,
				o.Epoch, boot)
			if err != nil || n > 0 {
				return err
			}
			_, err = scalar[int](ctx, tx, "SELECT 1 FROM agent WHERE "+agentOf, o.Machine, o.Run, o.Epoch, boot)
			if err == nil {
				err = inventory.ErrConflict // the agent exists, so its token was revoked
			}
			return fencedOr(ctx, tx, o, err)
		})
}

// Agent returns the newest agent of o's run: the agent of the latest of the boots whose claims were redeemed.
func (s Agents) Agent(ctx context.Context, o inventory.Owner) (inventory.Agent, error) {
	return s.agentBy(ctx, o.Machine, "machine = ? AND run = ? AND epoch = ? ORDER BY boot DESC", o.Machine, o.Run, o.Epoch)
}

// MachineAgent returns the newest agent of a machine, even if the agent no longer runs. Its facts are the newest.
func (s Agents) MachineAgent(ctx context.Context, machine string) (inventory.Agent, error) {
	return s.agentBy(ctx, machine, "machine = ? ORDER BY epoch DESC, boot DESC", machine)
}

func (s Agents) agentBy(ctx context.Context, machine, where string, args ...any) (inventory.Agent, error) {
	a, err := read[agentRow](ctx, s.ro, "SELECT "+agentColumns+" FROM agent a WHERE "+where+" LIMIT 1", args...)
	return a, wrap(err, "reading the agent of machine %q", machine)
}

// TouchAgents stores the times at which agents were last seen, in one transaction. Unknown agents
// are ignored.
func (s Agents) TouchAgents(ctx context.Context, seen []inventory.AgentSeen) error {
	return writeEach(ctx, s.db, "storing when agents were last seen", seen, func(tx *transaction, a inventory.AgentSeen) error {
		return do(ctx, tx, "UPDATE agent SET last_seen = max(last_seen, ?5), wrote = wrote OR ?6 WHERE "+agentOf,
			a.Machine, a.Run, a.Epoch, a.Boot, nanos(a.LastSeen), a.Wrote)
	})
}
