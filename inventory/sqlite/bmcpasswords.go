package sqlite

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// BMCPasswords are the passwords of BMCs, sealed: the one in force, and the candidate that is to replace it.
type BMCPasswords struct{ *db }

// BMCPassword returns the password of a machine's BMC, zero if there is none. If it cannot be
// opened, the error is inventory.ErrSealed.
func (s BMCPasswords) BMCPassword(ctx context.Context, name string) (inventory.Secret, error) {
	out, err := s.reveal(ctx, name, "bmc.password")
	return out[0], wrap(err, "reading BMC password of machine %q", name)
}

// candidateBinding binds the password that a rotation is setting to the same things as the stored one.
func candidateBinding(machine string, b *inventory.BMC) string {
	return bmcBinding(machine, b) + " candidate"
}

// BMCCandidate returns the password that a rotation has begun to give to a machine's BMC, and the run that did; both are zero if no
// rotation is unfinished.
func (s BMCPasswords) BMCCandidate(ctx context.Context, machine string) (candidate inventory.Secret, run string, err error) {
	out, err := s.reveal(ctx, machine, "bmc.candidate")
	if err == nil && !out[0].IsZero() {
		run, err = scalar[string](ctx, s.ro, "SELECT coalesce(bmc_candidate_run, '') FROM machine WHERE name = ?", machine)
	}
	return out[0], run, wrap(err, "reading the candidate for the BMC password of machine %q", machine)
}

// PutBMCCandidate stores the password that o's run is about to give to the machine's BMC, next to the present one.
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

// CommitBMCCandidate makes the candidate the machine's BMC password, if it still is the candidate.
func (s BMCPasswords) CommitBMCCandidate(ctx context.Context, machine string, candidate inventory.Secret) error {
	return s.rotate(ctx, "storing the new BMC password", machine, func(tx *transaction, r secretRow, b *inventory.BMC) error {
		if err := s.isCandidate(r, b, candidate); err != nil {
			return err
		}
		sealed, err := s.seal(sealBMC, bmcBinding(r.Name, b), []byte(candidate.Reveal()))
		if err != nil {
			return err
		}
		return do(ctx, tx, "UPDATE machine SET bmc_password = ?, bmc_candidate = NULL, bmc_candidate_run = NULL, updated = ? WHERE name = ?",
			sealed, nanos(s.now()), machine)
	})
}

// DropBMCCandidate removes the candidate, if it still is the candidate and its run does not hold the machine any more, or is by.
// Otherwise it returns inventory.ErrConflict: that run may be about to write the candidate.
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

// isCandidate returns inventory.ErrConflict if the candidate of r is another one or none.
func (s BMCPasswords) isCandidate(r secretRow, b *inventory.BMC, candidate inventory.Secret) error {
	if len(r.BMCCandidate) == 0 {
		return fmt.Errorf("there is no candidate any more: %w", inventory.ErrConflict)
	}
	plain, err := s.open(sealBMC, candidateBinding(r.Name, b), r.BMCCandidate)
	if err == nil && string(plain) != candidate.Reveal() {
		err = fmt.Errorf("there is another candidate: %w", inventory.ErrConflict)
	}
	return err
}

// rotate calls change with the machine's sealed secrets, in one transaction.
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
			return fmt.Errorf("it has no BMC: %w", inventory.ErrConflict)
		}
		return change(tx, r, m.BMC)
	})
}
