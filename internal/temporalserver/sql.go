package temporalserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"go.temporal.io/server/schema"

	"github.com/ingotmetal/ingot/internal/dbcopy"
)

// database is a database or a transaction of it.
type database interface {
	dbcopy.Queryer
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
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
