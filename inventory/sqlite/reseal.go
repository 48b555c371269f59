package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// Reseal opens everything that is sealed and seals it again, with the keys
// that the Sealer seals with now. It returns how many values that were.
//
// Each table is one transaction: a crash in between leaves values that open
// with the keys of before, and Reseal begins again. Everything that seals does
// so inside its transaction, of which there is one at a time; so whatever was
// sealed with the keys of before is in its table when Reseal comes to it. What
// opens with no key at all is left as it is. The ciphertexts of before are
// overwritten in the file, not merely let go of.
//
// Keys that are not those of this database are inventory.ErrSealed, and nothing
// is done.
func (s *Store) Reseal(ctx context.Context) (int, error) {
	n, err := s.reseal(ctx)
	if err != nil {
		return n, fmt.Errorf("sealing secrets again: %w", err)
	}
	return n, nil
}

func (s *Store) reseal(ctx context.Context) (total int, err error) {
	if err := s.KeyCheck(ctx); err != nil {
		return 0, err
	}
	// It stays set: this is the one connection that writes, and a secret that
	// is replaced or deleted later is gone from the file, too.
	if _, err := s.rw.ExecContext(ctx, "PRAGMA secure_delete = ON"); err != nil {
		return 0, err
	}
	for _, table := range []func(context.Context, *sqlx.Tx) (int, error){s.resealMachines, s.resealPlans, s.resealAssignments, s.resealChecks} {
		err := s.write(ctx, "one table", func(tx *sqlx.Tx) error {
			n, err := table(ctx, tx)
			total += n
			return err
		})
		if err != nil {
			return total, err
		}
	}
	// The log before the database holds pages of before. A reader that is in
	// its way now lets the next checkpoint do it.
	_, err = s.rw.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return total, err
}

// again returns the value sealed anew; nil when no key opens it.
func (s *Store) again(purpose, binding string, sealed []byte) ([]byte, error) {
	plain, err := s.open(purpose, binding, sealed)
	if errors.Is(err, inventory.ErrSealed) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.seal(purpose, binding, plain)
}

func (s *Store) resealMachines(ctx context.Context, tx *sqlx.Tx) (n int, err error) {
	var rows []secretRow
	if err := tx.SelectContext(ctx, &rows, "SELECT "+secretColumns+" FROM machine"); err != nil {
		return 0, err
	}
	for _, r := range rows {
		for _, f := range r.sealedFields() {
			sealed, err := s.again(f.purpose, f.binding, f.sealed)
			if err != nil {
				return n, err
			}
			if sealed == nil {
				continue
			}
			if _, err := exec(ctx, tx, "UPDATE machine SET "+f.column+" = ? WHERE name = ?", sealed, r.Name); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

func (s *Store) resealPlans(ctx context.Context, tx *sqlx.Tx) (int, error) {
	return s.resealRuns(ctx, tx, "plan")
}

func (s *Store) resealAssignments(ctx context.Context, tx *sqlx.Tx) (int, error) {
	return s.resealRuns(ctx, tx, "assignment")
}

// resealRuns does so with a table of what belongs to runs.
func (s *Store) resealRuns(ctx context.Context, tx *sqlx.Tx, table string) (n int, err error) {
	var rows []struct {
		ID     int64  `db:"rowid"`
		Run    string `db:"run"`
		Sealed []byte `db:"sealed"`
	}
	if err := tx.SelectContext(ctx, &rows, "SELECT rowid, run, sealed FROM "+table+" WHERE length(sealed) > 0"); err != nil {
		return 0, err
	}
	for _, r := range rows {
		sealed, err := s.again(sealPlan, runBinding(r.Run), r.Sealed)
		if err != nil {
			return n, err
		}
		if sealed == nil {
			continue
		}
		if _, err := exec(ctx, tx, "UPDATE "+table+" SET sealed = ? WHERE rowid = ?", sealed, r.ID); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (s *Store) resealChecks(ctx context.Context, tx *sqlx.Tx) (int, error) {
	for _, p := range purposes() {
		sealed, err := s.seal(p, checkBinding, []byte(checkText))
		if err != nil {
			return 0, err
		}
		if _, err := exec(ctx, tx, "UPDATE meta SET value = ? WHERE name = ?", sealed, "key_check."+p); err != nil {
			return 0, err
		}
	}
	return 0, nil
}
