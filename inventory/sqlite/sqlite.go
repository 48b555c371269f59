// Package sqlite stores the inventory in a SQLite database.
//
// It uses two pools of connections. Writes use a single connection, whose transactions begin
// immediate. Reads use read-only connections, one statement at a time, so that no reader ever waits
// for a writer. The boot path only reads.
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

// A Sealer encrypts and decrypts with the key of a purpose. The ciphertext is bound to the object
// that the plain text belongs to. A missing or wrong key is inventory.ErrSealed.
type Sealer interface {
	Seal(purpose, binding string, plain []byte) ([]byte, error)
	Open(purpose, binding string, sealed []byte) ([]byte, error)
}

// A Store is an inventory in a SQLite file. Its methods may be called concurrently.
type Store struct {
	rw, ro *sqlx.DB
	path   string
	keys   Sealer
	full   func()                           // called when the disk is full; may be nil
	bad    atomic.Pointer[map[string]error] // purposes whose keys must not be used for sealing, and why
	now    func() time.Time
	// notices are the events for which notices are written; none means no notices.
	notices []string

	mu        sync.Mutex
	subs      map[string]map[chan struct{}]bool // by the watched machine; "" means everything
	followers map[*follower]bool
	// touched has, for each running transaction, the machines that it changes. The value is true
	// for changes that agents wait for: grants, assignments and events. There may be two
	// transactions: when a context ends, database/sql gives the connection to the next transaction
	// before the code of the first one notices.
	touched map[*sqlx.Tx]map[string]bool
	driver  driver.Driver // of both pools
	index   *index
}

// An Option changes how a Store is opened.
type Option func(*Store)

// WithClock makes the store use now instead of time.Now.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// WithFull makes the store call f when a write fails because the disk is full, so that f can free
// some space before the write is repeated.
func WithFull(f func()) Option { return func(s *Store) { s.full = f } }

// Open opens the database at path, and creates or migrates it if necessary. Before it migrates an
// existing schema, it makes a verified backup beside the file and keeps the last few of them.
//
// Keys may be nil or wrong. Then everything that is not secret works, and secrets are
// inventory.ErrSealed. A database with a newer schema, or with one from before the baseline, is
// refused. A damaged database is [ErrDamaged].
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

	// SQLite would make the file readable for all; WAL and index inherit its mode.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}

	s = &Store{
		path: path, keys: keys, now: time.Now, subs: map[string]map[chan struct{}]bool{},
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

	// Check without the pragmas: they would change a file that may be refused.
	if err := schema.checkFile(ctx, path); err != nil {
		return s, err
	}

	// Every setting belongs to a connection, and the pool may open another one at any time, because
	// it closes a connection whose transaction was canceled. The driver is compiled with
	// synchronous NORMAL for WAL, which would lose acknowledged reports in a power failure.
	// secure_delete overwrites secrets that are replaced or deleted. auto_vacuum has an effect only
	// on a new file.
	const writing = "_auto_vacuum=incremental&_txlock=immediate&_synchronous=FULL&_journal_mode=WAL" +
		"&_secure_delete=on&_busy_timeout=10000&_foreign_keys=on&_stmt_cache_size=128"
	s.rw = s.pool(writing, nil)
	s.rw.SetMaxOpenConns(1)
	if err := s.migrate(ctx, schema); err != nil {
		return s, s.noRoom(err)
	}

	// Now that the schema is there, writes are watched.
	if err := s.rw.Close(); err != nil {
		return s, err
	}
	s.index = newIndex()
	s.rw = s.pool(writing, s.watch)
	s.rw.SetMaxOpenConns(1)
	s.ro = s.pool("_query_only=on&_busy_timeout=10000&_stmt_cache_size=128", nil)
	s.ro.SetMaxOpenConns(8)
	s.ro.SetMaxIdleConns(8)
	return s, s.checkKeys(ctx)
}

// Limits of the write-ahead log: the size in bytes to which it is truncated, and the number of
// pages after which its content is written into the database. The log grows beyond that while a
// reader uses an older state. Most readers run one statement of milliseconds, but Copy and Check
// use one state until they have read everything.
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

// pool returns a pool of connections with these driver parameters. prepare, if not nil, is called
// with each new connection.
func (s *Store) pool(params string, prepare func(driver.Conn) error) *sqlx.DB {
	db := sqlx.NewDb(sql.OpenDB(connector{s.driver, dsn(s.path, params), prepare}), "sqlite3")
	db.MapperFunc(columnOf)
	return db
}

var wordEnd = regexp.MustCompile("([a-z])([A-Z])")

// columnOf returns the column of a field, such as boots_left for BootsLeft.
func columnOf(field string) string {
	return strings.ToLower(wordEnd.ReplaceAllString(field, "${1}_${2}"))
}

// connector opens the connections of a pool.
type connector struct {
	driver  driver.Driver
	dsn     string
	prepare func(driver.Conn) error
}

// Driver returns the driver.
func (c connector) Driver() driver.Driver { return c.driver }

// Connect opens a connection.
func (c connector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.dsn)
	if err != nil || c.prepare == nil {
		return conn, err
	}
	if err := c.prepare(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

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

// isFull reports whether an error of the driver or of the file system means that the disk is full.
func isFull(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && (e.Code == sqlite3.ErrFull || e.SystemErrno == syscall.ENOSPC ||
		e.SystemErrno == syscall.EDQUOT) ||
		errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// noRoom turns an error of a full disk into inventory.ErrFull, after calling the function of
// WithFull.
func (s *Store) noRoom(err error) error {
	if !isFull(err) {
		return err
	}
	if s.full != nil {
		s.full()
	}
	return fmt.Errorf("%w: %w", inventory.ErrFull, err)
}

// write runs do in one transaction and notifies the subscribers after the commit. Before it returns,
// the index has dropped what the transaction changed. If the disk is full, the error is
// inventory.ErrFull and nothing is written.
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
	release, err := s.holdChanged(ctx, tx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, s.noRoom(err))
	}
	defer release()
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%s: %w", what, s.noRoom(err))
	}
	s.fire(tx)
	return nil
}
