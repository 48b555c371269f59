package sqlite

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Operations are the records of operations. An operation is a workflow that does not belong to one machine.
type Operations struct{ *db }

// PutOperation stores the record of an operation. Once a final record is stored, it is never changed. If the given record is open and has a
// lower Seq than the stored record, it is ignored. Some changes also store a notice.
func (s Operations) PutOperation(ctx context.Context, o inventory.Operation) error {
	what := fmt.Sprintf("storing the record of operation %q", o.ID)
	if o.Run == "" || o.ID == "" {
		return fmt.Errorf("%s: %w", what, inventory.ErrInvalid)
	}
	if o.Updated.IsZero() {
		o.Updated = s.now()
	}
	return s.writeDoc(ctx, what, o, func(tx *transaction, doc string) error {
		before, err := optional(readDoc[inventory.Operation](ctx, tx, "SELECT doc FROM operation WHERE run = ?", o.Run))
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
		tx.show(touchedOperations)
		return addNotice(ctx, tx, o.NoticesOf(before))
	})
}

// Operation returns the record of the operation that has this run.
func (s Operations) Operation(ctx context.Context, run string) (inventory.Operation, error) {
	o, err := readDoc[inventory.Operation](ctx, s.ro, "SELECT doc FROM operation WHERE run = ?", run)
	return o, wrap(err, "reading the record of operation %q", run)
}

// Operations returns the records that f selects. The newest comes first, unless f says otherwise.
func (s Operations) Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error) {
	q := selection{query: "SELECT doc FROM operation WHERE true"}
	q.where(f.ID != "", "id = ?", f.ID)
	q.where(f.Type != "", "kind = ?", f.Type)
	q.where(f.Open || f.State == inventory.FilterWaiting, "final = 0")
	q.where(f.State == inventory.FilterWaiting, "json_extract(doc, '$.question') IS NOT NULL")
	q.where(f.State != "" && f.State != inventory.FilterWaiting, "json_extract(doc, '$.state') = ?", f.State)
	q.pageOfRuns(f.RunPage, f.Limit)
	out, err := listDocs[inventory.Operation](ctx, s.ro, q.query, q.args...)
	return out, wrap(err, "listing operations")
}
