package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Keys are the keys that seal secrets. The database contains a check value for the key of each purpose.
type Keys struct{ *db }

// Purposes of the keys that the store uses.
const (
	sealBMC      = "bmc"
	sealUserData = "userdata"
	sealPlan     = "plan"
)

// A check value is checkText, sealed with the key of its purpose.
const (
	checkText    = "ingot"
	checkBinding = "check"
)

func purposes() []string { return []string{sealBMC, sealUserData, sealPlan} }

// checkKeys checks the key of each purpose against its check value, and writes missing check values. It records in s.bad which
// keys must not be used for sealing.
func (s *db) checkKeys(ctx context.Context) error {
	bad := map[string]error{}
	for _, p := range purposes() {
		err := s.checkKey(ctx, p)
		if errors.Is(err, inventory.ErrNotFound) && s.keys != nil {
			err = s.writeCheck(ctx, p)
		}

		switch {
		case errors.Is(err, inventory.ErrSealed), errors.Is(err, inventory.ErrNotFound):
			bad[p] = fmt.Errorf("key %q: %w", p, inventory.ErrSealed)
		case err != nil:
			return fmt.Errorf("checking key %q: %w", p, err)
		}
	}

	s.bad.Store(&bad)
	return nil
}

// unfit returns why the key of the purpose must not be used for sealing, or nil if it may be used.
func (s *db) unfit(purpose string) error { return (*s.bad.Load())[purpose] }

// checkKey returns nil if the key of the purpose opens its stored check value, inventory.ErrSealed if it does not, or
// inventory.ErrNotFound if no check value is stored yet.
func (s *db) checkKey(ctx context.Context, purpose string) error {
	sealed, err := scalar[[]byte](ctx, s.ro, "SELECT value FROM meta WHERE name = ?", "key_check."+purpose)
	if err == nil {
		_, err = s.open(purpose, checkBinding, sealed)
	}
	return err
}

func (s *db) writeCheck(ctx context.Context, purpose string) error {
	sealed, err := s.keys.Seal(purpose, checkBinding, []byte(checkText))
	if err != nil {
		return err
	}

	err = s.writeOne(ctx, "writing check value", "INSERT OR IGNORE INTO meta (name, value) VALUES (?, ?)",
		"key_check."+purpose, sealed)
	if err != nil {
		return err
	}
	return s.checkKey(ctx, purpose) // another process may have written a check value first, with another key
}

// KeyCheck returns nil if every key opened its check value when the keys were last checked. Otherwise it returns
// inventory.ErrSealed with the name of the key. It is called before a machine is armed.
func (s Keys) KeyCheck(context.Context) error {
	for _, p := range purposes() {
		if err := s.unfit(p); err != nil {
			return err
		}
	}
	return nil
}

// seal seals plain with the key of the purpose. It refuses a key that does not belong to this database, because the database's
// own key could not open the result.
func (s *db) seal(purpose, binding string, plain []byte) ([]byte, error) {
	if err := s.unfit(purpose); err != nil {
		return nil, err
	}
	return s.keys.Seal(purpose, binding, plain)
}

func (s *db) open(purpose, binding string, sealed []byte) ([]byte, error) {
	if s.keys == nil {
		return nil, fmt.Errorf("key %q: %w", purpose, inventory.ErrSealed)
	}
	return s.keys.Open(purpose, binding, sealed)
}

// SecretsUnreadable returns the secrets of machines that cannot be opened with the current keys and have to be entered again, as
// "<machine>: <field>".
func (s Keys) SecretsUnreadable(ctx context.Context) ([]string, error) {
	out, err := s.namesOfSecrets(ctx, func(f sealedField) bool {
		_, err := s.open(f.purpose, f.binding, f.sealed)
		return err != nil
	})
	return out, wrap(err, "listing unreadable secrets")
}

// RunsUnreadable returns the rows of runTables, such as plans and assignments, that cannot be opened with the current keys.
func (s Keys) RunsUnreadable(ctx context.Context) ([]string, error) {
	var out []string
	for _, table := range runTables {
		rows, err := sealedRuns(ctx, s.ro, table)
		if err != nil {
			return nil, fmt.Errorf("listing unreadable runs: %w", err)
		}

		for _, r := range rows {
			if _, err := s.open(sealPlan, runBinding(r.Run), r.Sealed); err != nil {
				out = append(out, r.name(table))
			}
		}
	}
	return out, nil
}

// ResetSecrets makes the current keys the keys of this database and deletes the secrets of machines that these keys cannot open.
// It returns the names of the deleted secrets in the form of SecretsUnreadable. Plans, assignments, facts and lab files that
// the keys cannot open are emptied and stay unreadable. If there are no keys at all, the error is inventory.ErrSealed and
// nothing is deleted.
func (s Keys) ResetSecrets(ctx context.Context, by string) ([]string, error) {
	lost, err := s.resetSecrets(ctx, by)
	if err == nil {
		err = s.checkKeys(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("resetting secrets: %w", err)
	}
	return lost, nil
}

func (s Keys) resetSecrets(ctx context.Context, by string) (lost []string, err error) {
	checks := map[string][]byte{}
	for _, p := range purposes() {
		if s.unfit(p) == nil {
			continue
		}
		if s.keys == nil {
			return nil, fmt.Errorf("key %q: %w", p, inventory.ErrSealed)
		}
		if checks[p], err = s.keys.Seal(p, checkBinding, []byte(checkText)); err != nil {
			return nil, err
		}
	}

	rows, err := s.secrets(ctx)
	if err != nil {
		return nil, err
	}

	err = s.write(ctx, "deleting secrets that cannot be decrypted", func(tx *transaction) error {
		for _, r := range rows {
			for _, f := range r.sealedFields() {
				if _, err := s.open(f.purpose, f.binding, f.sealed); err == nil {
					continue
				}

				// Keep a value that was entered after rows was read.
				n, err := exec(ctx, tx, "UPDATE machine SET "+f.column+" = NULL WHERE name = ? AND "+f.column+" = ?", r.Name,
					f.sealed)
				if err != nil {
					return err
				}
				if n == 0 {
					continue
				}
				lost = append(lost, r.Name+": "+f.name)
				if err := addOperatorEvent(ctx, tx, r.Name, by, f.name+" deleted: the key to decrypt it is lost"); err != nil {
					return err
				}
			}
		}

		for _, table := range runTables {
			runs, err := sealedRuns(ctx, tx, table)
			if err != nil {
				return err
			}

			for _, r := range runs {
				if _, err := s.open(sealPlan, runBinding(r.Run), r.Sealed); err == nil {
					continue
				}
				if err := do(ctx, tx, "UPDATE "+table+" SET sealed = x'' WHERE rowid = ?", r.ID); err != nil {
					return err
				}
			}
		}

		for p, sealed := range checks {
			err := do(ctx, tx, "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", "key_check."+p, sealed)
			if err != nil {
				return err
			}
		}
		return nil
	})

	return lost, err
}
