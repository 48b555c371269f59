package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/internal/dbcopy"
	"github.com/ingotmetal/ingot/inventory"
)

// Copy writes a copy of the database to a new file at path while others go on
// writing, proves that it holds what the database held, and leaves the id of
// the backup in it.
func (s *Store) Copy(ctx context.Context, path, id string) error {
	if err := s.noRoom(s.copy(ctx, path, id)); err != nil {
		return fmt.Errorf("backing up the inventory to %q: %w", path, err)
	}
	return nil
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

// ReadCopy reads a copy that nothing has open. One that is damaged, of another
// program, or of a schema that this program cannot migrate is an error.
func ReadCopy(ctx context.Context, path string) (dbcopy.Copy, error) {
	c, err := readCopy(ctx, path)
	if err != nil {
		return dbcopy.Copy{}, fmt.Errorf("reading the inventory's copy %q: %w", path, err)
	}
	return c, nil
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
		return c, errors.New("it is empty")
	}

	for name, into := range map[string]*string{"backup": &c.ID, "temporal_cluster": &c.Cluster} {
		if err := get(ctx, db, into, "SELECT value FROM meta WHERE name = ?", name); err != nil &&
			!errors.Is(err, inventory.ErrNotFound) {
			return c, err
		}
	}
	return c, get(ctx, db, &c.Schema, "PRAGMA user_version")
}

// Sealed names every stored secret, as SecretsUnreadable does: what is lost
// with the keys.
func (s *Store) Sealed(ctx context.Context) ([]string, error) {
	rows, err := s.secrets(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing secrets: %w", err)
	}
	var out []string
	for _, r := range rows {
		for _, f := range r.sealedFields() {
			out = append(out, r.Name+": "+f.name)
		}
	}
	return out, nil
}

// Restored makes the database of a backup that of a living site again: another
// site epoch, no grant, no plan, and every run held that is open here or, by the word of
// Temporal's copy, there. Epochs of grants go on above all that the backup knows.
func (s *Store) Restored(ctx context.Context, backup string, taken time.Time,
	there []inventory.HeldRun,
) (inventory.Restore, error) {
	r := inventory.Restore{Backup: backup, Taken: taken.UTC(), At: s.now().UTC(), Held: []inventory.HeldRun{}}
	err := s.write(ctx, "making a restored inventory live", func(tx *sqlx.Tx) error {
		open, err := openRuns(ctx, tx)
		if err != nil {
			return err
		}

		held := map[string]inventory.HeldRun{}
		for _, h := range append(slices.Clone(there), open...) {
			held[h.Run] = h
		}
		for _, h := range held {
			r.Held = append(r.Held, h)
		}
		slices.SortFunc(r.Held, func(a, b inventory.HeldRun) int {
			return cmp.Or(strings.Compare(a.Workflow, b.Workflow), strings.Compare(a.Run, b.Run))
		})
		doc, err := toJSON(r)
		if err != nil {
			return err
		}

		for _, x := range []struct {
			query string
			args  []any
		}{
			{"UPDATE meta SET value = value + 1 WHERE name = 'site_epoch'", nil},
			{`INSERT OR REPLACE INTO meta (name, value) SELECT 'epoch_floor', max(coalesce((SELECT value FROM meta WHERE name = 'epoch_floor'), 0),
				coalesce((SELECT max(epoch) FROM grant_), 0), coalesce((SELECT max(epoch) FROM event), 0))`, nil},
			{"DELETE FROM grant_", nil},
			// Of what was written to disks after the backup nothing is known: no rest of a run may be carried out on it.
			{"DELETE FROM plan", nil},
			// A digest that waited for removal then may be that of an image that was stored after the backup.
			{"DELETE FROM image_unused", nil},
			{"DELETE FROM meta WHERE name = 'intake_closed'", nil}, // by a migration that is held now
			{"INSERT OR REPLACE INTO meta (name, value) VALUES ('restore', ?)", []any{doc}},
		} {
			if _, err := exec(ctx, tx, x.query, x.args...); err != nil {
				return err
			}
		}

		for _, h := range r.Held {
			if h.Machine == "" {
				continue
			}
			if err := s.operator(ctx, tx, h.Machine, "restore",
				fmt.Sprintf("run %s is held: the server was restored from the backup of %s", h.Run,
					taken.UTC().Format(time.RFC3339))); err != nil {
				return err
			}
		}
		return nil
	})
	return r, err
}

// openRuns returns the runs that are not over, and those that hold a grant.
func openRuns(ctx context.Context, tx *sqlx.Tx) ([]inventory.HeldRun, error) {
	var rows []struct {
		Run     string `db:"run"`
		Machine string `db:"machine"`
		ID      string `db:"id"`
	}
	err := tx.SelectContext(ctx, &rows, `SELECT run, machine, coalesce(json_extract(doc, '$.id'), '') AS id FROM workflow WHERE final = 0
		UNION SELECT run, machine, workflow FROM grant_ WHERE run <> '' AND substr(run, 1, 7) <> 'person:'
		AND run NOT IN (SELECT run FROM workflow WHERE final = 0)`)
	if err != nil {
		return nil, err
	}
	var out []inventory.HeldRun
	for _, r := range rows {
		out = append(out, inventory.HeldRun{Run: r.Run, Workflow: r.ID, Machine: r.Machine})
	}
	return out, nil
}

// LastRestore returns what Restored wrote; the zero Restore when this site was
// never restored.
func (s *Store) LastRestore(ctx context.Context) (inventory.Restore, error) {
	var r inventory.Restore
	var doc string
	err := get(ctx, s.ro, &doc, "SELECT value FROM meta WHERE name = 'restore'")
	if err == nil {
		err = json.Unmarshal([]byte(doc), &r)
	}
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return inventory.Restore{}, fmt.Errorf("reading what was restored: %w", err)
	}
	return r, nil
}
