package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
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

// db is the database handle that all fields of Store share, such as Machines and Grants. Their methods read with ro and write with the
// method write. A function that several fields use within a transaction takes a *transaction.
type db struct {
	rw, ro *sqlx.DB
	path   string
	driver driver.Driver // for both pools
	now    func() time.Time
	full   func() // called when the disk is full; may be nil

	keys Sealer
	bad  atomic.Pointer[map[string]error] // why a key must not be used for sealing, by the purpose of the key
	// notices are the events for which notices are written; nil = no notices are written.
	notices []string
	index   *index

	mu        sync.Mutex
	subs      map[string]map[chan struct{}]bool // by the name of the watched machine; "" = subscribers to all changes
	followers map[*follower]bool
}

// A transaction is a database transaction that writes.
type transaction struct {
	*sqlx.Tx
	db *db
	// touched are the names of the machines that the transaction changes. The value is true if agents wait for the change, that is, if a
	// grant, an assignment or an event changes.
	touched map[string]bool
}

// Limits of the write-ahead log: maxJournal is the size in bytes to which SQLite truncates it. After checkpointEvery pages, SQLite copies
// its content into the database file. The log can grow beyond these limits while a reader still uses an older state of the database. Most
// readers run one statement, which takes milliseconds, but Copy and Check use the same state until they have read everything.
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

// pool returns a pool of connections. params are the parameters for the driver. If prepare is not nil, it is called with each new
// connection.
func (s *db) pool(params string, prepare func(driver.Conn) error) *sqlx.DB {
	db := sqlx.NewDb(sql.OpenDB(connector{s.driver, dsn(s.path, params), prepare}), "sqlite3")
	db.MapperFunc(columnOf)
	return db
}

var wordEnd = regexp.MustCompile("([a-z])([A-Z])")

// columnOf returns the name of the column for a field of a struct, such as boots_left for BootsLeft.
func columnOf(field string) string {
	return strings.ToLower(wordEnd.ReplaceAllString(field, "${1}_${2}"))
}

// connector opens the connections of a pool. It implements driver.Connector.
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

// isFull reports whether an error of the driver or of the file system means that the disk is full.
func isFull(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && (e.Code == sqlite3.ErrFull || e.SystemErrno == syscall.ENOSPC ||
		e.SystemErrno == syscall.EDQUOT) ||
		errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// noRoom wraps err in inventory.ErrFull if err means that the disk is full, and calls the function that was given to WithFull. It returns
// any other error unchanged.
func (s *db) noRoom(err error) error {
	if !isFull(err) {
		return err
	}
	if s.full != nil {
		s.full()
	}
	return fmt.Errorf("%w: %w", inventory.ErrFull, err)
}

// write runs do in one transaction and notifies the subscribers after the commit. Before the commit, it removes the changed machines from
// the index in memory. If the disk is full, the error is inventory.ErrFull and nothing is written.
func (s *db) write(ctx context.Context, what string, do func(tx *transaction) error) error {
	sqlTx, err := s.rw.BeginTxx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", what, s.noRoom(err))
	}
	tx := &transaction{sqlTx, s, map[string]bool{}}
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
	s.fire(tx.touched)
	return nil
}
