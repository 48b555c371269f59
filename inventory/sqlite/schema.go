package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
)

//go:embed migrations/*.sql
var embedded embed.FS

// applicationID is the application_id of an inventory ("Ingo" in ASCII). It distinguishes an inventory from other SQLite files, such as
// Temporal's in the same directory.
const applicationID = 0x496e676f

// A schema is the list of migrations that this program contains, in order. The first migration, called the baseline, creates all tables.
// Each later migration changes the schema that the migrations before it have made.
type schema []migration

// A migration is a file NNNN_subject.sql with the statements that change the schema. After these statements, the user_version of the
// database is NNNN.
type migration struct {
	version int
	name    string
	text    string
}

func (s schema) baseline() int { return s[0].version }
func (s schema) version() int  { return s[len(s)-1].version }

// embeddedSchema returns the migrations in this program.
func embeddedSchema() (schema, error) {
	dir, err := fs.Sub(embedded, "migrations")
	if err != nil {
		return nil, err
	}
	return readSchema(dir)
}

// readSchema reads the migrations from a folder.
func readSchema(dir fs.FS) (schema, error) {
	names, err := fs.Glob(dir, "*.sql")
	if err != nil {
		return nil, err
	}

	var out schema
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("reading the number of migration %q: %w", name, err)
		}
		out = append(out, migration{version, name, string(text)})
	}

	slices.SortFunc(out, func(a, b migration) int { return cmp.Compare(a.version, b.version) })
	return out, nil
}

// checkFile calls check for the database file at path. It does not change the file.
func (s schema) checkFile(ctx context.Context, path string) (err error) {
	db, err := sqlx.Open("sqlite3", dsn(path, "_busy_timeout=10000&_query_only=on"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return s.check(ctx, db)
}

// check returns an error if db is not an inventory, or if this program cannot migrate its schema. An empty database is accepted.
func (s schema) check(ctx context.Context, db *sqlx.DB) error {
	var have, app, tables int
	for query, dest := range map[string]*int{
		"PRAGMA user_version":                &have,
		"PRAGMA application_id":              &app,
		"SELECT count(*) FROM sqlite_master": &tables,
	} {
		if err := db.GetContext(ctx, dest, query); err != nil {
			return err
		}
	}

	switch {
	case tables > 0 && app != applicationID:
		return errors.New("the file is the database of another program: name another path")
	case have > s.version():
		return fmt.Errorf("the database has schema version %d, and this program supports versions up to %d: "+
			"start the newer ingot again, or restore the backup that the newer ingot made next to the file before it migrated",
			have, s.version())
	case have > 0 && have < s.baseline():
		return fmt.Errorf("the database has schema version %d, from before the first release, and this program supports versions from %d on: "+
			"start with an empty data directory and add machines, templates and images again", have, s.baseline())
	}

	return nil
}

// migrate applies, in one transaction, the migrations whose numbers are greater than the database's user_version. If the database is not
// new, it first makes a backup.
func (s *Store) migrate(ctx context.Context, known schema) error {
	var have int
	if err := s.rw.GetContext(ctx, &have, "PRAGMA user_version"); err != nil {
		return err
	}
	if have >= known.version() {
		return nil
	}
	if have > 0 {
		if err := s.backupSchema(ctx, have); err != nil {
			return fmt.Errorf("preparing the migration from schema version %d: %w", have, err)
		}
	}

	return s.write(ctx, "migrating", func(tx *transaction) error {
		// Read the version again: another process may have migrated the database since.
		if err := tx.GetContext(ctx, &have, "PRAGMA user_version"); err != nil {
			return err
		}

		for _, m := range known {
			if m.version <= have {
				continue
			}
			if _, err := tx.ExecContext(ctx, m.text); err != nil {
				return fmt.Errorf("applying %q: %w", m.name, err)
			}
			have = m.version
		}

		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID,
			have))
		return err
	})
}

// backupSchema copies the database to a file next to it and verifies the copy. It keeps only the last few of these copies. version is the
// version of the database's schema, and becomes part of the copy's name.
func (s *Store) backupSchema(ctx context.Context, version int) error {
	// To free disk space for the copy, first remove an incomplete copy that an earlier, killed process has left.
	if err := s.pruneBackups(); err != nil {
		return err
	}

	to := dbcopy.Name(s.path, version, s.now())
	reading := func(path string) (*sql.DB, error) {
		return sql.Open("sqlite3", dsn(path, "mode=ro&_busy_timeout=10000"))
	}
	if err := dbcopy.Make(ctx, reading, reading, s.path, to); err != nil {
		return fmt.Errorf("backing up the inventory to %q: %w", to, err)
	}
	return s.pruneBackups()
}

// pruneBackups deletes the backups that backupSchema has made, except the last few.
func (s *Store) pruneBackups() error {
	if err := dbcopy.Prune(s.path, dbcopy.Keep); err != nil {
		return fmt.Errorf("removing old backups: %w", err)
	}
	return nil
}
