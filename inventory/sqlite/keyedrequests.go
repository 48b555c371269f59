package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// KeyedRequests are the records of API requests that have an Idempotency-Key.
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

// BeginKeyedRequest returns the stored record of an earlier request that has the ID of r. If there is none, it stores r and returns r. It
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
			return fmt.Errorf("%d requests with different Idempotency-Keys arrived within %s: %w", n, keyedFor, inventory.ErrTooManyKeys)
		}
		return do(ctx, tx, "INSERT INTO keyed_request (id, fingerprint, created) VALUES (?, ?, ?)", r.ID, r.Fingerprint, nanos(now))
	})
	return r, err
}

// SetKeyedWorkflow records which workflow the keyed request with this id is about to start. It stores the id of the workflow and, in the
// column before, the newest run that this workflow has had so far. If the record of the request has expired, the error is
// inventory.ErrUnavailable.
func (s KeyedRequests) SetKeyedWorkflow(ctx context.Context, id, workflow, before string) error {
	return s.write(ctx, "storing the workflow of a request with an Idempotency-Key", func(tx *transaction) error {
		return doOne(ctx, tx, fmt.Errorf("the key has expired: %w", inventory.ErrUnavailable),
			"UPDATE keyed_request SET workflow = ?, before = ? WHERE id = ?", workflow, before, id)
	})
}

// AnswerKeyedRequest stores the answer to the keyed request that has the ID of r.
func (s KeyedRequests) AnswerKeyedRequest(ctx context.Context, r inventory.KeyedRequest) error {
	var answer any
	if r.Answer != nil {
		answer = string(r.Answer)
	}
	return s.writeOne(ctx, "storing the answer to a request with an Idempotency-Key",
		"UPDATE keyed_request SET status = ?, answer = ? WHERE id = ?", r.Status, answer, r.ID)
}

// PruneKeyedRequests deletes records that are older than a day, but at most limit records.
func (s KeyedRequests) PruneKeyedRequests(ctx context.Context, limit int) (int, error) {
	return s.prune(ctx, pruning{
		what: "Idempotency-Keys", find: "SELECT rowid FROM keyed_request WHERE created < ?1 ORDER BY created LIMIT ?2",
		remove: "DELETE FROM keyed_request WHERE rowid = ?1 AND created < ?2",
	}, s.now().Add(-keyedFor), limit)
}

// writeOnce is like write, but makes the change of a keyed request only once. If ctx belongs to a request with an Idempotency-Key, the same
// transaction also records in this request's record that the change was made. If the client repeats the request, writeOnce changes nothing
// and returns nil. A request may make only one such change.
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
			return fmt.Errorf(
				"refusing a second change: a request with an Idempotency-Key makes only one, and this request has already made %q",
				applied,
			)
		}
		if err := change(tx); err != nil {
			return err
		}
		return do(ctx, tx, "UPDATE keyed_request SET applied = ? WHERE id = ?", what, id)
	})
}
