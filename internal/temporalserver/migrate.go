package temporalserver

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"go.temporal.io/server/schema"

	"github.com/ingotmetal/ingot/internal/dbcopy"
	"github.com/ingotmetal/ingot/internal/temporalchild"
)

// temporalSchema is the newest of the server's versioned schemas (0.11), and
// visibilitySchema counts the changes of its visibility schema, which for
// SQLite has no versions. A test compares both with the server's scripts.
const (
	temporalSchema   = 11
	visibilitySchema = 1
)

// schemaStamp is kept in the file's user_version, because the server's own
// version check of SQLite files is empty: it would start on any file and fail
// later.
const schemaStamp = temporalSchema*100 + visibilitySchema

// schemaOf returns which of the server's versioned schemas (the 11 of 0.11) a
// file of this stamp has.
func schemaOf(stamp int) (int, bool) {
	return stamp / 100, stamp >= 100
}

// versioned is the directory of the server's migrations.
const versioned = "sqlite/v3/temporal/versioned"

// visibilityTable holds what lists and queries of runs are answered from.
const visibilityTable = "executions_visibility"

// migrateDatabase brings a file of an earlier schema to the present one: the
// server has no migration for SQLite, and would start on the old file and fail
// later. A verified backup comes first. All of it is one transaction.
func migrateDatabase(ctx context.Context, cfg temporalchild.Config, stamp int, logger *slog.Logger) error {
	from, ok := schemaOf(stamp)
	if !ok {
		return fmt.Errorf("its schema %d is unknown", stamp)
	}
	return withDatabase(dsn(cfg, "busy_timeout", "journal_mode", "synchronous"), func(db *sql.DB) error {
		backup, err := backUp(ctx, db, cfg.File, stamp)
		if err != nil {
			return err
		}
		began := time.Now()
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after a commit it has nothing to do
		if err := migrateTables(ctx, tx, from); err != nil {
			return fmt.Errorf("migrating from schema %d to %d (nothing was changed; the backup is %q): %w", stamp, schemaStamp, backup, err)
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("migrating from schema %d to %d (nothing was changed; the backup is %q): %w", stamp, schemaStamp, backup, err)
		}
		logger.Warn("the database of Temporal was migrated", "file", cfg.File, "from", stamp, "to", schemaStamp, "backup", backup, "took", time.Since(began).Round(time.Millisecond).String())
		return nil
	})
}

// backUp makes a verified copy beside the file, of which the last few are kept.
func backUp(ctx context.Context, db *sql.DB, file string, stamp int) (string, error) {
	to, err := makeBackup(ctx, db, file, stamp)
	if err != nil {
		return "", err
	}
	return to, pruneBackups(file)
}

// makeBackup makes a verified copy beside the file.
func makeBackup(ctx context.Context, db *sql.DB, file string, stamp int) (string, error) {
	// What a kill left of an earlier attempt takes room.
	if err := pruneBackups(file); err != nil {
		return "", err
	}
	to := dbcopy.Name(file, stamp, time.Now())
	open := func(path string) (*sql.DB, error) { return sql.Open("sqlite", "file:"+path+"?mode=ro") }
	if err := dbcopy.Make(ctx, db, open, to); err != nil {
		return "", fmt.Errorf("backing up to %q before the schema changes: %w", to, err)
	}
	return to, nil
}

func pruneBackups(file string) error {
	if err := dbcopy.Prune(file, dbcopy.Keep); err != nil {
		return fmt.Errorf("removing old backups of %q: %w", file, err)
	}
	return nil
}

func migrateTables(ctx context.Context, tx *sql.Tx, from int) error {
	before, err := dbcopy.Read(ctx, tx)
	if err != nil {
		return err
	}
	for v := from + 1; v <= temporalSchema; v++ {
		if err := applyVersion(ctx, tx, v); err != nil {
			return err
		}
	}
	if err := rebuildVisibility(ctx, tx); err != nil {
		return fmt.Errorf("rebuilding visibility: %w", err)
	}
	// A pragma takes no parameters.
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", schemaStamp)); err != nil {
		return err
	}
	after, err := dbcopy.Read(ctx, tx)
	if err != nil {
		return err
	}
	for _, name := range []string{"executions", "current_executions", "history_node", "history_tree", "namespaces", "shards", visibilityTable} {
		if before[name].Rows != after[name].Rows {
			return fmt.Errorf("table %q had %d rows and has %d", name, before[name].Rows, after[name].Rows)
		}
	}
	return compareSchema(ctx, tx)
}

// applyVersion runs one of the server's migrations.
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

