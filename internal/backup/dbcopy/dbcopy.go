// Package dbcopy copies SQLite databases and verifies the copies. It is independent
// of the driver: both of Ingot's databases use it, each with its own.
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

// A Content says what a database holds: rows and digest of each table.
type Content map[string]Table

// Table is the content of one table.
type Table struct {
	Rows   int64  `json:"rows"`
	SHA256 string `json:"sha256"`
}

// A Queryer is a connection, a transaction or a pool.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// A Database is what a database holds.
type Database struct {
	Schema  int     `json:"schema"`
	Cluster string  `json:"cluster,omitempty"` // in which the site's runs live; "": it never had one
	Tables  Content `json:"tables"`
}

// Rows returns the number of rows.
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

// A Copy is a database that was copied for a backup.
type Copy struct {
	ID string // of the backup; "": the copy has none
	Database
}

// An Opener opens the database at path.
type Opener func(path string) (*sql.DB, error)

// partial is the suffix of a copy that is not verified yet.
const partial = ".tmp"

// tries limits the attempts to copy a database while others write to it.
const tries = 10

// Make copies the database at from to a new file, with mode 0600 and synced to the
// disk, and proves it: its integrity, and that each table has the rows and the
// content of the state that was copied. Until then the copy has another name,
// so that what a kill leaves never counts as a copy. On an error no file is left.
//
// Others may go on writing, in this process or another: no writer waits. The
// database must be in WAL mode. Original opens it once more, with the driver that
// has it open already; open opens the copy.
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

		// Another connection has written between the two looks, which are microseconds apart.
		if err != nil || try == tries {
			return errors.Join(differ, err)
		}
	}

	if err := os.Rename(part, to); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return durablefile.SyncDir(filepath.Dir(to))
}

// copyState makes the copy while one connection keeps the state that is
// copied. Differ is how the copy differs from that state; nil: not at all.
func copyState(ctx context.Context, db *sql.DB, open Opener, to string) (differ, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // back to its pool
	var n int
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&n); err != nil {
		return nil, err
	}

	// The first statement of a transaction is what fixes the state that it sees.
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
	// SQLite would make it readable for all.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err = conn.ExecContext(ctx, "VACUUM INTO ?", path); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path)) // half a copy is worse than none
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

// Sound returns what db holds, after SQLite itself has found nothing wrong.
func Sound(ctx context.Context, db *sql.DB) (Content, error) {
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&verdict); err != nil {
		return nil, err
	}
	if verdict != "ok" {
		return nil, fmt.Errorf("the copy is not sound: %s", verdict)
	}
	return Read(ctx, db)
}

// Differ returns an error that names a table in which two databases differ.
func Differ(want, got Content) error {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if want[name] != got[name] {
			return fmt.Errorf("table %q has %d rows (%.12s) and not %d (%.12s)", name, got[name].Rows, got[name].SHA256,
				want[name].Rows, want[name].SHA256)
		}
	}

	for name := range got {
		if _, ok := want[name]; !ok {
			return fmt.Errorf("table %q is in one of them only", name)
		}
	}
	return nil
}

// Read returns what db holds. Virtual tables stand for others, which are read.
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

// ReadRows returns what scan makes of each row of a query.
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

// ReadStrings returns the only column of a query.
func ReadStrings(ctx context.Context, db Queryer, query string, args ...any) ([]string, error) {
	return ReadRows(ctx, db, func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) }, query, args...)
}

// table reads in the order of the rows, which VACUUM keeps.
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

// Keep is how many backups of before a migration stay next to a database.
const Keep = 3

// Name is where the backup of a database belongs that is made before its
// schema of this version changes.
func Name(path string, schema int, now time.Time) string {
	return fmt.Sprintf("%s.schema-%d.%s.backup", path, schema, now.UTC().Format("20060102T150405.000000000Z"))
}

// Prune removes the oldest backups that [Name] named for path, but for the
// newest keep of them, and what is left of copies that were not finished. No
// other copy may be under way.
func Prune(path string, keep int) error {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return err
	}

	form := regexp.MustCompile(`^` + regexp.QuoteMeta(base) + `\.schema-[^.]*\.(.*Z\.backup)(` + regexp.QuoteMeta(partial) + `)?$`)
	var all [][]string // name, time and end of each backup
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
