package temporalserver

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"go.temporal.io/server/schema"

	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
)

// versioned is the directory of the server's migrations, one subdirectory for each version.
const versioned = "sqlite/v3/temporal/versioned"

// visibilityTable is the table for listing and querying runs.
const visibilityTable = "executions_visibility"

// migrateDatabase migrates a file with an earlier schema to the current one, because the server cannot migrate SQLite files. It
// makes a verified backup first, and then migrates in one transaction.
func migrateDatabase(ctx context.Context, cfg temporalchild.Config, stamp int, logger *slog.Logger) error {
	return temporalfile.Use(dsn(cfg, "busy_timeout", "journal_mode", "synchronous"), func(db *sql.DB) error {
		backup, err := makeBackup(ctx, cfg.File, stamp)
		if err != nil {
			return err
		}

		began := time.Now()
		if err := inTransaction(ctx, db, func(tx *sql.Tx) error { return migrateTables(ctx, tx, stamp/100) }); err != nil {
			return fmt.Errorf("migrating from schema %d to %d (nothing was changed; the backup is %q): %w",
				stamp, temporalfile.SchemaStamp, backup, err)
		}
		logger.Warn("the database of Temporal was migrated", "file", cfg.File, "from", stamp, "to", temporalfile.SchemaStamp,
			"backup", backup, "took", time.Since(began).Round(time.Millisecond).String())
		return nil
	})
}

// makeBackup makes a verified copy next to the file and returns its path. It keeps the newest copies only, and removes the files of
// an interrupted attempt.
func makeBackup(ctx context.Context, file string, stamp int) (string, error) {
	prune := func() error { return dbcopy.Prune(file, dbcopy.Keep) } // no context needed: an error of Prune names the file
	if err := prune(); err != nil {
		return "", err
	}

	backup := dbcopy.Name(file, stamp, time.Now())
	if err := dbcopy.Make(ctx, temporalfile.OpenAgain, temporalfile.OpenAgain, file, backup); err != nil {
		return "", fmt.Errorf("backing up to %q before the migration: %w", backup, err)
	}

	return backup, prune()
}

// migrateTables applies the server's migrations that follow version from, rebuilds visibility, and checks the numbers of
// rows and the schema.
func migrateTables(ctx context.Context, tx *sql.Tx, from int) error {
	before, err := dbcopy.Read(ctx, tx)
	if err != nil {
		return err
	}

	for v := from + 1; v <= temporalfile.TemporalSchema; v++ {
		if err := applyVersion(ctx, tx, v); err != nil {
			return err
		}
	}
	if err := rebuildVisibility(ctx, tx); err != nil {
		return fmt.Errorf("rebuilding visibility: %w", err)
	}
	if err := temporalfile.WriteStamp(ctx, tx); err != nil {
		return err
	}

	after, err := dbcopy.Read(ctx, tx)
	if err != nil {
		return err
	}

	for _, name := range []string{
		"executions", "current_executions", "history_node", "history_tree", "namespaces", "shards", visibilityTable,
	} {
		if before[name].Rows != after[name].Rows {
			return fmt.Errorf("table %q had %d rows before the migration and has %d after it", name, before[name].Rows, after[name].Rows)
		}
	}

	return compareSchema(ctx, tx)
}

// applyVersion runs the server's migration to version 0.v.
func applyVersion(ctx context.Context, tx *sql.Tx, v int) error {
	dir := path.Join(versioned, fmt.Sprintf("v0.%d", v))
	text, err := fs.ReadFile(schema.Assets(), path.Join(dir, "manifest.json"))
	if err != nil {
		return err
	}

	var manifest struct{ SchemaUpdateCqlFiles []string }
	if err := json.Unmarshal(text, &manifest); err != nil {
		return fmt.Errorf("reading the manifest of %q: %w", dir, err)
	}

	for _, name := range manifest.SchemaUpdateCqlFiles {
		if err := runScript(ctx, tx, path.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// rebuildVisibility recreates the visibility tables and copies their stored columns. From these columns, SQLite computes the others, the
// indexes and the text search.
func rebuildVisibility(ctx context.Context, tx *sql.Tx) error {
	const aside = "ingot_visibility_before"
	old, err := storedColumns(ctx, tx)
	if err != nil {
		return err
	}

	searchTables, err := dbcopy.ReadStrings(ctx, tx, `SELECT name FROM sqlite_master
		WHERE substr(name, 1, length(?1)) = ?1 AND sql LIKE 'CREATE VIRTUAL%' ORDER BY name`, visibilityTable+"_")
	if err != nil {
		return err
	}

	statements := []string{
		"CREATE TABLE " + aside + " AS SELECT " + strings.Join(old, ", ") + " FROM " + visibilityTable,
		"DROP TABLE " + visibilityTable, // drops the table's indexes and triggers, too
	}

	for _, name := range searchTables {
		statements = append(statements, "DROP TABLE "+name)
	}
	if err := temporalfile.ExecAll(ctx, tx, statements...); err != nil {
		return err
	}
	if err := runScript(ctx, tx, schemaFiles[1]); err != nil {
		return err
	}

	columns, err := storedColumns(ctx, tx)
	if err != nil {
		return err
	}

	columns = slices.DeleteFunc(columns, func(c string) bool { return !slices.Contains(old, c) })
	both := strings.Join(columns, ", ")
	return temporalfile.ExecAll(ctx, tx,
		"INSERT INTO "+visibilityTable+" ("+both+") SELECT "+both+" FROM "+aside+" ORDER BY rowid",
		"DROP TABLE "+aside)
}

// storedColumns returns the columns of the visibility table that are not generated.
func storedColumns(ctx context.Context, tx *sql.Tx) ([]string, error) {
	names, err := dbcopy.ReadStrings(ctx, tx, "SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0", visibilityTable)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("table %q is missing or has no columns", visibilityTable)
	}

	return names, err
}

// compareSchema returns an error unless the migrated file has the schema of a new one.
func compareSchema(ctx context.Context, tx *sql.Tx) error {
	got, err := describeSchema(ctx, tx)
	if err != nil {
		return err
	}

	var want []string
	err = temporalfile.Use(":memory:", func(db *sql.DB) error {
		for _, name := range schemaFiles {
			if err := runScript(ctx, db, name); err != nil {
				return err
			}
		}
		var err error
		want, err = describeSchema(ctx, db)
		return err
	})
	if err != nil {
		return err
	}

	for _, w := range want {
		if !slices.Contains(got, w) {
			return fmt.Errorf("after the migration, the database does not contain %q", w)
		}
	}
	return nil
}

// describeSchema returns one text for each table, index and trigger. The text of an altered table is the same as the text of a new table
// with these columns.
func describeSchema(ctx context.Context, db temporalfile.Database) ([]string, error) {
	texts, err := dbcopy.ReadStrings(ctx, db, `SELECT type || ' ' || name || ': ' || coalesce(CASE type WHEN 'table' THEN
		(SELECT group_concat(text, ', ') FROM (SELECT name || ' ' || type || ' ' || "notnull" || ' ' || pk || ' ' || hidden AS text
			FROM pragma_table_xinfo(m.name) ORDER BY text)) ELSE sql END, '') FROM sqlite_master m`)
	for i, text := range texts {
		texts[i] = strings.Join(strings.Fields(text), " ")
	}

	return texts, err
}
