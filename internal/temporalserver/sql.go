package temporalserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"go.temporal.io/server/schema"
)

// database is a database or a transaction of it.
type database interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// withDatabase opens a database with one connection for use.
func withDatabase(dsn string, use func(*sql.DB) error) error {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return err
	}

	db.SetMaxOpenConns(1)
	return errors.Join(use(db), db.Close())
}

// inTransaction commits what change does if it returns no error.
func inTransaction(ctx context.Context, db *sql.DB, change func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := change(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}

	return tx.Commit()
}

// runScript runs one of the server's SQL scripts.
func runScript(ctx context.Context, db database, name string) error {
	script, err := fs.ReadFile(schema.Assets(), name)
	if err != nil {
		return err
	}

	if _, err := db.ExecContext(ctx, string(script)); err != nil {
		return fmt.Errorf("running %q: %w", name, err)
	}
	return nil
}

// execAll runs statements until one fails.
func execAll(ctx context.Context, db database, statements ...string) error {
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// writeStamp writes schemaStamp into the file. A pragma takes no parameters.
func writeStamp(ctx context.Context, db database) error {
	return execAll(ctx, db, fmt.Sprintf("PRAGMA user_version = %d", schemaStamp))
}

// readRows returns what scan makes of each row.
func readRows[T any](
	ctx context.Context, db database, scan func(*sql.Rows) (T, error), query string, args ...any,
) (out []T, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()

	for rows.Next() {
		row, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, row)
	}

	return out, rows.Err()
}

// readStrings returns the only column of a query.
func readStrings(ctx context.Context, db database, query string, args ...any) ([]string, error) {
	return readRows(ctx, db, func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) }, query, args...)
}
