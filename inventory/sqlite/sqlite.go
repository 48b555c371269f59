// Package sqlite stores the inventory in a SQLite database.
//
// Two pools serve it. Writes go through one connection whose transactions
// begin immediate; reads go through connections that cannot write and see one
// statement at a time, so that no reader ever waits for a writer. The boot
// path uses the latter alone.
package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/mattn/go-sqlite3"

	"github.com/ingotmetal/ingot/inventory"
)

// A Sealer encrypts and decrypts under the key of a purpose, bound to what the
// plain text belongs to. A key that is missing or wrong is
// inventory.ErrSealed.
type Sealer interface {
	Seal(purpose, binding string, plain []byte) ([]byte, error)
	Open(purpose, binding string, sealed []byte) ([]byte, error)
}

// A Store is an inventory kept in one SQLite file. Its methods may be called
// concurrently.
type Store struct {
	rw, ro *sqlx.DB
	path   string
	keys   Sealer
	full   func()                           // is told that the disk has no room; may be nil
	bad    atomic.Pointer[map[string]error] // purposes that must not be sealed with, and why
	now    func() time.Time
	// notices are the events of which notices are written; none: no notices.
	notices []string

	mu        sync.Mutex
	subs      map[chan struct{}]string // the machine that each asks about; "" = everything
	followers map[*follower]bool
	// touched has, for each transaction under way, the machines of which it changes
	// something; true: grants, assignments or events, which agents wait for. There may be two: database/sql gives the
	// connection to the next transaction as soon as the context of one has ended,
	// which the code between its statements notices later.
	touched map[*sqlx.Tx]map[string]bool
	driver  driver.Driver // of both pools
}

// An Option changes how a Store is opened.
type Option func(*Store)

// WithClock makes the store take the time from now instead of time.Now.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// WithFull makes the store call f when a write finds no room on the disk, so
// that some may be made before it is tried again.
func WithFull(f func()) Option { return func(s *Store) { s.full = f } }

// Open opens the database at path, creating and migrating it as needed; before
// an existing schema migrates, a verified backup is made beside it, of which
// the last few are kept.
//
// Keys may be nil or wrong: then everything is served that is not secret, and
// what is secret answers inventory.ErrSealed. A database of a newer schema, or of
// one before the baseline, is refused; one that cannot be read for damage is
// [ErrDamaged].
func Open(ctx context.Context, path string, keys Sealer, opts ...Option) (*Store, error) {
	schema, err := embeddedSchema()
	if err != nil {
		return nil, fmt.Errorf("opening inventory %q: %w", path, err)
	}
	s, err := open(ctx, path, keys, schema, opts...)
	if err != nil {
		return nil, fmt.Errorf("opening inventory %q: %w", path, asDamaged(err))
	}
	return s, nil
}

func open(ctx context.Context, path string, keys Sealer, schema schema, opts ...Option) (s *Store, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}

	// SQLite would make it readable for all; WAL and index take its mode.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}

	s = &Store{
		path: path, keys: keys, now: time.Now, subs: map[chan struct{}]string{},
		touched: map[*sqlx.Tx]map[string]bool{}, followers: map[*follower]bool{}, driver: sqliteDriver(),
	}
	for _, o := range opts {
		o(s)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()

	// Without the pragmas, which would already change a file that is refused.
	if err := schema.checkFile(ctx, path); err != nil {
		return s, err
	}

	// Every setting belongs to the connection, and the pool may open another one at
	// any time: it closes the one whose transaction was cancelled. The driver
	// compiles WAL with synchronous NORMAL, with which acknowledged reports die with
	// the power. secure_delete overwrites secrets that are replaced or deleted.
	// auto_vacuum counts for a new file only.
	s.rw = s.pool("_auto_vacuum=incremental&_txlock=immediate&_synchronous=FULL&_journal_mode=WAL" +
		"&_secure_delete=on&_busy_timeout=10000&_foreign_keys=on&_stmt_cache_size=128")
	s.rw.SetMaxOpenConns(1)
	if err := s.migrate(ctx, schema); err != nil {
		return s, s.noRoom(err)
	}

	s.ro = s.pool("_query_only=on&_busy_timeout=10000&_stmt_cache_size=128")
	s.ro.SetMaxOpenConns(8)
	s.ro.SetMaxIdleConns(8)
	return s, s.checkKeys(ctx)
}

// Limits of the write-ahead log: what it is cut back to, bytes, and after how
// many pages its content goes into the database. The log grows beyond while a
// reader holds an older state: readers see one statement at a time, most of them for
// milliseconds, but Copy and Check hold theirs until all of it is read.
const (
	maxJournal      = 8 << 20
	checkpointEvery = 1000
)

func sqliteDriver() driver.Driver {
	return &sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
		_, err := c.Exec(fmt.Sprintf("PRAGMA journal_size_limit = %d; PRAGMA wal_autocheckpoint = %d", maxJournal,
			checkpointEvery), nil)
		return err
	}}
}

// pool returns a pool of connections with these parameters of the driver.
func (s *Store) pool(params string) *sqlx.DB {
	db := sqlx.NewDb(sql.OpenDB(connector{s.driver, dsn(s.path, params)}), "sqlite3")
	db.MapperFunc(columnOf)
	return db
}

var wordEnd = regexp.MustCompile("([a-z])([A-Z])")

// columnOf returns the column of a field: that of BootsLeft is boots_left.
func columnOf(field string) string {
	return strings.ToLower(wordEnd.ReplaceAllString(field, "${1}_${2}"))
}

// connector opens the connections of a pool.
type connector struct {
	driver driver.Driver
	dsn    string
}

// Driver returns the driver.
func (c connector) Driver() driver.Driver { return c.driver }

// Connect opens a connection.
func (c connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }

func dsn(path, params string) string {
	return (&url.URL{Scheme: "file", Path: path}).String() + "?" + params
}

// Close closes the database.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sqlx.DB{s.ro, s.rw} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// isFull reports whether an error of the driver or of the file system means that
// there is no room.
func isFull(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && (e.Code == sqlite3.ErrFull || e.SystemErrno == syscall.ENOSPC ||
		e.SystemErrno == syscall.EDQUOT) ||
		errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// noRoom makes an error of a full disk an inventory.ErrFull, after having told
// who may make room.
func (s *Store) noRoom(err error) error {
	if !isFull(err) {
		return err
	}
	if s.full != nil {
		s.full()
	}
	return fmt.Errorf("%w: %w", inventory.ErrFull, err)
}

// write runs do in one transaction and tells the subscribers after its commit.
// A disk without room is inventory.ErrFull, and nothing was written.
func (s *Store) write(ctx context.Context, what string, do func(tx *sqlx.Tx) error) error {
	tx, err := s.rw.BeginTxx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", what, s.noRoom(err))
	}
	defer s.forgetTouched(tx)
	defer tx.Rollback()
	if err := do(tx); err != nil {
		return fmt.Errorf("%s: %w", what, s.noRoom(err))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%s: %w", what, s.noRoom(err))
	}
	s.fire(tx)
	return nil
}