type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func runScript(ctx context.Context, db executor, name string) error {
	script, err := fs.ReadFile(schema.Assets(), name)
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, string(script)); err != nil {
		return fmt.Errorf("running %q: %w", name, err)
	}
	return nil
}

// rebuildVisibility makes the tables of visibility anew and copies the columns
// that are stored: all others, the indexes and the text search follow from
// these.
func rebuildVisibility(ctx context.Context, tx *sql.Tx) error {
	const aside = "ingot_visibility_before"
	old, err := storedColumns(ctx, tx, visibilityTable)
	if err != nil {
		return err
	}
	var virtual []string
	have, err := describe(ctx, tx)
	if err != nil {
		return err
	}
	for name, d := range have {
		if strings.HasPrefix(name, "table "+visibilityTable+"_") && d.virtual {
			virtual = append(virtual, strings.TrimPrefix(name, "table "))
		}
	}
	statements := []string{
		"CREATE TABLE " + aside + " AS SELECT " + strings.Join(old, ", ") + " FROM " + visibilityTable,
		"DROP TABLE " + visibilityTable, // and its indexes and triggers
	}
	slices.Sort(virtual)
	for _, name := range virtual {
		statements = append(statements, "DROP TABLE "+name)
	}
	for _, s := range statements {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	if err := runScript(ctx, tx, schemaFiles[1]); err != nil {
		return err
	}
	fresh, err := storedColumns(ctx, tx, visibilityTable)
	if err != nil {
		return err
	}
	both := strings.Join(slices.DeleteFunc(fresh, func(c string) bool { return !slices.Contains(old, c) }), ", ")
	for _, s := range []string{
		"INSERT INTO " + visibilityTable + " (" + both + ") SELECT " + both + " FROM " + aside + " ORDER BY rowid",
		"DROP TABLE " + aside,
	} {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// querier is a database or a transaction of it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// storedColumns returns the columns of a table that are not computed.
func storedColumns(ctx context.Context, db querier, table string) ([]string, error) {
	all, err := columnsOf(ctx, db, table)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, c := range all {
		if c.hidden == 0 {
			out = append(out, c.name)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("there is no table %q", table)
	}
	return out, nil
}

type column struct {
	name    string
	text    string // name, type and whether it may be NULL
	hidden  int    // 0: stored, 2 and 3: computed
	primary int
}

func columnsOf(ctx context.Context, db querier, table string) (out []column, err error) {
	rows, err := db.QueryContext(ctx, `SELECT name, name || ' ' || type || ' ' || "notnull" || ' ' || pk || ' ' || hidden, hidden, pk FROM pragma_table_xinfo(?)`, table)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var c column
		if err := rows.Scan(&c.name, &c.text, &c.hidden, &c.primary); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, rows.Err()
}

// description is one table, index or trigger.
type description struct {
	text    string
	virtual bool
}

// describe returns the schema by "kind name", in a form in which a table that
// was altered equals one that was made so.
func describe(ctx context.Context, db querier) (_ map[string]description, err error) {
	out := map[string]description{}
	var tables []string
	err = func() (err error) {
		rows, err := db.QueryContext(ctx, "SELECT type, name, coalesce(sql, '') FROM sqlite_master")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var kind, name, text string
			if err := rows.Scan(&kind, &name, &text); err != nil {
				return err
			}
			d := description{text: strings.Join(strings.Fields(text), " ")}
			if kind == "table" {
				d.virtual = strings.HasPrefix(strings.ToUpper(text), "CREATE VIRTUAL")
				tables = append(tables, name)
			}
			out[kind+" "+name] = d
		}
		return rows.Err()
	}()
	if err != nil {
		return nil, err
	}
	for _, name := range tables {
		columns, err := columnsOf(ctx, db, name)
		if err != nil {
			return nil, err
		}
		var texts []string
		for _, c := range columns {
			texts = append(texts, c.text)
		}
		slices.Sort(texts)
		d := out["table "+name]
		d.text = strings.Join(texts, ", ")
		out["table "+name] = d
	}
	return out, nil
}

// compareSchema tells whether the migrated file has the schema of a new one.
func compareSchema(ctx context.Context, tx *sql.Tx) error {
	got, err := describe(ctx, tx)
	if err != nil {
		return err
	}
	var want map[string]description
	err = withDatabase(":memory:", func(db *sql.DB) error {
		for _, name := range schemaFiles {
			if err := runScript(ctx, db, name); err != nil {
				return err
			}
		}
		var err error
		want, err = describe(ctx, db)
		return err
	})
	if err != nil {
		return err
	}
	for name, w := range want {
		if g, ok := got[name]; !ok || g.text != w.text {
			return fmt.Errorf("%s is %q after the migration and %q in a new file", name, g.text, w.text)
		}
	}
	return nil
}
