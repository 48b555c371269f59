package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// KeyedRequests are the requests with an Idempotency-Key.
type KeyedRequests struct{ *db }

const (
	keyedFor         = 24 * time.Hour
	maxKeyedRequests = 20_000
)

type keyedRow struct {
	ID, Fingerprint  string
	Workflow, Before string
	Status           int
	Answer           *string
}

func (r keyedRow) value() inventory.KeyedRequest {
	out := inventory.KeyedRequest{
		ID: r.ID, Fingerprint: r.Fingerprint, Workflow: r.Workflow, Before: r.Before, Status: r.Status,
	}
	if r.Answer != nil {
		out.Answer = []byte(*r.Answer)
	}
	return out
}

// BeginKeyedRequest returns the record of an earlier request with the same id. If there is none, it stores r and returns it. It
// first deletes records that are older than a day. If maxKeyedRequests are stored, the error is inventory.ErrTooManyKeys.
func (s KeyedRequests) BeginKeyedRequest(ctx context.Context, r inventory.KeyedRequest) (inventory.KeyedRequest, error) {
	err := s.write(ctx, "storing an Idempotency-Key", func(tx *transaction) error {
		now := s.now()
		if err := do(ctx, tx, "DELETE FROM keyed_request WHERE created <= ?", nanos(now.Add(-keyedFor))); err != nil {
			return err
		}
		var found keyedRow
		err := get(ctx, tx, &found, "SELECT id, fingerprint, workflow, before, status, answer FROM keyed_request WHERE id = ?", r.ID)
		if !errors.Is(err, inventory.ErrNotFound) {
			r = found.value()
			return err
		}

		n, err := scalar[int](ctx, tx, "SELECT count(*) FROM keyed_request")
		if err != nil {
			return err
		}
		if n >= maxKeyedRequests {
			return fmt.Errorf("%d keys were used within %s: %w", n, keyedFor, inventory.ErrTooManyKeys)
		}
		return do(ctx, tx, "INSERT INTO keyed_request (id, fingerprint, created) VALUES (?, ?, ?)", r.ID, r.Fingerprint, nanos(now))
	})
	return r, err
}

// SetKeyedWorkflow records which workflow the keyed request with this id is about to start. workflow is the id of the workflow, and
// before the newest run of this workflow so far. If the record of the request has expired, the error is
// inventory.ErrUnavailable.
func (s KeyedRequests) SetKeyedWorkflow(ctx context.Context, id, workflow, before string) error {
	return s.write(ctx, "storing the workflow of a request with an Idempotency-Key", func(tx *transaction) error {
		return doOne(ctx, tx, fmt.Errorf("the key has expired: %w", inventory.ErrUnavailable),
			"UPDATE keyed_request SET workflow = ?, before = ? WHERE id = ?", workflow, before, id)
	})
}

// AnswerKeyedRequest records the answer to the keyed request r.ID.
func (s KeyedRequests) AnswerKeyedRequest(ctx context.Context, r inventory.KeyedRequest) error {
	var answer any
	if r.Answer != nil {
		answer = string(r.Answer)
	}
	return s.writeOne(ctx, "storing the answer to a request with an Idempotency-Key",
		"UPDATE keyed_request SET status = ?, answer = ? WHERE id = ?", r.Status, answer, r.ID)
}

// PruneKeyedRequests deletes up to limit records older than a day.
func (s KeyedRequests) PruneKeyedRequests(ctx context.Context, limit int) (int, error) {
	return s.prune(ctx, pruning{
		what: "Idempotency-Keys", find: "SELECT rowid FROM keyed_request WHERE created < ?1 ORDER BY created LIMIT ?2",
		remove: "DELETE FROM keyed_request WHERE rowid = ?1 AND created < ?2",
	}, s.now().Add(-keyedFor), limit)
}

// writeOnce is write for the change of a request. If ctx belongs to a keyed request, the transaction also records the change in the
// record of the request. If the request is repeated, writeOnce changes nothing and returns nil. A request may make only one such
// change.
func (s *db) writeOnce(ctx context.Context, what string, change func(tx *transaction) error) error {
	id := inventory.KeyedRequestOf(ctx)
	if id == "" {
		return s.write(ctx, what, change)
	}
	return s.write(ctx, what, func(tx *transaction) error {
		applied, err := scalar[string](ctx, tx, "SELECT applied FROM keyed_request WHERE id = ?", id)
		switch {
		case err != nil:
			return err
		case applied == what:
			return nil
		case applied != "":
			return fmt.Errorf("a request with an Idempotency-Key can make only one change, and has made: %q", applied)
		}
		if err := change(tx); err != nil {
			return err
		}
		return do(ctx, tx, "UPDATE keyed_request SET applied = ? WHERE id = ?", what, id)
	})
}
