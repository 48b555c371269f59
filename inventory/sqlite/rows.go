package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/inventory"
)

// writeDoc is like write for a transaction that stores v. The function do also gets v as JSON.
func (s *db) writeDoc(ctx context.Context, what string, v any, do func(tx *transaction, doc string) error) error {
	doc, err := toJSON(v)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.write(ctx, what, func(tx *transaction) error { return do(tx, doc) })
}

// writeOne runs one statement in a transaction, with write.
func (s *db) writeOne(ctx context.Context, what, query string, args ...any) error {
	return s.write(ctx, what, func(tx *transaction) error { return do(ctx, tx, query, args...) })
}

// writeEach calls do for each of the items in one transaction, with write. If there are no items, it starts no transaction.
func writeEach[T any](ctx context.Context, s *db, what string, items []T, do func(tx *transaction, item T) error) error {
	if len(items) == 0 {
		return nil
	}
	return s.write(ctx, what, func(tx *transaction) error {
		for _, item := range items {
			if err := do(tx, item); err != nil {
				return err
			}
		}
		return nil
	})
}

// exec runs one statement and returns the number of changed rows.
func exec(ctx context.Context, tx *transaction, query string, args ...any) (int64, error) {
	res, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// do runs one statement and ignores the number of changed rows.
func do(ctx context.Context, tx *transaction, query string, args ...any) error {
	_, err := tx.ExecContext(ctx, query, args...)
	return err
}

// doOne runs one statement that has to change at least one row. If it changes none, doOne returns the error none.
func doOne(ctx context.Context, tx *transaction, none error, query string, args ...any) error {
	n, err := exec(ctx, tx, query, args...)
	if err == nil && n == 0 {
		return none
	}
	return err
}

// A boundStatement is an SQL statement with the values of its parameters.
type boundStatement struct {
	query string
	args  []any
}

func stmt(query string, args ...any) boundStatement {
	return boundStatement{query, args}
}

// doAll runs statements in order until one fails.
func doAll(ctx context.Context, tx *transaction, statements ...boundStatement) error {
	for _, s := range statements {
		if err := do(ctx, tx, s.query, s.args...); err != nil {
			return err
		}
	}
	return nil
}

// get reads one row into dest. If there is no row, the error is inventory.ErrNotFound.
func get(ctx context.Context, q sqlx.QueryerContext, dest any, query string, args ...any) error {
	err := sqlx.GetContext(ctx, q, dest, query, args...)
	if errors.Is(err, sql.ErrNoRows) {
		return inventory.ErrNotFound
	}
	return err
}

// scalar reads one value. If there is no row, the error is inventory.ErrNotFound.
func scalar[T any](ctx context.Context, q sqlx.QueryerContext, query string, args ...any) (v T, err error) {
	err = get(ctx, q, &v, query, args...)
	return v, err
}

// optional returns v and err. If err is inventory.ErrNotFound, it returns a zero value and no error instead.
func optional[T any](v T, err error) (T, error) {
	if errors.Is(err, inventory.ErrNotFound) {
		var zero T
		return zero, nil
	}
	return v, err
}

// A row is a row of a query. value converts it to a T.
type row[T any] interface{ value() (T, error) }

// read reads one row and converts it. If there is no row, the error is inventory.ErrNotFound.
func read[R row[T], T any](ctx context.Context, q sqlx.QueryerContext, query string, args ...any) (v T, err error) {
	var r R
	if err := get(ctx, q, &r, query, args...); err != nil {
		return v, err
	}
	return r.value()
}

// list reads all rows.
func list[R row[T], T any](ctx context.Context, q sqlx.QueryerContext, query string, args ...any) ([]T, error) {
	var rows []R
	if err := sqlx.SelectContext(ctx, q, &rows, query, args...); err != nil {
		return nil, err
	}
	out := make([]T, len(rows))
	for i, r := range rows {
		v, err := r.value()
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// A selection is a SELECT to which only the requested conditions are added. A constant SELECT, with parameters that switch conditions off,
// could not use the indexes.
type selection struct {
	query string
	args  []any
}

// where adds the condition to the SELECT if wanted is true.
func (s *selection) where(wanted bool, condition string, args ...any) {
	if wanted {
		s.query += " AND " + condition
		s.args = append(s.args, args...)
	}
}

// whereState selects the runs in this state. If state is [inventory.FilterWaiting], it selects the open runs for which
// Workflow.AwaitsOperator is true. table is the name that the query uses for the table workflow.
func (s *selection) whereState(table, state string) {
	waiting := state == inventory.FilterWaiting
	s.where(state != "" && !waiting, table+".state = ?", state)
	s.where(waiting, table+".final = 0 AND (json_extract("+table+".doc, '$.phase') = ? OR "+
		"json_extract("+table+".doc, '$.phase') = ? AND coalesce(json_extract("+table+".doc, '$.next'), '') <> '')",
		inventory.PhaseWaiting, inventory.PhasePower)
}

// whereLabels selects the rows of the table machine, named m, whose labels s selects.
func (s *selection) whereLabels(wanted selector.Selector) {
	for _, r := range wanted {
		condition, args := "json_extract(m.doc, ?)", []any{`$.labels."` + r.Key + `"`}
		switch r.Operator {
		case selector.In, selector.NotIn:
			condition += " IN (?" + strings.Repeat(", ?", len(r.Values)-1) + ")"
			for _, v := range r.Values {
				args = append(args, v)
			}
			if r.Operator == selector.NotIn {
				condition += " IS NOT true" // without the label it is NULL
			}
		case selector.Exists:
			condition += " IS NOT NULL"
		case selector.DoesNotExist:
			condition += " IS NULL"
		}
		s.where(true, condition, args...)
	}
}

// page adds ORDER BY and LIMIT to the SELECT.
func (s *selection) page(order string, limit int) {
	s.query += " ORDER BY " + order + " LIMIT ?"
	s.args = append(s.args, limit)
}

// pageOfRuns is for a SELECT of runs or operations, which have the columns started and run. It adds the condition for the beginning of page
// p, the order, and the limit. If limit is 0, it is 100.
func (s *selection) pageOfRuns(p inventory.RunPage, limit int) {
	order, after := "started DESC, run DESC", "(started, run) < (?, ?)"
	if p.Oldest {
		order, after = "started, run", "(started, run) > (?, ?)"
	}

	s.where(!p.AfterStarted.IsZero(), after, nanos(p.AfterStarted), p.AfterRun)
	s.page(order, cmp.Or(max(limit, 0), 100))
}

// A docRow is a row with the column doc, which contains a T as JSON.
type docRow[T any] struct{ Doc string }

func (r docRow[T]) value() (v T, err error) {
	err = json.Unmarshal([]byte(r.Doc), &v)
	return v, err
}

// readDoc reads one row whose column doc contains a T as JSON. If there is no row, the error is inventory.ErrNotFound.
func readDoc[T any](ctx context.Context, q sqlx.QueryerContext, query string, args ...any) (T, error) {
	return read[docRow[T], T](ctx, q, query, args...)
}

// listDocs reads all rows of a query whose column doc contains a T as JSON.
func listDocs[T any](ctx context.Context, q sqlx.QueryerContext, query string, args ...any) ([]T, error) {
	return list[docRow[T], T](ctx, q, query, args...)
}

// wrap adds the text, which says what failed, in front of err. If err is nil, it returns nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// nanos returns t as the database stores it: Unix time in nanoseconds, and 0 for the zero time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// moment converts the result of nanos back to a time, in UTC.
func moment(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// toJSON returns v as JSON text, to be stored in a column.
func toJSON(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}
