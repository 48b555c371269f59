package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// PutOperation stores the record of an operation by the rules of PutWorkflow:
// what is final stays, and an older record does not replace a newer one.
func (s *Store) PutOperation(ctx context.Context, o inventory.Operation) error {
	what := fmt.Sprintf("storing the record of operation %q", o.ID)
	if o.Run == "" || o.ID == "" {
		return fmt.Errorf("%s: %w", what, inventory.ErrInvalid)
	}
	if o.Updated.IsZero() {
		o.Updated = s.now()
	}
	doc, err := toJSON(o)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		was, err := s.operationBefore(ctx, tx, o.Run)
		if err != nil {
			return err
		}
		n, err := exec(ctx, tx, `INSERT INTO operation (run, id, kind, name, final, started, doc) VALUES (?,?,?,?,?,?,?)
			ON CONFLICT (run) DO UPDATE SET final = excluded.final, doc = excluded.doc
			WHERE NOT operation.final AND
				(excluded.final OR coalesce(json_extract(operation.doc, '$.seq'), 0) <= coalesce(json_extract(excluded.doc, '$.seq'), 0))`,
			o.Run, o.ID, o.Type, o.Name, inventory.Final(o.State), nanos(o.Started), doc)
		if err != nil || n == 0 {
			return err
		}
		s.show(tx, touchedOperations)
		return s.tell(ctx, tx, o.NoticesOf(was))
	})
}

// Operation returns the record of an operation by its run.
func (s *Store) Operation(ctx context.Context, run string) (inventory.Operation, error) {
	var o inventory.Operation
	var doc string
	err := get(ctx, s.ro, &doc, "SELECT doc FROM operation WHERE run = ?", run)
	if err == nil {
		err = json.Unmarshal([]byte(doc), &o)
	}
	if err != nil {
		return inventory.Operation{}, fmt.Errorf("reading the record of operation %q: %w", run, err)
	}
	return o, nil
}

// Operations returns records, the newest first.
func (s *Store) Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	var docs []string
	err := s.ro.SelectContext(ctx, &docs, `SELECT doc FROM operation
		WHERE (?1 = '' OR id = ?1) AND (?2 = '' OR kind = ?2) AND (NOT ?3 OR final = 0) ORDER BY started DESC, rowid DESC LIMIT ?4`,
		f.ID, f.Type, f.Open, limit)
	if err != nil {
		return nil, fmt.Errorf("listing operations: %w", err)
	}
	out := make([]inventory.Operation, len(docs))
	for i, doc := range docs {
		if err := json.Unmarshal([]byte(doc), &out[i]); err != nil {
			return nil, fmt.Errorf("listing operations: %w", err)
		}
	}
	return out, nil
}
