package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Keys are the keys that encrypt secrets. Each purpose has its own key. For each key, the database contains a check value, which shows
// whether the server has the same key as before.
type Keys struct{ *db }

// The purposes for which the store uses keys.
const (
	sealBMC      = "bmc"
	sealUserData = "userdata"
	sealPlan     = "plan"
)

// The check value of a key is checkText, encrypted with this key.
const (
	checkText    = "ingot"
	checkBinding = "check"
)

func purposes() []string { return []string{sealBMC, sealUserData, sealPlan} }

// checkKeys checks the key of each purpose against the stored check value, and stores missing check values. It records in s.bad which keys
// must not be used for sealing.
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

// unfit returns nil if the key of the purpose may be used for sealing; otherwise it returns the reason why not.
func (s *db) unfit(purpose string) error { return (*s.bad.Load())[purpose] }

// checkKey returns nil if the key of the purpose can open the stored check value. If it cannot, the error is inventory.ErrSealed. If no
// check value is stored yet, the error is inventory.ErrNotFound.
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
	return s.checkKey(ctx, purpose) // another process, with another key, may have stored its check value first
}

// KeyCheck returns nil if all keys were correct when checkKeys last ran. Otherwise it returns inventory.ErrSealed with the purpose of a
// wrong key. It is called before a machine is armed.
func (s Keys) KeyCheck(context.Context) error {
	for _, p := range purposes() {
		if err := s.unfit(p); err != nil {
			return err
		}
	}
	return nil
}

// seal encrypts plain with the key of the purpose. It returns an error if this key is not the one that belongs to the database: with the
// correct key, the result could not be decrypted.
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

// SecretsUnreadable returns the secrets of machines that the current keys cannot decrypt, so that an operator has to enter them again. The
// names have the form "<machine>: <field>".
func (s Keys) SecretsUnreadable(ctx context.Context) ([]string, error) {
	out, err := s.namesOfSecrets(ctx, func(f sealedField) bool {
		_, err := s.open(f.purpose, f.binding, f.sealed)
		return err != nil
	})
	return out, wrap(err, "listing unreadable secrets")
}

// RunsUnreadable returns the rows of the tables runTables that the current keys cannot decrypt, such as plans and assignments.
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

// ResetSecrets makes the current keys the keys of this database. It deletes the secrets of machines that these keys cannot decrypt, and
// returns their names as SecretsUnreadable does. It also empties plans, assignments, facts and lab files that these keys cannot decrypt;
// they stay unreadable. If a key is missing, the error is inventory.ErrSealed and nothing is deleted.
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

				// The second condition keeps a secret that was entered after rows was read.
				n, err := exec(ctx, tx, "UPDATE machine SET "+f.column+" = NULL, version = version + 1 WHERE name = ? AND "+
					f.column+" = ?", r.Name, f.sealed)
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
