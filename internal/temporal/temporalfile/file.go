// Package temporalfile reads and copies the database file of the embedded Temporal. It does not import the server, so that a
// program that only reads the file stays small.
package temporalfile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite" // the driver with which the server opens the file

	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// TemporalSchema is the newest version of the server's schema (0.11). VisibilitySchema counts the changes of the visibility
// schema, which has no versions for SQLite. A test compares both with the server's scripts.
const (
	TemporalSchema   = 11
	VisibilitySchema = 1
)

// SchemaStamp is the schema version that Ingot stores in the file's user_version, because the server does not check an SQLite file:
// it starts with any file and fails later.
const SchemaStamp = TemporalSchema*100 + VisibilitySchema

// Database is a database or a transaction.
type Database interface {
	dbcopy.Queryer
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Use opens a database with one connection, calls use, and closes the database.
func Use(dsn string, use func(*sql.DB) error) error {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return err
	}

	db.SetMaxOpenConns(1)
	return errors.Join(use(db), db.Close())
}

// OpenAgain opens another connection to a database that is already open. It also opens copies of the database.
func OpenAgain(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?mode=rw&_pragma=busy_timeout=10000")
}

// ExecAll runs the statements in order until one fails.
func ExecAll(ctx context.Context, db Database, statements ...string) error {
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// WriteStamp writes SchemaStamp into the file. A PRAGMA accepts no bound parameters.
func WriteStamp(ctx context.Context, db Database) error {
	return ExecAll(ctx, db, fmt.Sprintf("PRAGMA user_version = %d", SchemaStamp))
}

// CheckStamp returns the file's stamp (0 = new file), or a *Failure if the file is newer than this program or not Ingot's.
func CheckStamp(ctx context.Context, db *sql.DB, file string) (stamp int, err error) {
	var tables int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&stamp); err != nil {
		return 0, err
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&tables); err != nil {
		return 0, err
	}

	switch {
	case stamp == 0 && tables > 0, stamp != 0 && stamp < 100:
		return 0, &temporalchild.Failure{
			Message: fmt.Sprintf("the database %q was not made by Ingot (it has tables, but not Ingot's user_version)", file),
			Remedy:  "move the file away, or choose another data_dir",
		}
	case stamp > SchemaStamp:
		return 0, &temporalchild.Failure{
			Message: fmt.Sprintf("the database %q has schema %d, but this Ingot supports schemas only up to %d", file, stamp, SchemaStamp),
			Remedy:  "a newer Ingot has used the database: run that version, or restore a backup made before the upgrade",
		}
	}

	return stamp, nil
}
