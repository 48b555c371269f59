package activities

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Rotation changes passwords of BMCs. At every moment, the password that the BMC accepts is stored. Before the BMC
// gets a new password, the new password is stored as a candidate, next to the present password. The candidate
// replaces the present password only after a separate login with it has succeeded. If a rotation was interrupted,
// the next use of the password first tries the candidate, and so finds out which of the two the BMC accepts.
type Rotation struct {
	Store RotationStore
	BMC   PasswordBMC
}

// RotationStore stores the present passwords and the candidates. Package inventory/sqlite implements it.
type RotationStore interface {
	BMCPassword(ctx context.Context, machine string) (inventory.Secret, error)
	BMCCandidate(ctx context.Context, machine string) (candidate inventory.Secret, run string, err error)
	PutBMCCandidate(ctx context.Context, o inventory.Owner, candidate inventory.Secret) error
	CommitBMCCandidate(ctx context.Context, machine string, candidate inventory.Secret) error
	DropBMCCandidate(ctx context.Context, machine string, candidate inventory.Secret, by string) error
}

// PasswordBMC tries and changes passwords. Operations on the same BMC run one after another.
type PasswordBMC interface {
	State(ctx context.Context, b inventory.BMC, password inventory.Secret) (string, error)
	SetPassword(ctx context.Context, b inventory.BMC, password, next inventory.Secret, fence func(context.Context) error) error
}

// Password returns the password of m's BMC. If a rotation was interrupted, it logs in to find out whether the BMC
// accepts the candidate or the present password.
func (r *Rotation) Password(ctx context.Context, m inventory.Machine) (inventory.Secret, error) {
	candidate, _, err := r.Store.BMCCandidate(ctx, m.Name)
	if err != nil || candidate.IsZero() {
		if err != nil {
			return inventory.Secret{}, err
		}
		return r.Store.BMCPassword(ctx, m.Name)
	}
	accepted, err := r.accepts(ctx, m, candidate)
	resting := errors.Is(err, inventory.ErrResting)
	if err != nil && !resting {
		return inventory.Secret{}, err
	}
	if accepted {
		return candidate, r.Store.CommitBMCCandidate(ctx, m.Name, candidate)
	}

	old, err := r.Store.BMCPassword(ctx, m.Name)
	if err != nil {
		return inventory.Secret{}, err
	}
	proven, errOld := r.accepts(ctx, m, old)
	switch {
	case errOld != nil:
		return inventory.Secret{}, errOld
	case proven && resting: // after this login with the old password, the next use may try the candidate again
		return old, nil
	case !proven:
		return inventory.Secret{}, fmt.Errorf("an unfinished password change left two stored passwords, and the BMC of %q refuses both: "+
			"set a password at the BMC, then store it (ingot machine push --replace): %w", m.Name, inventory.ErrRefused)
	}
	// The store keeps the candidate if the run that stored it still holds the machine's grant, because that run may
	// be about to set it.
	if err := r.Store.DropBMCCandidate(ctx, m.Name, candidate, ""); err != nil && !errors.Is(err, inventory.ErrConflict) {
		return inventory.Secret{}, err
	}
	return old, nil
}

// accepts reports whether the BMC accepts the password. It logs in separately. If the password must not be tried
// yet, the error is inventory.ErrResting.
func (r *Rotation) accepts(ctx context.Context, m inventory.Machine, password inventory.Secret) (bool, error) {
	_, err := r.BMC.State(ctx, m.Controller(), password)
	if errors.Is(err, inventory.ErrRefused) && !errors.Is(err, inventory.ErrResting) {
		return false, nil
	}
	return err == nil, err
}

// Rotate gives m's BMC a new password. The owner o must hold the machine's grant. After a crash at any point,
// Rotate may be called again.
func (r *Rotation) Rotate(ctx context.Context, m inventory.Machine, o inventory.Owner, fence Fence) error {
	next, run, err := r.Store.BMCCandidate(ctx, m.Name)
	if err != nil {
		return err
	}
	old, err := r.Password(ctx, m)
	if err != nil {
		return err
	}
	resumed := !next.IsZero()
	if resumed && old.Reveal() == next.Reveal() {
		if run == o.Run {
			return nil // an earlier attempt of this run has changed the password
		}
		resumed = false
	}
	if !resumed {
		next = newPassword()
	}

	if err := r.Store.PutBMCCandidate(ctx, o, next); err != nil {
		return err
	}
	// A run that no longer holds the grant must not set a password that is no longer stored, so read the candidate
	// again directly before the write. Only a later operation that logs in can drop the candidate, and only after
	// the grant has ended.
	still := func(ctx context.Context) error {
		if err := fence(ctx); err != nil {
			return err
		}
		stored, _, err := r.Store.BMCCandidate(ctx, m.Name)
		if err == nil && stored.Reveal() != next.Reveal() {
			err = fmt.Errorf("the candidate for the BMC password of %q was replaced: %w", m.Name, inventory.ErrFenced)
		}
		return err
	}
	wrote := r.BMC.SetPassword(ctx, m.Controller(), old, next, still)

	accepted, err := r.accepts(ctx, m, next)
	switch {
	case err != nil:
		return errors.Join(wrote, err)
	case accepted:
		return r.Store.CommitBMCCandidate(ctx, m.Name, next)
	case errors.Is(wrote, inventory.ErrUnsupported) || errors.Is(wrote, inventory.ErrRefused):
		// The BMC has refused the change, so the candidate is not needed. After any other error, the change may
		// still take effect.
		return errors.Join(wrote, r.Store.DropBMCCandidate(ctx, m.Name, next, o.Run))
	}
	return errors.Join(wrote, fmt.Errorf("the BMC of %q does not accept its new password; the old and the new one stay stored "+
		"until one is proven: %w", m.Name, inventory.ErrUnreachable))
}

// Characters of a generated password. Other characters are left out, because BMCs differ in which of them they
// accept. Many BMCs require a lower-case letter, an upper-case letter and a digit.
const (
	lowerCase = "abcdefghijkmnopqrstuvwxyz"
	upperCase = "ABCDEFGHJKLMNPQRSTUVWXYZ"
	digits    = "23456789"
	// passwordLength is the greatest length that IPMI 1.5 and even the most limited Redfish services accept. A
	// password of this length has 94 bits.
	passwordLength = 16
)

// newPassword returns a random password.
func newPassword() inventory.Secret {
	all := lowerCase + upperCase + digits
	for {
		var b strings.Builder
		for range passwordLength {
			n, err := rand.Int(rand.Reader, big.NewInt(int64(len(all))))
			if err != nil {
				panic(err) // crypto/rand never fails
			}
			b.WriteByte(all[n.Int64()])
		}
		if p := b.String(); strings.ContainsAny(p, lowerCase) && strings.ContainsAny(p, upperCase) && strings.ContainsAny(p, digits) {
			return inventory.NewSecret(p)
		}
	}
}
