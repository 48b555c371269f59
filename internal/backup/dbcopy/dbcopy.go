// Package dbcopy copies SQLite databases and verifies the copies. It does not depend on a driver, because Ingot's two databases
// are opened by different drivers.
package dbcopy

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
)

// A Content holds, by the name of the table, the number of rows and a digest of each table of a database.
type Content map[string]Table

// Table describes the content of one table.
type Table struct {
	Rows   int64  `json:"rows"`
	SHA256 string `json:"sha256"`
}

// A Queryer is a connection, a transaction or a pool.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// A Database describes the content of a database.
type Database struct {
	Schema  int     `json:"schema"`
	Cluster string  `json:"cluster,omitempty"` // id of the Temporal cluster in which the site's runs live; "" = none yet
	Tables  Content `json:"tables"`
}

// Rows returns the number of rows in all tables.
func (d Database) Rows() (n int64) {
	for _, t := range d.Tables {
		n += t.Rows
	}
	return n
}

// String describes the database for operators.
func (d Database) String() string {
	return fmt.Sprintf("%d rows in %d tables, schema %d", d.Rows(), len(d.Tables), d.Schema)
}

// A Copy describes a database that was copied for a backup.
type Copy struct {
	ID string // id of the backup; "" = the copy has none
	Database
}

// An Opener opens the database at path.
type Opener func(path string) (*sql.DB, error)

// partial is the suffix of the name of a copy that is not verified yet.
const partial = ".tmp"

// tries limits the attempts to copy a database that other connections change.
const tries = 10

// Make copies the database at from to the new file to, with mode 0600 and synced to the disk. It verifies the integrity of the
// copy, and that each table has the rows and the content of the copied state. Until the copy is verified it has another name:
// if a crash interrupts Make, the incomplete copy is not mistaken for a complete one. After an error, no file is left.
//
// The database must be in WAL mode; other connections and processes may write to it at the same time, and never wait. original
// opens the database, with the driver that this process already uses for it; open opens the copy.
func Make(ctx context.Context, original, open Opener, from, to string) (err error) {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, &fs.PathError{Op: "creating", Path: to, Err: fs.ErrExist})
	}
	db, err := original(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	part := to + partial
	for try := 1; ; try++ {
		differ, err := copyState(ctx, db, open, part)
		if err == nil && differ == nil {
			break
		}
		if err == nil {
			err = os.Remove(part)
		}

		// If the copy differs, another connection has written between the two reads in copyState, which are
		// microseconds apart.
		if err != nil || try == tries {
			return errors.Join(differ, err)
		}
	}

	if err := os.Rename(part, to); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return durablefile.SyncDir(filepath.Dir(to))
}

// copyState copies the database while a read transaction keeps the state with which the copy is compared. differ is nil if the
// copy equals that state; otherwise it describes the difference.
func copyState(ctx context.Context, db *sql.DB, open Opener, to string) (differ, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // tx has only read
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // returns the connection to its pool
	var n int
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&n); err != nil {
		return nil, err
	}

	// A transaction sees the state at the time of its first statement: make that statement now.
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&n); err != nil {
		return nil, err
	}
	if err := write(ctx, conn, to); err != nil {
		return nil, err
	}

	want, err := Read(ctx, tx)
	if err != nil {
		return nil, errors.Join(err, os.Remove(to))
	}
	return verify(ctx, open, to, want), nil
}

func write(ctx context.Context, conn *sql.Conn, path string) error {
	// Create the file here: SQLite would create it readable for all users.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err = conn.ExecContext(ctx, "VACUUM INTO ?", path); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path)) // an incomplete copy must not remain
	}
	return durablefile.SyncDir(filepath.Dir(path))
}

func verify(ctx context.Context, open Opener, path string, want Content) (err error) {
	db, err := open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	got, err := Sound(ctx, db)
	if err != nil {
		return err
	}
	return Differ(want, got)
}

