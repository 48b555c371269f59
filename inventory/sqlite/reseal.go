package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// Reseal decrypts all encrypted values and encrypts them again with the current keys of the Sealer. It returns the number of values that it
// encrypted.
//
// It uses one transaction for each table. After a crash, some values still need the earlier keys, and Reseal has to be called again. It
// misses no value that was encrypted with the earlier keys, because all other functions encrypt a value within the transaction that stores
// it, and transactions run one at a time. SQLite overwrites the earlier ciphertexts in the file (secure_delete).
//
// If the keys do not belong to this database, the error is inventory.ErrSealed and nothing is changed. If some values cannot be decrypted
// with any key, they are not changed, and the error, also inventory.ErrSealed, lists them. After any error, the earlier keys must be kept.
func (s Keys) Reseal(ctx context.Context) (int, error) {
	n, err := s.reseal(ctx)
	return n, wrap(err, "sealing secrets again")
}

func (s Keys) reseal(ctx context.Context) (total int, err error) {
	if err := s.KeyCheck(ctx); err != nil {
		return 0, err
	}

	// KeyCheck only returns the result of the last checkKeys, which usually ran when the server started. The keys may have changed since.
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

	// The write-ahead log still contains pages with the earlier ciphertexts: truncate it. If a reader prevents this now, the next checkpoint
	// does it.
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

// sealAgain decrypts sealed, and returns the value encrypted with the current key of the purpose. If no key can decrypt sealed, the result
// is nil.
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

// runTables are the tables whose column sealed has encrypted values. Each value is bound to the name in the column run (see runBinding):
// the id of a run, or the key of a fact, a lab file or an applied object.
var runTables = []string{"plan", "assignment", "fact", "genesis", "applied"}

// resealRuns encrypts the values in one of runTables again, with the current keys. It returns how many it has encrypted, and the names of
// those that no key can decrypt.
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

// sealedRun is a row of one of runTables.
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

		// First check that the key can open the stored check value: a new check value of a wrong key would make this key count as correct.
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
