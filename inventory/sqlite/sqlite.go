// Package sqlite stores the inventory in a SQLite database.
//
// It uses two pools of connections. All writes use one connection, which starts its transactions with BEGIN IMMEDIATE. Reads use read-only
// connections, one statement at a time, so that no reader waits for a writer. To answer a booting machine, only reads are needed.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jmoiron/sqlx"
)

// A Sealer encrypts and decrypts secrets. Each purpose has its own key. binding names the object that the secret belongs to: Open fails if
// it gets another binding than Seal. If the key is missing or wrong, the error is inventory.ErrSealed.
type Sealer interface {
	Seal(purpose, binding string, plain []byte) ([]byte, error)
	Open(purpose, binding string, sealed []byte) ([]byte, error)
}

// A Store is an inventory in a SQLite file. Each field has the methods for one kind of object. All methods may be called concurrently.
type Store struct {
	*db
	Agents        Agents
	Applications  Applications
	Assignments   Assignments
	BMCJobs       BMCJobs
	BMCKeys       BMCKeys
	BMCPasswords  BMCPasswords
	BMCRefusals   BMCRefusals
	Changes       Changes
	Disks         Disks
	Events        Events
	Genesis       Genesis
	Grants        Grants
	HandOvers     HandOvers
	Images        Images
	KeyedRequests KeyedRequests
	Keys          Keys
	Machines      Machines
	Media         Media
	Notices       Notices
	Operations    Operations
	Overview      Overview
	Plans         Plans
	Relays        Relays
	Restores      Restores
	Seen          Seen
	Sessions      Sessions
	Syslog        Syslog
	Templates     Templates
	Tokens        Tokens
	Traces        Traces
	Views         Views
	Workflows     Workflows
}

func newStore(d *db) *Store {
	p := struct{ *db }{d} // each part of a Store
	return &Store{
		d, Agents(p), Applications(p), Assignments(p), BMCJobs(p), BMCKeys(p), BMCPasswords(p), BMCRefusals(p),
		Changes(p), Disks(p), Events(p), Genesis(p), Grants(p), HandOvers(p), Images(p), KeyedRequests(p), Keys(p),
		Machines(p), Media(p), Notices(p), Operations(p), Overview(p), Plans(p), Relays(p), Restores(p), Seen(p),
		Sessions(p), Syslog(p), Templates(p), Tokens(p), Traces(p), Views(p), Workflows(p),
	}
}

// An Option changes how a Store is opened.
type Option func(*db)

// WithClock makes the store use now instead of time.Now.
func WithClock(now func() time.Time) Option { return func(s *db) { s.now = now } }

// WithFull makes the store call f when a write fails because the disk is full. f can free some space, so that the next write succeeds.
func WithFull(f func()) Option { return func(s *db) { s.full = f } }

// Open opens the database at path, and creates or migrates it if necessary. Before it migrates an existing schema, it makes a
// verified backup next to the file, and keeps the last few of these backups.
//
// keys may be nil or contain wrong keys: then calls that need a secret return inventory.ErrSealed, and all other calls work. Open returns
// an error if the schema of the database is newer than this program or older than the baseline. If the database is damaged, the error is
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

	// Create the file here, because SQLite would create it readable for all users. The files of the write-ahead log get the same mode.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}

	s = newStore(&db{
		path: path, keys: keys, now: time.Now, subs: map[string]map[chan struct{}]bool{}, followers: map[*follower]bool{},
		driver: sqliteDriver(),
	})
	for _, o := range opts {
		o(s.db)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()

	// Check the file before the pragmas below change it: if the file is refused, it must not have been changed.
	if err := schema.checkFile(ctx, path); err != nil {
		return s, err
	}

	// The settings are in the DSN because each connection needs them, and the pool may open a new connection at any time: it closes a
	// connection whose transaction was canceled. With WAL, this driver sets synchronous to NORMAL by default, which would lose acknowledged
	// reports in a power failure. secure_delete overwrites secrets that are replaced or deleted. auto_vacuum has an effect only on a new file.
	const writing = "_auto_vacuum=incremental&_txlock=immediate&_synchronous=FULL&_journal_mode=WAL" +
		"&_secure_delete=on&_busy_timeout=10000&_foreign_keys=on&_stmt_cache_size=128"
	s.rw = s.pool(writing, nil)
	s.rw.SetMaxOpenConns(1)
	if err := s.migrate(ctx, schema); err != nil {
		return s, s.noRoom(err)
	}

	// Open the connection for writing again: s.watch makes triggers, which need the tables that migrate has created.
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

// Answer returns nil if the database can be read, and is free for a change, before ctx ends. It changes nothing.
func (s *Store) Answer(ctx context.Context) error {
	_, err := s.NeverRan(ctx) // any read
	if err == nil {
		var tx *sqlx.Tx
		if tx, err = s.rw.BeginTxx(ctx, nil); err == nil {
			err = tx.Rollback()
		}
	}
	return wrap(err, "waiting for the inventory")
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

// Backup writes a consistent copy of the database to a new file with mode 0600, and syncs the file to the disk. If there is a file at path
// already, Backup returns an error.
func (s *Store) Backup(ctx context.Context, path string) error {
	return wrap(s.backup(ctx, path), "backing up the inventory to %q", path)
}

func (s *Store) backup(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	_, err = s.rw.ExecContext(ctx, "VACUUM INTO ?", path)
	if err == nil {
		err = f.Sync()
	}
	err = s.noRoom(errors.Join(err, f.Close()))
	if err != nil {
		err = errors.Join(err, os.Remove(path)) // an incomplete backup must not be mistaken for a backup
	}
	return err
}

// TemporalCluster returns the id of the Temporal cluster that executes this site's runs. The first call stores id; every later call returns
// the stored id. If that differs from id, the server is connected to another cluster, which does not know these runs. Its answers about
// them must not be used.
func (s *Store) TemporalCluster(ctx context.Context, id string) (kept string, err error) {
	err = s.write(ctx, "storing the id of the Temporal cluster", func(tx *transaction) error {
		err := do(ctx, tx, "INSERT OR IGNORE INTO meta (name, value) VALUES ('temporal_cluster', ?)", id)
		if err != nil {
			return err
		}
		return get(ctx, tx, &kept, "SELECT value FROM meta WHERE name = 'temporal_cluster'")
	})
	return kept, err
}

// NeverRan reports whether the site has never had a run. If so, no id of a Temporal cluster is stored.
func (s *Store) NeverRan(ctx context.Context) (bool, error) {
	id, err := optional(scalar[string](ctx, s.ro, "SELECT value FROM meta WHERE name = 'temporal_cluster'"))
	return id == "" && err == nil, wrap(err, "reading the id of the Temporal cluster")
}
