package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// Reseal opens all sealed values and seals them again with the Sealer's current keys. It returns the number of values that it
// sealed.
//
// Each table is one transaction. After a crash, some values still need the earlier keys, and Reseal has to be called again. Every
// writer seals its value within the transaction that stores it, and transactions run one at a time. Therefore Reseal misses no
// value that was sealed with the earlier keys. The earlier ciphertexts are overwritten in the file (secure_delete).
//
// If the keys do not belong to this database, the error is inventory.ErrSealed and nothing is changed. Values that no key opens
// are not changed; the error then lists them and is also inventory.ErrSealed. With any error, the earlier keys must be kept.
func (s Keys) Reseal(ctx context.Context) (int, error) {
	n, err := s.reseal(ctx)
	return n, wrap(err, "sealing secrets again")
}

func (s Keys) reseal(ctx context.Context) (total int, err error) {
	if err := s.KeyCheck(ctx); err != nil {
		return 0, err
	}

	// KeyCheck returns the result of the last checkKeys, mostly from the start of the server. The keys may have changed since.
	for _, p := range purposes() {
		if err := s.checkKey(ctx, p); err != nil {
			return 0, err
		}
	}

	var shut []string
	one := func(table string, reseal func(tx *transaction) (int, []string, error)) error {
		return s.write(ctx, "table "+table, func(tx *transaction) error {
			n, left, err := reseal(tx)
			total += n
			shut = append(shut, left...)
			return err
		})
	}
	if err := one("machine", func(tx *transaction) (int, []string, error) { return s.resealMachines(ctx, tx) }); err != nil {
		return total, err
	}

	for _, table := range runTables {
		if err := one(table, func(tx *transaction) (int, []string, error) { return s.resealRuns(ctx, tx, table) }); err != nil {
			return total, err
		}
	}
	if err := one("meta", func(tx *transaction) (int, []string, error) {
		return 0, nil,
			s.resealChecks(ctx, tx)
	}); err != nil {
		return total, err
	}

	// The write-ahead log still contains pages with the earlier ciphertexts. If a reader blocks this checkpoint, the next
	// checkpoint removes them.
	if _, err = s.rw.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil || len(shut) == 0 {
		return total, err
	}

	names := shut[:min(len(shut), maxNamed)]
	return total, fmt.Errorf("%d secrets cannot be decrypted with any key, so the earlier keys are kept (%s): "+
		"enter these secrets again, or delete them with ingot secret reset, and rotate again: %w",
		len(shut), strings.Join(names, ", "), inventory.ErrSealed)
}

// maxNamed is the maximum number of secrets that an error lists.
const maxNamed = 20

// sealAgain returns the value sealed with the current keys, or nil if no key opens it.
func (s Keys) sealAgain(purpose, binding string, sealed []byte) ([]byte, error) {
	plain, err := s.open(purpose, binding, sealed)
	if errors.Is(err, inventory.ErrSealed) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.seal(purpose, binding, plain)
}

func (s Keys) resealMachines(ctx context.Context, tx *transaction) (n int, shut []string, err error) {
	var rows []secretRow
	if err := tx.SelectContext(ctx, &rows, "SELECT "+secretColumns+" FROM machine ORDER BY name"); err != nil {
		return 0, nil, err
	}

	for _, r := range rows {
		for _, f := range r.sealedFields() {
			sealed, err := s.sealAgain(f.purpose, f.binding, f.sealed)
			if err != nil {
				return n, shut, err
			}

			if sealed == nil {
				shut = append(shut, r.Name+": "+f.name)
				continue
			}
			if err := do(ctx, tx, "UPDATE machine SET "+f.column+" = ? WHERE name = ?", sealed, r.Name); err != nil {
				return n, shut, err
			}
			n++
		}
	}

	return n, shut, nil
}

// runTables are the tables whose column sealed is bound to the name in their column run (see runBinding): the id of a run, or a
// name for an operation's fact or a lab file.
var runTables = []string{"plan", "assignment", "fact", "genesis"}

// resealRuns seals the rows of one of runTables with the current keys.
func (s Keys) resealRuns(ctx context.Context, tx *transaction, table string) (n int, shut []string, err error) {
	rows, err := sealedRuns(ctx, tx, table)
	if err != nil {
		return 0, nil, err
	}

	for _, r := range rows {
		sealed, err := s.sealAgain(sealPlan, runBinding(r.Run), r.Sealed)
		if err != nil {
			return n, shut, err
		}

		if sealed == nil {
			shut = append(shut, r.name(table))
			continue
		}
		if err := do(ctx, tx, "UPDATE "+table+" SET sealed = ? WHERE rowid = ?", sealed, r.ID); err != nil {
			return n, shut, err
		}
		n++
	}

	return n, shut, nil
}

// sealedRun is the sealed value in a row of one of runTables.
type sealedRun struct {
	ID     int64 `db:"rowid"`
	Run    string
	Sealed []byte
}

func (r sealedRun) name(table string) string { return table + " of run " + r.Run }

func sealedRuns(ctx context.Context, db sqlx.QueryerContext, table string) (rows []sealedRun, err error) {
	err = sqlx.SelectContext(ctx, db, &rows, "SELECT rowid, run, sealed FROM "+table+" WHERE length(sealed) > 0")
	return rows, err
}

func (s Keys) resealChecks(ctx context.Context, tx *transaction) error {
	for _, p := range purposes() {
		check, err := scalar[[]byte](ctx, tx, "SELECT value FROM meta WHERE name = ?", "key_check."+p)
		if err != nil {
			return err
		}

		// Keys that do not open the check value must not seal a new one, which would confirm the wrong keys.
		if _, err := s.open(p, checkBinding, check); err != nil {
			return err
		}
		sealed, err := s.seal(p, checkBinding, []byte(checkText))
		if err != nil {
			return err
		}
		if err := do(ctx, tx, "UPDATE meta SET value = ? WHERE name = ?", sealed, "key_check."+p); err != nil {
			return err
		}
	}
	return nil
}
