package sqlite

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	"github.com/ingotmetal/ingot/inventory"
)

// Restores copies the database for backups, and turns a copy into the database of a running site.
type Restores struct{ *db }

// Copy writes a copy of the database to a new file at path, while writes to the database continue. It compares the copy with the database.
// Then it writes id, the id of the backup, into the copy.
func (s *Store) Copy(ctx context.Context, path, id string) error {
	return wrap(s.noRoom(s.copy(ctx, path, id)), "backing up the inventory to %q", path)
}

func (s *Store) copy(ctx context.Context, path, id string) (err error) {
	again := func(path string) (*sql.DB, error) { return sql.Open("sqlite3", dsn(path, "_busy_timeout=10000")) }
	if err := dbcopy.Make(ctx, again, again, s.path, path); err != nil {
		return err
	}
	db, err := sql.Open("sqlite3", dsn(path, "_journal_mode=DELETE&_synchronous=FULL"))
	if err == nil {
		_, err = db.ExecContext(ctx, "INSERT OR REPLACE INTO meta (name, value) VALUES ('backup', ?)", id)
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// ReadCopy describes the copy at path, which no process may have open. It returns an error if the copy is damaged, is the database of
// another program, or has a schema that this program cannot migrate.
func ReadCopy(ctx context.Context, path string) (dbcopy.Copy, error) {
	c, err := readCopy(ctx, path)
	return c, wrap(err, "reading the inventory's copy %q", path)
}

func readCopy(ctx context.Context, path string) (c dbcopy.Copy, err error) {
	known, err := embeddedSchema()
	if err != nil {
		return c, err
	}
	db, err := sqlx.Open("sqlite3", dsn(path, "mode=ro&immutable=1"))
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := known.check(ctx, db); err != nil {
		return c, err
	}
	if c.Tables, err = dbcopy.Sound(ctx, db.DB); err != nil {
		return c, err
	}
	if len(c.Tables) == 0 {
		return c, errors.New("the file is empty")
	}

	for name, into := range map[string]*string{"backup": &c.ID, "temporal_cluster": &c.Cluster} {
		if err := get(ctx, db, into, "SELECT value FROM meta WHERE name = ?", name); err != nil &&
			!errors.Is(err, inventory.ErrNotFound) {
			return c, err
		}
	}
	return c, get(ctx, db, &c.Schema, "PRAGMA user_version")
}

// Sealed returns the names of all secrets of machines that are stored encrypted, in the same form as SecretsUnreadable. Without the keys,
// these secrets are lost.
func (s Restores) Sealed(ctx context.Context) ([]string, error) {
	names, err := s.namesOfSecrets(ctx, func(sealedField) bool { return true })
	return names, wrap(err, "listing secrets")
}

// Restored turns the database of a backup into the database of a running site. It increments the site epoch, removes all grants and plans,
// turns all named tokens off, ends all sessions, and records as held every run that is open in this database or listed in r.Held. The
// caller reads r.Held from the backup of Temporal. The next record of a held run replaces the stored record, even if its Seq is lower.
// Later grants get epochs higher than all epochs in the backup. Restored stores the record of the restore and returns it.
func (s Restores) Restored(ctx context.Context, r inventory.Restore) (inventory.Restore, error) {
	r.Taken, r.At = r.Taken.UTC(), s.now().UTC()
	err := s.write(ctx, "making a restored inventory live", func(tx *transaction) error {
		open, err := openRuns(ctx, tx)
		if err != nil {
			return err
		}

		err = doAll(ctx, tx,
			stmt("UPDATE meta SET value = value + 1 WHERE name = 'site_epoch'"),
			stmt(`INSERT OR REPLACE INTO meta (name, value) SELECT 'epoch_floor',
				max(coalesce((SELECT value FROM meta WHERE name = 'epoch_floor'), 0),
				coalesce((SELECT max(epoch) FROM grant_), 0), coalesce((SELECT max(epoch) FROM event), 0))`),
			stmt("DELETE FROM grant_"),
			// No run may continue its plan, because it is not known what was written to disks after the backup.
			stmt("DELETE FROM plan"),
			// A version that was given out after the backup must not come again with another content.
			stmt("UPDATE machine SET version = version + 1000000"),
			// Temporal's backup is a little older than this one, so the next records of a held run may have a lower Seq than the stored record.
			// PutWorkflow would ignore such records, and with them the question to the operator.
			stmt("UPDATE workflow SET doc = json_set(doc, '$.seq', 0) WHERE final = 0"),
			stmt("UPDATE operation SET doc = json_set(doc, '$.seq', 0) WHERE final = 0"),
			// A file that was waiting for its removal may belong to an image that was stored again after the backup.
			stmt("DELETE FROM image_unused"),
			// A token or a session of the backup may have been revoked after it.
			stmt("UPDATE token SET off = 1"),
			stmt("DELETE FROM session"),
			stmt("DELETE FROM meta WHERE name = 'intake_closed'"), // a migration has closed it, which is on hold now
		)
		if err != nil {
			return err
		}
		there := r.Held
		r.Held = nil
		return s.hold(ctx, tx, &r, append(slices.Clone(there), open...))
	})
	return r, err
}

// HoldRuns also records the runs in there as held: those that are open in the Temporal cluster, which Restored does not read. It
// stores the changed record of the restore and returns it.
func (s Restores) HoldRuns(ctx context.Context, there []inventory.HeldRun) (r inventory.Restore, err error) {
	err = s.write(ctx, "marking the runs of the Temporal cluster as held", func(tx *transaction) error {
		if r, err = readDoc[inventory.Restore](ctx, tx, lastRestore); err != nil {
			return err
		}
		r.AwaitsCluster = false
		there = slices.Clone(there)
		for i, h := range there {
			known := slices.ContainsFunc(r.Held, func(x inventory.HeldRun) bool { return x.Run == h.Run })
			if h.Machine == "" { // the record contains the RunID of the first execution, which may not be h.Run
				if err := get(ctx, tx, &known, "SELECT EXISTS (SELECT 1 FROM operation WHERE id = ? AND final = 0)", h.Workflow); err != nil {
					return err
				}
			}
			there[i].Later = !known
		}
		return s.hold(ctx, tx, &r, there)
	})
	return r, err
}

// hold adds runs to r.Held and stores r. It appends an event for each added run of a machine, unless the run was held before.
func (s Restores) hold(ctx context.Context, tx *transaction, r *inventory.Restore, runs []inventory.HeldRun) error {
	held := map[string]inventory.HeldRun{}
	for _, h := range r.Held {
		held[h.Run] = h
	}
	for _, h := range runs {
		_, known := held[h.Run]
		held[h.Run] = h
		if known || h.Machine == "" {
			continue
		}
		text := fmt.Sprintf("run %s is held: the server was restored from the backup of %s", h.Run, r.Taken.Format(time.RFC3339))
		if err := addOperatorEvent(ctx, tx, h.Machine, "restore", text); err != nil {
			return err
		}
	}
	r.Held = slices.SortedFunc(maps.Values(held), func(a, b inventory.HeldRun) int {
		return cmp.Or(strings.Compare(a.Workflow, b.Workflow), strings.Compare(a.Run, b.Run))
	})
	if r.Held == nil {
		r.Held = []inventory.HeldRun{}
	}
	doc, err := toJSON(*r)
	if err != nil {
		return err
	}
	return do(ctx, tx, "INSERT OR REPLACE INTO meta (name, value) VALUES ('restore', ?)", doc)
}

// openRuns returns the runs of machines that have not ended, or that still hold a grant.
func openRuns(ctx context.Context, tx *transaction) (runs []inventory.HeldRun, err error) {
	err = tx.SelectContext(ctx, &runs, `SELECT run, machine, coalesce(json_extract(doc, '$.id'), '') AS workflow
		FROM workflow WHERE final = 0
		UNION SELECT run, machine, workflow FROM grant_ WHERE run <> '' AND run NOT GLOB 'operator:*'
		AND run NOT IN (SELECT run FROM workflow WHERE final = 0)`)
	return runs, err
}

// SiteID returns the id of this site, which is in the names of the backups that its servers store. The first call makes it.
func (s Restores) SiteID(ctx context.Context) (string, error) {
	read := func(q sqlx.QueryerContext) (string, error) {
		return optional(scalar[string](ctx, q, "SELECT value FROM meta WHERE name = 'site_id'"))
	}
	id, err := read(s.ro)
	if err == nil && id == "" {
		err = s.write(ctx, "making the id of the site", func(tx *transaction) error {
			err := do(ctx, tx, "INSERT OR IGNORE INTO meta (name, value) VALUES ('site_id', ?)", strings.ToLower(rand.Text()[:8]))
			if err == nil {
				id, err = read(tx)
			}
			return err
		})
	}
	return id, wrap(err, "reading the id of the site")
}

const lastRestore = "SELECT value AS doc FROM meta WHERE name = 'restore'"

// LastRestore returns the record written by Restored and HoldRuns, or the zero Restore if this site was never
// restored.
func (s Restores) LastRestore(ctx context.Context) (inventory.Restore, error) {
	r, err := optional(readDoc[inventory.Restore](ctx, s.ro, lastRestore))
	return r, wrap(err, "reading the record of the last restore")
}