// Sound returns the content of db if PRAGMA integrity_check finds no error.
func Sound(ctx context.Context, db *sql.DB) (Content, error) {
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&verdict); err != nil {
		return nil, err
	}
	if verdict != "ok" {
		return nil, fmt.Errorf("the copy of the database is damaged: %s", verdict)
	}
	return Read(ctx, db)
}

// Differ returns nil if both databases have the same content, and otherwise an error that names a table in which they
// differ.
func Differ(want, got Content) error {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if want[name] != got[name] {
			return fmt.Errorf("table %q has %d rows (SHA-256 %.12s) instead of %d (SHA-256 %.12s)", name, got[name].Rows, got[name].SHA256,
				want[name].Rows, want[name].SHA256)
		}
	}

	for name := range got {
		if _, ok := want[name]; !ok {
			return fmt.Errorf("unexpected table %q", name)
		}
	}
	return nil
}

// Read returns the content of db. It skips virtual tables, because their content is in other tables, which Read reads,
// too.
func Read(ctx context.Context, db Queryer) (Content, error) {
	names, err := ReadStrings(ctx, db, "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name")
	if err != nil {
		return nil, err
	}

	out := Content{}
	for _, name := range names {
		if out[name], err = table(ctx, db, name); err != nil {
			return nil, fmt.Errorf("reading table %q: %w", name, err)
		}
	}
	return out, nil
}

// ReadRows returns the result of scan for each row of a query.
func ReadRows[T any](
	ctx context.Context, db Queryer, scan func(*sql.Rows) (T, error), query string, args ...any,
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

// ReadStrings returns the values of a query's only column.
func ReadStrings(ctx context.Context, db Queryer, query string, args ...any) ([]string, error) {
	return ReadRows(ctx, db, func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) }, query, args...)
}

// table reads the rows in their stored order, which VACUUM keeps.
func table(ctx context.Context, db Queryer, name string) (t Table, err error) {
	rows, err := db.QueryContext(ctx, `SELECT * FROM "`+strings.ReplaceAll(name, `"`, `""`)+`" NOT INDEXED`)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	columns, err := rows.Columns()
	if err != nil {
		return t, err
	}

	values := make([]sql.RawBytes, len(columns))
	into := make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	h := sha256.New()
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return t, err
		}

		t.Rows++
		for _, v := range values {
			if v == nil {
				h.Write([]byte("-;"))
				continue
			}
			h.Write([]byte(strconv.Itoa(len(v)) + ":"))
			h.Write(v)
		}
	}

	t.SHA256 = hex.EncodeToString(h.Sum(nil))
	return t, rows.Err()
}

// Keep is the number of pre-migration backups that are kept next to a database.
const Keep = 3

// Name returns the path for a pre-migration backup of the database at path. schema is the version of the schema before the
// migration, and now the time of the backup.
func Name(path string, schema int, now time.Time) string {
	return fmt.Sprintf("%s.schema-%d.%s.backup", path, schema, now.UTC().Format("20060102T150405.000000000Z"))
}

// Prune handles the backups of the database at path that are named by [Name]: it keeps the newest ones, as many as keep
// says, and removes the older ones and all incomplete copies. No copy may be in progress.
func Prune(path string, keep int) error {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return err
	}

	form := regexp.MustCompile(`^` + regexp.QuoteMeta(base) + `\.schema-[^.]*\.(.*Z\.backup)(` + regexp.QuoteMeta(partial) + `)?$`)
	var all [][]string // per backup: its name, and the part of the name that begins with the time
	var errs []error
	for _, e := range entries {
		switch m := form.FindStringSubmatch(e.Name()); {
		case m == nil:
		case m[2] != "":
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		default:
			all = append(all, m)
		}
	}

	slices.SortFunc(all, func(a, b []string) int { return strings.Compare(b[1], a[1]) })
	for _, old := range all[min(keep, len(all)):] {
		errs = append(errs, os.Remove(filepath.Join(dir, old[0])))
	}
	return errors.Join(errs...)
}
