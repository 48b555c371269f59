package dbcopy

import (
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver "sqlite3"
)

func open(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func opener(path string) (*sql.DB, error) { return sql.Open("sqlite3", "file:"+path) }

func run(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

func original(t *testing.T) (*sql.DB, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "some.db")
	db := open(t, path)
	db.SetMaxOpenConns(1)
	run(t, db, "PRAGMA journal_mode = WAL")
	run(t, db, "CREATE TABLE thing (name TEXT PRIMARY KEY, n INTEGER, b BLOB)")
	run(t, db, "INSERT INTO thing VALUES ('a', 1, x'00ff'), ('b', NULL, NULL)")
	run(t, db, "CREATE TABLE other (x) ")
	return db, path
}

func TestMake(t *testing.T) {
	t.Parallel()
	_, path := original(t)
	to := path + ".copy"
	if err := Make(t.Context(), opener, func(p string) (*sql.DB, error) {
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it has its name before it is proven: %v", err)
		}
		return sql.Open("sqlite3", "file:"+p+"?mode=ro")
	}, path, to); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(to + partial); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its first name is still there: %v", err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the copy is %s", info.Mode())
	}
	var n int
	if err := open(t, to).QueryRow("SELECT count(*) FROM thing").Scan(&n); err != nil || n != 2 {
		t.Errorf("the copy has %d rows, %v", n, err)
	}
	if err := Make(t.Context(), opener, nil, path, to); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a copy over another gave %v", err)
	}
}

// A copy that is not the original, or is damaged, is found and does not stay.
func TestBadCopiesAreFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ spoil, want string }{
		"a value":  {"UPDATE thing SET n = 2 WHERE name = 'a'", `table "thing" has 2 rows`},
		"a row":    {"DELETE FROM thing WHERE name = 'b'", `table "thing" has 1 rows`},
		"a table":  {"DROP TABLE other", `table "other" has 0 rows`},
		"one more": {"CREATE TABLE third (x)", `unexpected table "third"`},
		"an index": {"PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = 2 WHERE name LIKE 'sqlite_autoindex%'", "is damaged"},
	} {
		_, path := original(t)
		to := path + ".copy"
		err := Make(t.Context(), opener, func(p string) (*sql.DB, error) {
			c, err := sql.Open("sqlite3", "file:"+p)
			if err == nil {
				_, err = c.Exec(test.spoil)
				err = errors.Join(err, c.Close())
			}
			if err != nil {
				return nil, err
			}
			return sql.Open("sqlite3", "file:"+p+"?mode=ro")
		}, path, to)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v, want %q in it", name, err, test.want)
		}
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the bad copy stays: %v", name, err)
		}
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "ingot.db")
	at := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	keep := []string{
		path, path + "-wal", filepath.Join(dir, "other.db.schema-1.20200101T000000.000000000Z.backup"),
		path + ".schema-1.by-hand.backup",
	}
	for i, schema := range []int{10, 9, 2} {
		keep = append(keep, Name(path, schema, at.Add(time.Duration(10+i)*time.Hour)))
	}
	for _, p := range append([]string{Name(path, 99, at), Name(path, 1, at.Add(time.Hour)), Name(path, 11, at.Add(20*time.Hour)) + partial},
		keep...) {
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Prune(path, 3); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != len(keep) {
		t.Errorf("%d files are left, want %d: %v", len(left), len(keep), left)
	}
	for _, p := range keep {
		if _, err := os.Stat(p); err != nil {
			t.Error(err)
		}
	}
}

// A database is copied while another connection writes all the time: what is proven
// is a state that the database had, and no writer waits.
func TestMakeWhileOthersWrite(t *testing.T) {
	t.Parallel()
	db, path := original(t)
	again := func(p string) (*sql.DB, error) { return sql.Open("sqlite3", "file:"+p+"?_busy_timeout=10000") }
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				done <- n
				return
			default:
			}
			// Both tables in one transaction: a copy that tore them apart would show.
			if _, err := db.Exec("BEGIN; INSERT INTO thing VALUES (hex(randomblob(8)), 2, NULL); INSERT INTO other VALUES (2); COMMIT"); err != nil {
				t.Error(err)
			}
			n++
		}
	}()
	to := path + ".copy"
	err := Make(t.Context(), again, again, path, to)
	close(stop)
	t.Logf("%d transactions during the copy", <-done)
	if err != nil {
		t.Fatal(err)
	}
	var things, others int
	if err := open(t, to).QueryRow("SELECT (SELECT count(*) FROM thing WHERE n = 2), (SELECT count(*) FROM other)").Scan(&things,
		&others); err != nil {
		t.Fatal(err)
	}
	if things != others {
		t.Errorf("the copy holds %d of one and %d of the other", things, others)
	}
}

func TestMakeLeavesNoHalfCopy(t *testing.T) {
	t.Parallel()
	_, path := original(t)
	to := filepath.Join(t.TempDir(), "copy")
	err := Make(t.Context(), opener, func(p string) (*sql.DB, error) {
		db, err := opener(p)
		if err == nil {
			_, err = db.Exec("DELETE FROM thing")
		}
		return db, err
	}, path, to)
	if err == nil || !strings.Contains(err.Error(), "thing") {
		t.Errorf("a copy that lacks rows: %v", err)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was left: %v", err)
	}
}
