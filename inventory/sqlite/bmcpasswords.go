package sqlite

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// BMCPasswords are the passwords of BMCs, stored encrypted. While a password is being rotated, the store has the current password and a
// candidate, which is to replace it.
type BMCPasswords struct{ *db }

// BMCPassword returns the current password of a machine's BMC, or the zero Secret if none is stored. If the password cannot be decrypted,
// the error is inventory.ErrSealed.
func (s BMCPasswords) BMCPassword(ctx context.Context, name string) (inventory.Secret, error) {
	out, err := s.reveal(ctx, name, "bmc.password")
	return out[0], wrap(err, "reading the BMC password of machine %q", name)
}

// candidateBinding returns the binding with which the candidate for a BMC's password is sealed. bmcBinding does the same for the current
// password.
func candidateBinding(machine string, b *inventory.BMC) string {
	return bmcBinding(machine, b) + " candidate"
}

// BMCCandidate returns the candidate for the password of a machine's BMC, and the run that stored the candidate. Both are zero if no
// rotation is in progress.
func (s BMCPasswords) BMCCandidate(ctx context.Context, machine string) (candidate inventory.Secret, run string, err error) {
	out, err := s.reveal(ctx, machine, "bmc.candidate")
	if err == nil && !out[0].IsZero() {
		run, err = scalar[string](ctx, s.ro, "SELECT coalesce(bmc_candidate_run, '') FROM machine WHERE name = ?", machine)
	}
	return out[0], run, wrap(err, "reading the candidate for the BMC password of machine %q", machine)
}

// PutBMCCandidate stores candidate, the password that o's run is about to set in the machine's BMC. The current password stays stored. If o
// does not hold the machine's grant, the error is inventory.ErrFenced.
func (s BMCPasswords) PutBMCCandidate(ctx context.Context, o inventory.Owner, candidate inventory.Secret) error {
	return s.rotate(ctx, "storing a candidate for the BMC password", o.Machine, func(tx *transaction, r secretRow, b *inventory.BMC) error {
		sealed, err := s.seal(sealBMC, candidateBinding(r.Name, b), []byte(candidate.Reveal()))
		if err != nil {
			return err
		}
		return doOne(ctx, tx, inventory.ErrFenced,
			"UPDATE machine SET bmc_candidate = ?4, bmc_candidate_run = ?2 WHERE name = ?1 AND "+held, o.Machine, o.Run, o.Epoch, sealed)
	})
}

// CommitBMCCandidate makes candidate the current password of the machine's BMC. If another candidate is stored, or none, the error is
// inventory.ErrConflict.
func (s BMCPasswords) CommitBMCCandidate(ctx context.Context, machine string, candidate inventory.Secret) error {
	return s.rotate(ctx, "storing the new BMC password", machine, func(tx *transaction, r secretRow, b *inventory.BMC) error {
		if err := s.isCandidate(r, b, candidate); err != nil {
			return err
		}
		sealed, err := s.seal(sealBMC, bmcBinding(r.Name, b), []byte(candidate.Reveal()))
		if err != nil {
			return err
		}
		return do(ctx, tx, `UPDATE machine SET bmc_password = ?, bmc_candidate = NULL, bmc_candidate_run = NULL, version = version + 1,
			updated = ? WHERE name = ?`, sealed, nanos(s.now()), machine)
	})
}

// DropBMCCandidate removes the stored candidate, for the run by. If another candidate is stored, or none, the error is
// inventory.ErrConflict. The error is the same if another run has stored the candidate and still holds the machine, because that run may be
// about to set the candidate in the BMC.
func (s BMCPasswords) DropBMCCandidate(ctx context.Context, machine string, candidate inventory.Secret, by string) error {
	return s.rotate(ctx, "removing the candidate for the BMC password", machine, func(tx *transaction, r secretRow, b *inventory.BMC) error {
		if err := s.isCandidate(r, b, candidate); err != nil {
			return err
		}
		return doOne(ctx, tx, inventory.ErrConflict,
			`UPDATE machine SET bmc_candidate = NULL, bmc_candidate_run = NULL WHERE name = ?1 AND (bmc_candidate_run = ?2
			OR NOT EXISTS (SELECT 1 FROM grant_ WHERE grant_.machine = ?1 AND grant_.run = machine.bmc_candidate_run))`, machine, by)
	})
}

// isCandidate returns nil if r contains this candidate. If r contains another candidate or none, the error is inventory.ErrConflict.
func (s BMCPasswords) isCandidate(r secretRow, b *inventory.BMC, candidate inventory.Secret) error {
	if len(r.BMCCandidate) == 0 {
		return fmt.Errorf("the candidate is no longer stored: %w", inventory.ErrConflict)
	}
	plain, err := s.open(sealBMC, candidateBinding(r.Name, b), r.BMCCandidate)
	if err == nil && string(plain) != candidate.Reveal() {
		err = fmt.Errorf("another candidate is stored: %w", inventory.ErrConflict)
	}
	return err
}

// rotate runs change in a transaction. change gets the machine's sealed secrets and its BMC. If the machine has no BMC, the error is
// inventory.ErrConflict.
func (s BMCPasswords) rotate(ctx context.Context, what, machine string,
	change func(tx *transaction, r secretRow, b *inventory.BMC) error,
) error {
	return s.write(ctx, fmt.Sprintf("%s of machine %q", what, machine), func(tx *transaction) error {
		var r secretRow
		if err := get(ctx, tx, &r, "SELECT "+secretColumns+" FROM machine WHERE name = ?", machine); err != nil {
			return err
		}
		m, err := r.value()
		if err != nil {
			return err
		}
		if m.BMC == nil {
			return fmt.Errorf("the machine has no BMC: %w", inventory.ErrConflict)
		}
		return change(tx, r, m.BMC)
	})
}
